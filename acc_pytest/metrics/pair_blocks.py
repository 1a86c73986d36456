"""The blocks of a pair, each summed by itself, so that several threads may share them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..tensors.in_memory import InMemory
from ..tensors.read_source import ReadSource, StoredSource, element_type
from ..tensors.source import Source
from ..threads import torch_on_one_thread
from .block_result import BlockResult
from .element_tolerance import ElementTolerance
from .native.library import chosen
from .native.native_block import TYPES, NativeBlock
from .slices import SliceSums

if TYPE_CHECKING:
    from .elements import ElementSums
    from .python_blocks import PythonBlocks

BLOCK = 128 * 1024
"""Most elements per block of the kernel in Python: four float32 buffers of this size stay near the core."""
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

    `elements` is offered every block; then they have to be summed in order. With `double` all are summed in
    float64.
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
        self._elements, self._double = elements, double
        types = element_type(golden), element_type(mine)
        shape = tuple(int(size) for size in golden.shape)
        self._numel = math.prod(shape)
        self._channels = max(1, shape[-1]) if shape else 1
        sliced = not any(dtype.kind == "complex" for dtype in types)
        sliced = sliced and not all(dtype.is_exact for dtype in types) and SliceSums.possible(shape)
        self.slices = SliceSums(shape) if sliced else None
        fitting = elements is None and not double and all(dtype.name in TYPES for dtype in types)
        kernel = chosen() if fitting else None
        self._native = None if kernel is None else NativeBlock(kernel, tolerance, self.slices)

    @functools.cached_property
    def _in_python(self) -> PythonBlocks:
        """What sums blocks that the native kernel does not take."""
        torch_on_one_thread()
        from .python_blocks import PythonBlocks

        given = self._golden, self._mine, self._tolerance, self._elements, self.slices
        return PythonBlocks(*given, double=self._double, most=BLOCK)

    def stretches(self) -> list[tuple[int, int]]:
        """What to sum, range by range of elements."""
        return list(ranges(0, self._numel, self._channels, BLOCKS * BLOCK))

    def summed(self, stretch: tuple[int, int]) -> list[BlockResult]:
        """The results of the blocks of a stretch, in their order."""
        start, stop = stretch
        pieces = ranges(start, stop, self._channels, BLOCK)
        if self._native is None:
            return [self._in_python.read(first, last) for first, last in pieces]
        with _room() as room:
            golden = _in_memory(self._golden, start, stop, room, 0)
            mine = _in_memory(self._mine, start, stop, room, 1)
            whole = self._native.result(golden, mine, start)
            if whole is not None:
                return [whole]
            g, m = golden.tensor(), mine.tensor()
            cuts = [slice(first - start, last - start) for first, last in pieces]
            return [self._in_python.result(g[cut], m[cut], start + cut.start) for cut in cuts]


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


def _in_memory(source: Source, start: int, stop: int, room: _Room, side: int) -> InMemory:
    """Elements of one side, good until other ones are put into the room."""
    if isinstance(source, (ReadSource, StoredSource)):
        nbytes = (stop - start) * element_type(source).bits // 8
        return source.in_memory(start, stop, room.of(side, nbytes))
    return InMemory.of_tensor(source.read(start, stop))
