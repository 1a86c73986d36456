"""Subnormal numbers taken as 0 for a while: on Intel a product with one takes a hundred times as long.

Where that is sound is for the caller to say: an array that holds one loses it when it is computed with.
"""

from __future__ import annotations

from types import TracebackType

import numpy as np
import torch

_SUBNORMAL, _ONE = np.float32(1e-40), np.float32(1)


class Flushed:
    """A block of code whose thread flushes them, in NumPy and torch; with `False` nothing changes.

    Threads that torch starts do not, nor do processors on which torch does not know how.
    """

    __slots__ = ("_changed", "_enabled")

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled

    def __enter__(self) -> None:
        self._changed = self._enabled and bool(_SUBNORMAL * _ONE > 0) and torch.set_flush_denormal(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._changed:
            torch.set_flush_denormal(False)
