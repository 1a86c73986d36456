"""One block in float32 arithmetic: the fast path, for finite values of ordinary size.

Products and sums of a block of float32 values stay within about 1e-7 of the truth because torch sums
pairwise; blocks are added in float64. NumPy does the elementwise work (one thread, no dispatch cost),
torch the conversions (it knows bf16 and fp8) and the sums (it is faster at them).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from .divergence import BlockDivergence
from .double_block import divergence_sums
from .element_tolerance import Tolerance
from .sides import Extent
from .totals import BlockSums, Totals

Floats = NDArray[np.float32]

_LARGEST = 1e15
_SMALLEST = 1e-12
"""Between these the squares, products and quotients of a block neither overflow nor lose digits."""

_CLOSE = 0.25
"""Up to this |d|^2 / |g|^2 the products with mine follow from those with d without cancellation."""

_SERIES = 0.25
"""Up to this |d| the series of expm1(d) - d is short; beyond, the block is done in float64."""

_NARROW = 10.0
"""Weights e^golden need no shift while the largest golden value is within this of zero."""

_NAMES = (
    "float16 bfloat16 float32 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz int8 uint8 int16 bool"
)
FITTING = frozenset(getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name))
"""Types whose values float32 holds exactly."""


class SingleBlock:
    """Buffers for blocks of up to `size` elements, kept from block to block."""

    def __init__(self, size: int) -> None:
        self._tensors = [torch.empty(size, dtype=torch.float32) for _ in range(5)]
        self._arrays = [tensor.numpy() for tensor in self._tensors]
        self._flags = np.empty(size, dtype=np.bool_)
        self._mine = torch.empty(0)

    def load(self, golden: torch.Tensor, mine: torch.Tensor) -> tuple[Extent, Extent] | None:
        """Take in a block of `FITTING` types; the extents of both sides.

        `None` when a value is not finite or not of ordinary size, so that float32 will not do.
        """
        n = golden.numel()
        self._mine = mine
        self._tensors[0][:n].copy_(golden)
        self._tensors[1][:n].copy_(mine)
        extents = _extent(self._arrays[0][:n]), _extent(self._arrays[1][:n])
        return extents if all(_ordinary(extent.peak) for extent in extents) else None

    def sums(
        self, extents: tuple[Extent, Extent], totals: Totals, tolerance: Tolerance, *, exact: bool
    ) -> BlockSums | None:
        """Sum the loaded block; `None` when its errors call for float64.

        `exact` asks for the count of unequal elements. Fills in the sums of the two extents.
        """
        n = extents[0].count
        g, m, d, product, absolute = (array[:n] for array in self._arrays)
        np.subtract(m, g, out=d)
        np.abs(d, out=absolute)
        peak = float(np.max(absolute))
        if not _ordinary(peak):
            return None
        golden_peak = extents[0].peak
        floor = totals.floor(golden_peak)

        golden_sum, difference_sum = self._sum(0, n), self._sum(2, n)
        absolute_sum = self._sum(4, n)
        extents[0].total, extents[1].total = golden_sum, golden_sum + difference_sum
        gg, gd, dd = self._dot(g, g), self._dot(g, d), self._dot(d, d)
        if dd <= _CLOSE * gg:
            mm, gm = gg + 2 * gd + dd, gg + gd
        else:
            # Unrelated sides: their product cancels, so it is summed in float64.
            mm, gm = self._dot(m, m), _wide_dot(g, m)
        peak_at = int(np.argmax(absolute)) if peak > totals.peak else -1

        # From here on the buffer of mine is free.
        size, allowed = m, product
        np.abs(g, out=size)
        beyond = mismatches = near_zero = 0
        if peak > tolerance.atol:
            np.multiply(size, np.float32(tolerance.rtol), out=allowed)
            np.add(allowed, np.float32(tolerance.atol), out=allowed)
            beyond = self._count(np.greater(absolute, allowed, out=self._flags[:n]))
        if exact:
            mismatches = self._count(np.greater(absolute, np.float32(0), out=self._flags[:n]))
        scaled_peak = peak
        if golden_peak > 1 and peak > totals.scaled_peak:
            np.maximum(size, np.float32(1), out=product)
            np.divide(absolute, product, out=product)
            scaled_peak = float(np.max(product))
        relative, relative_peak = 0.0, 0.0
        if float(np.min(size)) <= floor:
            near = np.less_equal(size, np.float32(floor), out=self._flags[:n])
            near_zero = self._count(near)
            np.copyto(size, np.float32(math.inf), where=near)
        if peak > 0:
            np.divide(absolute, size, out=absolute)
            relative_peak = float(np.max(absolute))
            relative = self._sum(4, n)
            if not math.isfinite(relative):
                return None
        return BlockSums(
            compared=n,
            golden=golden_sum,
            mine=golden_sum + difference_sum,
            difference=difference_sum,
            golden_squared=gg,
            mine_squared=mm,
            golden_mine=gm,
            golden_difference=gd,
            difference_squared=dd,
            absolute=absolute_sum,
            golden_peak=golden_peak,
            peak=peak,
            peak_at=peak_at,
            relative=relative,
            relative_peak=relative_peak,
            scaled_peak=scaled_peak,
            near_zero=near_zero,
            beyond=beyond,
            mismatches=mismatches,
            divergence=self._divergence(n, extents[0].max, peak, difference_sum / n, math.sqrt(dd / n)),
        )

    def _divergence(self, n: int, top: float, peak: float, mean: float, rms: float) -> BlockDivergence:
        """KL sums of the loaded block; `mean` and `rms` are those of the difference."""
        g, _, d, weights, power = (array[:n] for array in self._arrays)
        if peak > _SERIES or abs(mean) > rms / 2 > 0:
            return self._wide_divergence(n)
        scale = 0.0 if -_NARROW <= top <= _NARROW else top
        np.exp(np.subtract(g, np.float32(scale), out=weights) if scale else g, out=weights)
        weight = self._sum(3, n)
        if peak == 0:
            return BlockDivergence(weight, 0.0, 0.0, scale, scale, 0.0)
        np.multiply(weights, d, out=power)
        first, curved = self._sum(4, n), 0.0
        for order in range(2, _terms(peak) + 1):
            np.multiply(power, d, out=power)
            curved += self._sum(4, n) / math.factorial(order)
        if first * first > curved * weight:
            return self._wide_divergence(n)
        return BlockDivergence(weight, first, curved, scale, scale, 0.0)

    def _wide_divergence(self, n: int) -> BlockDivergence:
        """In float64, where d is large or mostly one common offset: float32 would lose the spread."""
        self._tensors[1][:n].copy_(self._mine)
        g, m = (array[:n].astype(np.float64) for array in self._arrays[:2])
        return divergence_sums(g, m - g)

    def _dot(self, first: Floats, second: Floats) -> float:
        np.multiply(first, second, out=self._arrays[3][: first.size])
        return self._sum(3, first.size)

    def _sum(self, buffer: int, n: int) -> float:
        return float(self._tensors[buffer][:n].sum())

    @staticmethod
    def _count(flags: NDArray[np.bool_]) -> int:
        return int(np.count_nonzero(flags))


def _extent(values: Floats) -> Extent:
    return Extent(values.size, float(np.max(values)), float(np.min(values)))


def _wide_dot(first: Floats, second: Floats) -> float:
    wide = (torch.from_numpy(side.astype(np.float64)) for side in (first, second))
    return float(torch.dot(*wide))


def _ordinary(peak: float) -> bool:
    return peak == 0.0 or _SMALLEST <= peak <= _LARGEST


def _terms(peak: float) -> int:
    """Order at which the series of expm1(d) - d for |d| <= `peak` <= 1/4 may stop.

    The first term left out, relative to d^2/2, is below 1e-8.
    """
    order = 2
    while 2 * peak ** (order - 1) / math.factorial(order + 1) > 1e-8:
        order += 1
    return order
