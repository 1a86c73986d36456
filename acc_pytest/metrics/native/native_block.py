"""One block by the native kernel: floats of 16 and 32 bits, any of them NaN or infinite."""

from __future__ import annotations

import ctypes
from dataclasses import fields

from ...tensors.source import InMemory
from ..measurement import ElementTolerance
from ..pair_sums import BlockResult, BlockSlices, SideSums, SliceSums
from ..totals import BlockDivergence, BlockSums
from .library import Kernel, KernelRequest, KernelResult

TYPES = {"float16": 0, "bfloat16": 1, "float32": 2}
"""Types that the kernel takes, by name, and its numbers for them."""
COUNTS = (
    *("golden_nan", "golden_inf", "mine_nan", "mine_inf"),
    *("common_nan", "common_inf", "new", "lost", "changed"),
)


_SUMS, _DIVERGENCE = (
    [field.name for field in fields(kind) if hasattr(KernelResult, field.name)]
    for kind in (BlockSums, BlockDivergence)
)
"""Sums that the kernel calls as we do."""


class NativeBlock:
    """Calls the kernel. Several threads may at the same time: ctypes releases Python's lock."""

    def __init__(self, kernel: Kernel, tolerance: ElementTolerance, slices: SliceSums | None) -> None:
        self._kernel, self._tolerance, self._slices = kernel, tolerance, slices

    def result(self, golden: InMemory, mine: InMemory, start: int) -> BlockResult | None:
        """Sum a block of at least one element, from the flat position `start`.

        `None` for types, layouts and values that the kernel does not take.
        """
        golden_type, mine_type = TYPES.get(golden.dtype.name), TYPES.get(mine.dtype.name)
        if golden_type is None or mine_type is None or not golden.address or not mine.address:
            return None
        elements = golden.elements
        request = KernelRequest(
            golden=golden.address,
            mine=mine.address,
            elements=elements,
            channels=elements,
            golden_type=golden_type,
            mine_type=mine_type,
            atol=self._tolerance.atol,
            rtol=self._tolerance.rtol,
        )
        slices = None
        if self._slices is not None:
            slices = self._slices.zeros(start, elements)
            request.rows, request.columns = slices.rows.ctypes.data, slices.channels.ctypes.data
            request.channels = slices.channels.shape[1]
        sums = KernelResult()
        if not self._kernel(ctypes.addressof(request), ctypes.addressof(sums)):
            return None
        return _block_result(start, elements, sums, slices)


def _block_result(start: int, elements: int, sums: KernelResult, slices: BlockSlices | None) -> BlockResult:
    golden = SideSums(sums.golden_count, sums.golden_max, sums.golden_min, sums.golden_total)
    mine = SideSums(sums.mine_count, sums.mine_max, sums.mine_min, sums.mine_total)
    return BlockResult(
        start,
        (golden if golden.count else None, mine if mine.count else None),
        _block_sums(sums) if sums.compared else None,
        bool(sums.identical),
        {} if sums.compared == elements else {name: getattr(sums, name) for name in COUNTS},
        sums.first_disagreeing,
        slices,
    )


def _block_sums(sums: KernelResult) -> BlockSums:
    divergence = BlockDivergence(**{name: getattr(sums, name) for name in _DIVERGENCE})
    return BlockSums(**{name: getattr(sums, name) for name in _SUMS}, divergence=divergence)
