"""Python's collector of garbage, kept from what stays until the end: modules, dumps and plans."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Iterator
from importlib import import_module


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
    """Look for no garbage among what lives by now, nor among what torch is made of, whenever it is imported.

    The collector would do so again and again, and at the end of the process too, which takes a fifth of a
    short run. What lives by now goes when nobody refers to it any more, but not if it refers to itself: this
    is for generated tests only.
    """
    _freeze()


@functools.cache
def import_torch() -> None:
    """Import torch without looking for garbage among the half million objects that it is made of."""
    if "torch" in sys.modules:
        return
    with without_collector():
        import_module("torch")
    if leave_what_stays.cache_info().currsize:
        _freeze()


def _freeze() -> None:
    # An error on the way of an import leaves frames that refer to each other and to all frames that are at
    # work now, with whatever these will hold: dumps, for one.
    gc.collect()
    gc.freeze()
