"""A Python file of the user's as a module: his metric, his golden model."""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from .errors import SettingsError
from .guard import guarded


def imported(file: Path, what: str) -> ModuleType:
    """The file under a name of its own, so that equal file names do not clash.

    While it is read, it can import what lies beside it; `sys.path` then is what it was. `what` begins the
    error. Raises `AccError` that names the file.
    """
    resolved = file.resolve()
    name = f"_acc_user_file_{hashlib.sha256(os.fsencode(resolved)).hexdigest()[:16]}"
    spec = spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{what}: Python cannot import {file}")
    module = module_from_spec(spec)
    sys.modules[name] = module
    directory = str(resolved.parent)
    sys.path.append(directory)
    try:
        with guarded(f"{what}: importing {file}", (ImportError, SyntaxError, NameError)):
            spec.loader.exec_module(module)
    except (ImportError, SyntaxError, NameError) as error:
        del sys.modules[name]
        raise SettingsError(f"{what}: {file} cannot be imported: {error}") from error
    finally:
        sys.path.remove(directory)
    return module
