"""Buffers of a block that begin where vectors do, and are kept for the next pairs.

NumPy takes half the time to add or multiply arrays that begin at a multiple of 64 bytes, which those that it
makes do not. To get fresh memory takes as long as to fill it three times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .values import Doubles, Floats

_COUNT = 4
_LINE = 64
"""Bytes of a vector of AVX-512, and of a line of the cache."""
_CHUNK = 1 << 15
"""Elements that are float64 at once: two buffers of these stay near the core beside those of the block."""

FEW = 8192
"""Up to so many elements NumPy sums sooner than torch is called."""

_spare: list[NDArray[np.uint8]] = []
"""Memory that no block is in. A thread takes and leaves one in a step that no other one sees half done."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer of float32, for NumPy and for torch: to make one of the other takes a microsecond."""

    array: Floats
    tensor: torch.Tensor

    def total(self) -> float:
        """The sum of all elements, within about 1e-7 of the sum of their sizes.

        Torch sums pairwise, along any axis, and is fast at it. Of a few elements its dispatch is what costs:
        those NumPy sums, in float64.
        """
        if self.array.size <= FEW:
            return float(np.add.reduce(self.array, dtype=np.float64))
        return self.tensor.sum().item()

    def sums(self, channels: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The sums of each row and of each channel, float32 or float64, taken as `total` is."""
        if self.array.size <= FEW:
            table = self.array.reshape(-1, channels)
            by_row, by_channel = (np.add.reduce(table, axis, dtype=np.float64) for axis in (1, 0))
            return by_row, by_channel
        matrix = self.tensor.view(-1, channels)
        return matrix.sum(1).numpy(), matrix.sum(0).numpy()


class Buffers:
    """Float32 buffers of `size` elements, two of float64 for chunks of them, and flags."""

    def __init__(self, size: int) -> None:
        step = -(-size // _LINE) * _LINE
        chunk = min(_CHUNK, step)
        sizes = _COUNT * 4 * step, 2 * 8 * chunk, step
        self._memory = _memory(sum(sizes))
        begin, first, second = 0, sizes[0], sizes[0] + sizes[1]
        self._floats = self._memory[begin:first].view(np.float32).reshape(_COUNT, step)
        self._doubles = self._memory[first:second].view(np.float64).reshape(2, chunk)
        self.flags = self._memory[second : second + step].view(np.bool_)

    def __del__(self) -> None:
        if hasattr(self, "_memory"):
            _spare.append(self._memory)

    def first(self, n: int) -> list[Buffer]:
        """The first `n` elements of each of the buffers of float32."""
        return [Buffer(array, torch.from_numpy(array)) for array in self._floats[:, :n]]

    def chunks(self, n: int) -> Iterator[tuple[slice, Doubles, Doubles]]:
        """Pieces of a block of `n` elements, and as long ones of the buffers of float64."""
        step = self._doubles.shape[1]
        for start in range(0, n, step):
            stop = min(start + step, n)
            yield slice(start, stop), self._doubles[0, : stop - start], self._doubles[1, : stop - start]

    def wide_dots(self, golden: Buffer, mine: Buffer) -> tuple[float, float]:
        """The sums of golden*mine and mine*mine, in float64."""
        products = squares = 0.0
        for piece, wide_golden, wide_mine in self.chunks(golden.array.size):
            wide = torch.from_numpy(wide_golden), torch.from_numpy(wide_mine)
            wide[0].copy_(golden.tensor[piece])
            wide[1].copy_(mine.tensor[piece])
            products += torch.dot(*wide).item()
            squares += torch.dot(wide[1], wide[1]).item()
        return products, squares


def _memory(nbytes: int) -> NDArray[np.uint8]:
    """At least so many bytes, which begin where a line does."""
    with contextlib.suppress(IndexError):
        spare = _spare.pop()
        if spare.size >= nbytes:
            return spare
    buffer = np.empty(nbytes + _LINE, dtype=np.uint8)
    return buffer[-buffer.ctypes.data % _LINE :]
