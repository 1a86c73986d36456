"""NumPy and torch, imported without what comes with them: threads, and a search for garbage."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import AccError, SettingsError, guarded

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@functools.cache
def go_without_blas() -> None:
    """Have `import_numpy` import it without threads. For processes that run nothing but generated tests."""


def import_numpy() -> None:
    """Import NumPy without the threads of its BLAS, if nobody wants these (`go_without_blas`).

    OpenBLAS starts one for each core, which looks for work for a tenth of a second before it sleeps: with 16
    cores a second and a half of each process. Nothing of ours calls it. A variable that is set is respected.
    """
    if "numpy" in sys.modules or not go_without_blas.cache_info().currsize or _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[_BLAS_THREADS]  # torch, and programs that are started, may read it too


@functools.cache
def import_torch() -> None:
    """Import torch without looking for garbage among the half million objects that it is made of."""
    if "torch" in sys.modules:
        return
    import_numpy()  # torch does
    with without_collector():
        import_module("torch")
    # Freeze what came since, where `leave_what_stays` was called.
    if leave_what_stays.cache_info().currsize:
        _freeze()


# Python's collector of garbage, kept from what stays until the end: modules, dumps and plans.


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Do not look for garbage here: who makes a million small objects that all stay takes half the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.cache
def leave_what_stays() -> None:
    """Look for no garbage among what lives by now, nor among what torch will be made of.

    The collector would do so again and again, and at the end of the process too, which takes a fifth of a
    short run. What lives by now goes when nobody refers to it any more, but not if it refers to itself: this
    is for generated tests only.
    """
    _freeze()


def _freeze() -> None:
    # An error on the way of an import leaves frames that refer to each other and to all frames that are at
    # work now, with whatever these will hold: dumps, for one.
    gc.collect()
    gc.freeze()


# Whether torch and numpy, as installed, work together: asked at every door, before anything is written.


_KNOWS_NUMPY_2 = (2, 3)
"""The first torch that does."""


@functools.cache
def check_numpy() -> None:
    """Raise `AccError` where torch is too old for numpy: nothing could be read or written.

    Imports nothing where the versions fit. A torch that was built against numpy 2 passes.
    """
    torch, numpy = installed_version("torch"), installed_version("numpy")
    if (
        torch
        and numpy
        and release_of(torch) < _KNOWS_NUMPY_2
        and release_of(numpy) >= (2,)
        and not _exchange()
    ):
        raise AccError(
            f"torch {torch} does not work with numpy {numpy} (torch 2.3 is the first that works with "
            "numpy 2); install an older numpy: pip install 'numpy<2'"
        )


def installed_version(name: str) -> str:
    """The version of an installed package, empty where its metadata is not found."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def release_of(text: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


@functools.cache
def added(group: str, *attributes: str) -> tuple[Any, ...]:
    """The objects that other packages add to a group of entry points, by name; each has these attributes.

    One that has not, or that cannot be imported, is left out with a warning.
    """
    objects = []
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
        try:
            with guarded(f"{package}: its {group} {entry.name!r} cannot be used"):
                loaded = entry.load()
                for attribute in attributes:
                    getattr(loaded, attribute)
        except AccError as error:
            warnings.warn(f"{error}; repair or uninstall the package", stacklevel=2)
        else:
            objects.append(loaded)
    return tuple(objects)


def _exchange() -> bool:
    """Whether torch and numpy exchange values. What both print of it on the way is kept from the user."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch

        try:
            return bool(torch.ones(1).numpy().all())
        except RuntimeError:
            return False


# A Python file of the user's as a module: his metric, his golden model.


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


# Modules of large packages, imported as Python imports them.
#
# pytest looks for `assert`s to rewrite in every module, a quarter of a millisecond each. A comparison imports
# 350 of ours, and torch and transformers 2,000. None of them has any that fails in a test.


_PACKAGES = tuple(f"{name}." for name in (__name__.partition(".")[0], "torch", "transformers", "sympy"))


class PlainModules(MetaPathFinder):
    """Finds what is below these packages ahead of pytest's finder, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module where it lies on the path of its package."""
        if not fullname.startswith(_PACKAGES):
            return None
        return PathFinder.find_spec(fullname, path, target)


def find_first() -> None:
    """Be asked before any other finder, once."""
    if not any(isinstance(finder, PlainModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, PlainModules())


# torch, imported when something of it is first asked for.
#
# Importing it takes a second. A run whose tensors the native kernel reads as they lie in their files needs
# nothing of it, so modules on that way take `torch` from here.


if TYPE_CHECKING:
    import torch
else:

    class _Torch:
        """Has what torch has."""

        def __getattr__(self, name: str) -> Any:
            import_torch()
            return getattr(sys.modules["torch"], name)

    torch = _Torch()

__all__ = ["torch"]
