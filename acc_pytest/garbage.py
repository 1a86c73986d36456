"""Python's collector of garbage, kept from what stays until the end: modules, dumps and plans."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator


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


def leave_what_came() -> None:
    """Freeze what came since, where `leave_what_stays` was called."""
    if leave_what_stays.cache_info().currsize:
        _freeze()


def _freeze() -> None:
    # An error on the way of an import leaves frames that refer to each other and to all frames that are at
    # work now, with whatever these will hold: dumps, for one.
    gc.collect()
    gc.freeze()
