"""The blocks of a pair, each summed by itself, so that several threads may share them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..tensors.dtypes import DType
from ..tensors.in_memory import InMemory
from ..tensors.read_source import ReadSource, StoredSource, element_type
from ..tensors.source import Source
from ..threads import torch_on_one_thread
from .block_ranges import BLOCK, DOUBLE_BLOCK, ranges
from .block_result import BlockResult
from .element_tolerance import ElementTolerance
from .native.library import chosen
from .native.native_block import TYPES, NativeBlock
from .slices import SliceSums

if TYPE_CHECKING:
    from .double_blocks import WholeNumbers
    from .elements import ElementSums
    from .python_blocks import PythonBlocks

MOST_WHOLE = BLOCK
"""Elements of the largest pair of whole numbers that is summed without torch. With it a larger one takes half
the time or less; to import it takes as long as a few hundred pairs of these."""
BLOCKS = 8
"""Blocks in a stretch: what the native kernel takes at once, and one thread."""


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
        self.slices = _slices(types, shape)
        fitting = elements is None and not double and all(dtype.name in TYPES for dtype in types)
        kernel = chosen() if fitting else None
        self._native = None if kernel is None else NativeBlock(kernel, tolerance, self.slices)
        few = elements is None and self._numel <= MOST_WHOLE
        self._whole_numbers = _for_whole_numbers(golden, mine, tolerance) if few else None

    @functools.cached_property
    def _in_python(self) -> PythonBlocks:
        """The kernel for blocks that the native one does not take."""
        torch_on_one_thread()
        from .python_blocks import PythonBlocks

        arguments = self._golden, self._mine, self._tolerance, self._elements, self.slices
        return PythonBlocks(*arguments, double=self._double)

    def stretches(self) -> list[tuple[int, int]]:
        """The ranges of elements to sum."""
        return list(ranges(0, self._numel, self._channels, BLOCKS * BLOCK))

    def summed(self, stretch: tuple[int, int]) -> list[BlockResult]:
        """The results of the blocks of a stretch, in their order."""
        start, stop = stretch
        if self._whole_numbers is not None:
            pieces = ranges(start, stop, self._channels, DOUBLE_BLOCK)
            with _room() as room:
                return [self._of_whole_numbers(first, last, room) for first, last in pieces]
        pieces = ranges(start, stop, self._channels, BLOCK)
        if self._native is None:
            return [result for first, last in pieces for result in self._in_python.read(first, last)]
        with _room() as room:
            golden = _in_memory(self._golden, start, stop, room, 0)
            mine = _in_memory(self._mine, start, stop, room, 1)
            block_result = self._native.result(golden, mine, start)
            if block_result is not None:
                return [block_result]
            g, m = golden.tensor(), mine.tensor()
            cuts = [slice(first - start, last - start) for first, last in pieces]
            return [
                result
                for cut in cuts
                for result in self._in_python.results(g[cut], m[cut], start + cut.start)
            ]

    def _of_whole_numbers(self, start: int, stop: int, room: _Room) -> BlockResult:
        golden = _in_memory(self._golden, start, stop, room, 0).array()
        mine = _in_memory(self._mine, start, stop, room, 1).array()
        assert self._whole_numbers is not None
        return self._whole_numbers.result(golden, mine, start)


def _slices(types: tuple[DType, DType], shape: tuple[int, ...]) -> SliceSums | None:
    """The sums of rows and channels, where these are measured."""
    if any(dtype.kind == "complex" for dtype in types) or all(dtype.is_exact for dtype in types):
        return None
    return SliceSums(shape) if SliceSums.possible(shape) else None


def _for_whole_numbers(golden: Source, mine: Source, tolerance: ElementTolerance) -> WholeNumbers | None:
    """The kernel for whole numbers without torch, where both sides have such and lie in their files."""
    if not (isinstance(golden, StoredSource) and isinstance(mine, StoredSource)):
        return None
    if not (golden.element_type.is_exact and mine.element_type.is_exact):
        return None
    from .double_blocks import WholeNumbers

    return WholeNumbers(tolerance)


class _Room:
    """Memory of a thread for the stretches of both sides that it works on."""

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
