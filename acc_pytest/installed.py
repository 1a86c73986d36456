"""Whether torch and numpy, as installed, work together: asked at every door, before anything is written."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import warnings
from importlib.metadata import PackageNotFoundError, version

from .errors import AccError

_KNOWS_NUMPY_2 = (2, 3)
"""The first torch that does."""


@functools.cache
def check_numpy() -> None:
    """Raise `AccError` where torch is too old for numpy: nothing could be read or written.

    Imports nothing where the versions fit. A torch that was built against numpy 2 passes.
    """
    torch, numpy = installed_version("torch"), installed_version("numpy")
    if torch and numpy and _release(torch) < _KNOWS_NUMPY_2 and _release(numpy) >= (2,) and not _exchange():
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


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _exchange() -> bool:
    """Whether torch and numpy exchange values. What both print of it on the way is kept from the user."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch

        try:
            return bool(torch.ones(1).numpy().all())
        except RuntimeError:
            return False
