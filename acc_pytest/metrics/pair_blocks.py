"""The blocks of a pair, each summed by itself, so that several threads may share them."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ..tensors.read_source import ReadSource
from ..tensors.source import Source
from .block_result import BlockResult
from .double_block import double_sums, scaled_sum
from .element_tolerance import ElementTolerance
from .elements import ElementSums
from .native.library import chosen
from .native.native_block import TYPES, NativeBlock
from .nonfinite import nonfinite_counts
from .sides import SideSums
from .single_block import FITTING, SingleBlock
from .slices import SliceSums
from .values import Wide, difference, is_exact, raw, widen

BLOCK = 128 * 1024
"""Most elements per block: eight float32 buffers of this size stay near the core."""
BLOCKS = 8
"""Blocks in a stretch: what the native kernel takes at once, and one thread."""


def ranges(begin: int, end: int, channels: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of up to `size` elements: whole rows, or parts of one row where a row is longer than that.

    `begin` starts a row, or all lies within one.
    """
    if channels <= size:
        step = size // channels * channels
        yield from ((start, min(start + step, end)) for start in range(begin, end, step))
        return
    for row in range(begin, end, channels):
        last = min(row + channels, end)
        yield from ((start, min(start + size, last)) for start in range(row, last, size))


class PairBlocks:
    """Two sources of one shape, and which kernels sum their blocks.

    A result does not depend on the blocks summed before it, but for what the totals do not look at any more.
    `elements` is offered every block; then they have to be summed in order.
    """

    def __init__(
        self,
        golden: Source,
        mine: Source,
        tolerance: ElementTolerance,
        elements: ElementSums | None,
        *,
        double: bool,
    ) -> None:
        self._golden, self._mine, self._tolerance = golden, mine, tolerance
        self._elements = elements
        shape = tuple(int(size) for size in golden.shape)
        self._numel = math.prod(shape)
        self._channels = max(1, shape[-1]) if shape else 1
        self._exact = is_exact(golden.dtype) and is_exact(mine.dtype)
        self._complex = golden.dtype.is_complex or mine.dtype.is_complex
        sliced = not self._exact and not self._complex and SliceSums.possible(shape)
        self.slices = SliceSums(shape) if sliced else None
        self._fitting = golden.dtype in FITTING and mine.dtype in FITTING and not double
        self._native = self._native_block() if self._fitting and elements is None else None
        self._buffers = threading.local()
        self._identical = golden.dtype == mine.dtype
        self._scaled_peak = 0.0

    def _native_block(self) -> NativeBlock | None:
        kernel = chosen() if {self._golden.dtype, self._mine.dtype} <= TYPES.keys() else None
        return None if kernel is None else NativeBlock(kernel, self._tolerance, self.slices)

    def stretches(self) -> list[tuple[int, int]]:
        """What to sum, range by range of elements."""
        return list(ranges(0, self._numel, self._channels, BLOCKS * BLOCK))

    def summed(self, stretch: tuple[int, int]) -> list[BlockResult]:
        """The results of the blocks of a stretch, in their order."""
        start, stop = stretch
        # Overflow and 0/0 are results here, not accidents: they are looked at where they can arise.
        with np.errstate(all="ignore"):
            if self._native is None:
                return [self._read(first, last) for first, last in self._pieces(start, stop)]
            with _room() as room:
                golden = _stretch(self._golden, start, stop, room, 0)
                mine = _stretch(self._mine, start, stop, room, 1)
                whole = self._native.result(golden, mine, start)
                if whole is not None:
                    return [whole]
                pieces = [slice(first - start, last - start) for first, last in self._pieces(start, stop)]
                return [self._block(golden[piece], mine[piece], start + piece.start) for piece in pieces]

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        return ranges(start, stop, self._channels, BLOCK)

    def _read(self, start: int, stop: int) -> BlockResult:
        return self._block(self._golden.read(start, stop), self._mine.read(start, stop), start)

    def _block(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> BlockResult:
        result = self._by_single(golden, mine, start) if self._fitting else None
        if result is None:
            result = self._by_double(golden, mine, start)
        result.identical = self._identical and _same_bytes(golden, mine)
        if not result.identical:
            self._identical = False
        if self._elements is not None:
            self._elements.add(start, golden, mine)
        return result

    def _by_single(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> BlockResult | None:
        single = getattr(self._buffers, "single", None)
        if single is None:
            size = min(self._numel, BLOCK)
            single = SingleBlock(size, self._tolerance, self.slices, exact=self._exact)
            self._buffers.single = single
        sides = single.load(golden, mine)
        sums = None if sides is None else single.sums(sides, start, self._scaled_peak)
        if sides is None or sums is None:
            return None
        self._scaled_peak = max(self._scaled_peak, sums.scaled_peak)
        result = BlockResult(start, sides, sums, identical=False, slices=single.sliced)
        if single.excluded is not None:
            _note(result, single.excluded.at, single.excluded.golden, single.excluded.mine)
        return result

    def _by_double(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> BlockResult:
        g, m = widen(golden, to_complex=self._complex), widen(mine, to_complex=self._complex)
        finite = np.isfinite(g.wide), np.isfinite(m.wide)
        sides = self._side(g.wide, finite[0]), self._side(m.wide, finite[1])
        result = BlockResult(start, sides, None, identical=False)
        keep, elements = finite[0] & finite[1], g.wide.size
        if keep.all():
            at = np.arange(elements)
        else:
            excluded = np.flatnonzero(~keep)
            _note(result, excluded, g.wide[excluded], m.wide[excluded])
            at = np.flatnonzero(keep)
            if not at.size:
                return result
            g, m = g.pick(keep), m.pick(keep)
        result.compared = double_sums(g, m, self._tolerance, exact=self._exact)
        result.compared.peak_at = int(at[result.compared.peak_at])
        if self.slices is not None:
            result.slices = self.slices.of_positions(start, elements, at, g.wide, difference(m, g))
        return result

    def _side(self, values: Wide, finite: NDArray[np.bool_]) -> SideSums | None:
        values = values[finite]
        if self._complex or not values.size:
            return None
        total, exponent = scaled_sum(values)
        return SideSums(values.size, float(values.max()), float(values.min()), total, exponent)


class _Room:
    """Where a thread puts the stretches of both sides that it works on."""

    def __init__(self) -> None:
        self._sides = [bytearray(), bytearray()]

    def of(self, side: int, nbytes: int) -> bytearray:
        """At least so many bytes."""
        if len(self._sides[side]) < nbytes:
            self._sides[side] = bytearray(nbytes)
        return self._sides[side]


_rooms: list[_Room] = []
"""Rooms that no thread works in, kept for the next pairs: to get fresh memory takes as long as to measure.
There are as many as threads were at work at once."""


@contextlib.contextmanager
def _room() -> Iterator[_Room]:
    """A room for one stretch."""
    try:
        room = _rooms.pop()  # one step, so that no other thread gets it
    except IndexError:
        room = _Room()
    try:
        yield room
    finally:
        _rooms.append(room)


def _stretch(source: Source, start: int, stop: int, room: _Room, side: int) -> torch.Tensor:
    """Elements of one side, good until other ones are put into the room."""
    if isinstance(source, ReadSource):
        return source.copied(start, stop, room.of(side, (stop - start) * source.dtype.itemsize))
    return source.read(start, stop)


def _same_bytes(golden: torch.Tensor, mine: torch.Tensor) -> bool:
    """A sum that nobody rounds is read in a wider type, which is another."""
    return golden.dtype == mine.dtype and not np.count_nonzero(raw(golden) != raw(mine))


def _note(result: BlockResult, at: NDArray[np.int64], golden: Wide, mine: Wide) -> None:
    """Note what stands at positions that are left out, for not both sides are finite there."""
    result.counts, first = nonfinite_counts(golden, mine)
    if first >= 0:
        result.first_disagreeing = int(at[first])
