"""One block by the native kernel: floats of 16 and 32 bits, any of them NaN or infinite."""

from __future__ import annotations

import ctypes

from ...tensors.in_memory import InMemory
from ..block_result import BlockResult
from ..divergence import BlockDivergence
from ..element_tolerance import ElementTolerance
from ..sides import SideSums
from ..slices import BlockSlices, SliceSums
from ..totals import BlockSums
from .library import Kernel, KernelRequest, KernelResult

TYPES = {"float16": 0, "bfloat16": 1, "float32": 2}
"""Types that the kernel takes, by name, and its numbers for them."""
COUNTS = (
    *("golden_nan", "golden_inf", "mine_nan", "mine_inf"),
    *("common_nan", "common_inf", "new", "lost", "changed"),
)


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
        kernel_result = KernelResult()
        if not self._kernel(ctypes.addressof(request), ctypes.addressof(kernel_result)):
            return None
        return _block_result(start, elements, kernel_result, slices)


def _block_result(
    start: int, elements: int, kernel_result: KernelResult, slices: BlockSlices | None
) -> BlockResult:
    golden = SideSums(
        kernel_result.golden_count,
        kernel_result.golden_max,
        kernel_result.golden_min,
        kernel_result.golden_total,
    )
    mine = SideSums(
        kernel_result.mine_count, kernel_result.mine_max, kernel_result.mine_min, kernel_result.mine_total
    )
    return BlockResult(
        start,
        (golden if golden.count else None, mine if mine.count else None),
        _block_sums(kernel_result) if kernel_result.compared else None,
        bool(kernel_result.identical),
        {} if kernel_result.compared == elements else {name: getattr(kernel_result, name) for name in COUNTS},
        kernel_result.first_disagreeing,
        slices,
    )


def _block_sums(kernel_result: KernelResult) -> BlockSums:
    return BlockSums(
        compared=kernel_result.compared,
        golden=kernel_result.golden,
        mine=kernel_result.mine,
        difference=kernel_result.difference,
        golden_squared=kernel_result.golden_squared,
        mine_squared=kernel_result.mine_squared,
        golden_mine=kernel_result.golden_mine,
        golden_difference=kernel_result.golden_difference,
        difference_squared=kernel_result.difference_squared,
        absolute=kernel_result.absolute,
        golden_peak=kernel_result.golden_peak,
        peak=kernel_result.peak,
        peak_at=kernel_result.peak_at,
        relative=kernel_result.relative,
        relative_peak=kernel_result.relative_peak,
        scaled_peak=kernel_result.scaled_peak,
        near_zero=kernel_result.near_zero,
        beyond=kernel_result.beyond,
        divergence=BlockDivergence(
            kernel_result.weight,
            kernel_result.first,
            kernel_result.curved,
            kernel_result.scale,
            kernel_result.curved_scale,
            kernel_result.center,
        ),
    )
