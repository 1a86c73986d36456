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
def import_torch(*, freeze: bool) -> None:
    """Import torch without looking for garbage among the half million objects that it is made of.

    With `freeze` they are not looked at later either: the collector does so again and again, and at the end
    of the process too, which takes a fifth of a short run. Whatever else lives by now is left out as well. It
    goes when nobody refers to it any more, but not if it refers to itself: this is for generated tests only.
    """
    with without_collector():
        import torch  # noqa: F401
    if freeze:
        # An error on the way of an import leaves frames that refer to each other and to all frames that are
        # at work now, with whatever these will hold: dumps, for one.
        gc.collect()
        gc.freeze()
