"""The golden model that a function of the user's makes: `--acc-model my_model.py:make_model`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from torch import nn

from ...errors import SettingsError
from ...guard import guarded
from ...user_file import imported

FLAG = "--acc-model"
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def load_model(spec: str) -> nn.Module:
    """Call `path.py:function` and take the model that it returns.

    Raises `AccError` that names the file and the fix.
    """
    path, _, name = spec.rpartition(":")
    if not path or not name.isidentifier():
        raise SettingsError(f"{FLAG} must be FILE.py:FUNCTION, as in my_model.py:make_model, got {spec:.200}")
    make = _function(Path(path), name)
    with guarded(f"{FLAG}: calling {name} in {path}"):
        model = make()
    if not isinstance(model, nn.Module):
        raise SettingsError(
            f"{FLAG}: {name} in {path} must return a torch.nn.Module, got {type(model).__name__}"
        )
    return model.eval()


def _function(file: Path, name: str) -> Callable[[], object]:
    if file.suffix != ".py" or not file.is_file():
        raise SettingsError(f"{FLAG}: {file} is not an existing .py file; correct the path")
    function = getattr(imported(file, FLAG), name, None)
    if not callable(function):
        raise SettingsError(f"{FLAG}: {file} has no function {name}; define it or correct the name")
    parameters = inspect.signature(function).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind not in _ANY_NUMBER]
    needed = [parameter.name for parameter in required]
    if needed:
        raise SettingsError(
            f"{FLAG}: {name} in {file} needs {', '.join(needed)}, but is called without arguments; "
            "give them defaults"
        )
    factory: Callable[[], object] = function
    return factory
