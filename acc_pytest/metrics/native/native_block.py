"""One block by the native kernel: floats of 16 and 32 bits, any of them NaN or infinite."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from ..divergence import BlockDivergence
from ..element_tolerance import ElementTolerance
from ..sides import SideSums
from ..slices import SliceSums
from ..totals import NEAR_ZERO, BlockSums, Totals
from .library import Kernel, KernelRequest, KernelResult

TYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}


@dataclass(frozen=True, slots=True)
class NativeSums:
    """What the kernel learned of a block. `compared` is `None` where nothing was finite on both sides, a side
    where nothing of it was; `counts` are those of `NonFinite`, `first_disagreeing` is -1 without one."""

    compared: BlockSums | None
    sides: tuple[SideSums | None, SideSums | None]
    identical: bool
    counts: dict[str, int]
    first_disagreeing: int


COUNTS = (
    *("golden_nan", "golden_inf", "mine_nan", "mine_inf"),
    *("common_nan", "common_inf", "new", "lost", "changed"),
)


class NativeBlock:
    """Calls the kernel with structures that are kept from block to block."""

    def __init__(self, kernel: Kernel, tolerance: ElementTolerance, slices: SliceSums | None) -> None:
        self._kernel, self._slices = kernel, slices
        self._request, self._result = KernelRequest(atol=tolerance.atol, rtol=tolerance.rtol), KernelResult()
        self._arguments = ctypes.addressof(self._request), ctypes.addressof(self._result)

    def sums(self, golden: torch.Tensor, mine: torch.Tensor, totals: Totals, start: int) -> NativeSums | None:
        """Sum a block of at least one element, from the flat position `start`.

        `None` for types, layouts and values that the kernel does not take.
        """
        request, elements = self._request, golden.numel()
        for side in (golden, mine):
            if side.dtype not in TYPES or not side.is_cpu or not side.is_contiguous() or side.is_neg():
                return None
        request.golden, request.mine = golden.data_ptr(), mine.data_ptr()
        request.golden_type, request.mine_type = TYPES[golden.dtype], TYPES[mine.dtype]
        request.elements = request.channels = elements
        if self._slices is not None:
            rows, columns = self._slices.emptied(start, elements)
            request.rows, request.columns = rows.ctypes.data, columns.ctypes.data
            request.channels = columns.shape[1]
        return self._read(totals) if self._kernel(*self._arguments) else None

    def _read(self, totals: Totals) -> NativeSums:
        found = self._result
        sides = (
            SideSums(found.golden_count, found.golden_max, found.golden_min, found.golden_total),
            SideSums(found.mine_count, found.mine_max, found.mine_min, found.mine_total),
        )
        return NativeSums(
            _block_sums(found, totals) if found.compared else None,
            (sides[0] if sides[0].count else None, sides[1] if sides[1].count else None),
            bool(found.identical),
            {}
            if found.compared == self._request.elements
            else {name: getattr(found, name) for name in COUNTS},
            found.first_disagreeing,
        )


def _block_sums(found: KernelResult, totals: Totals) -> BlockSums:
    block = BlockSums(
        compared=found.compared,
        golden=found.golden,
        mine=found.mine,
        difference=found.difference,
        golden_squared=found.golden_squared,
        mine_squared=found.mine_squared,
        golden_mine=found.golden_mine,
        golden_difference=found.golden_difference,
        difference_squared=found.difference_squared,
        absolute=found.absolute,
        golden_peak=found.golden_peak,
        peak=found.peak,
        peak_at=found.peak_at if found.peak > totals.peak else -1,
        relative=found.relative,
        relative_peak=found.relative_peak,
        scaled_peak=found.scaled_peak,
        near_zero=found.near_zero,
        beyond=found.beyond,
        divergence=BlockDivergence(
            found.weight, found.first, found.curved, found.scale, found.curved_scale, found.center
        ),
    )
    if totals.floor(found.golden_peak) and found.golden_peak <= NEAR_ZERO:
        # The kernel saw this block alone, in which nothing is larger.
        block.relative = block.relative_peak = 0.0
        block.near_zero = block.compared
    return block
