"""One block in float32 arithmetic: the fast path, for values of ordinary size and some that are not finite.

Products and sums of a block of float32 values stay within about 1e-7 of the truth because torch sums
pairwise; blocks are added in float64. NumPy does the elementwise work (one thread, no dispatch cost),
torch the conversions (it knows bf16 and fp8), the sums (`values.total`) and what it is faster at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .aligned import Buffer, Buffers
from .divergence import BlockDivergence
from .element_tolerance import ElementTolerance
from .flushing import Flushed
from .sides import SideSums
from .single_divergence import SingleDivergence
from .slices import BlockSlices, SliceSums
from .totals import BlockSums, floor_of
from .values import Floats

_LARGEST = 1e15
_SMALLEST = 1e-12
"""Between these the squares, products and quotients of a block neither overflow nor lose digits."""

_CLOSE = 0.25
"""Up to this |d|^2 / |g|^2 the products with mine follow from those with d without cancellation."""

_PLAIN = 2.0**-100
"""An atol from here on does not tell a subnormal number from 0."""

_FAR = (torch.bfloat16, torch.float32)
"""Types that have values whose squares float32 has not."""

_NAMES = (
    "float16 bfloat16 float32 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz int8 uint8 int16 bool"
)
FITTING = frozenset(getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name))
"""Types whose values float32 holds exactly."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """Positions of a block that are left out, for not both sides are finite there, and what stands there."""

    at: NDArray[np.int64]
    golden: Floats
    mine: Floats


class SingleBlock:
    """Buffers for blocks of up to `size` elements, kept from block to block.

    Of the last block, `sliced` are the sums by row and channel, where `slices` asks for them, and `excluded`
    what is not finite. `exact` asks for the count of unequal elements.
    """

    def __init__(
        self, size: int, tolerance: ElementTolerance, slices: SliceSums | None = None, *, exact: bool
    ) -> None:
        self._tolerance, self._exact, self._slices = tolerance, exact, slices
        self.sliced: BlockSlices | None = None
        self.excluded: Excluded | None = None
        self._buffers = Buffers(size)
        self._divergence = SingleDivergence(self._buffers)
        self._furthest = 0.0
        self._take(size)

    def _take(self, n: int) -> None:
        """Look at the first `n` elements of the buffers alone."""
        self._size = n
        self._views = self._buffers.first(n)
        self._flags = self._buffers.flags[:n]

    def load(self, golden: torch.Tensor, mine: torch.Tensor) -> tuple[SideSums, SideSums] | None:
        """Take in a block of `FITTING` types; extrema of both sides.

        `None` when nothing is finite on both, or a value not of ordinary size, so that float32 will not do.
        """
        if golden.numel() != self._size:
            self._take(golden.numel())
        self._mine = mine
        self._far = golden.dtype in _FAR or mine.dtype in _FAR
        g, m = self._views[:2]
        g.tensor.copy_(golden)
        m.tensor.copy_(mine)
        sides = _side_sums(g.array), _side_sums(m.array)
        self.excluded, self._golden = None, sides[0]
        if not (math.isfinite(sides[0].peak) and math.isfinite(sides[1].peak)):
            sides = self._exclude()
        return sides if _ordinary(sides[0].peak) and _ordinary(sides[1].peak) else None

    def _exclude(self) -> tuple[SideSums, SideSums]:
        """Put zeros on both sides where one is not finite; extrema of what is finite on each.

        Where nothing is finite on both, those of a side are not.
        """
        g, m = (view.array for view in self._views[:2])
        keep = np.isfinite(g) & np.isfinite(m)
        at, first = np.flatnonzero(~keep), int(keep.argmax())
        self.excluded = Excluded(at, g[at], m[at])
        for values in (g, m):
            values[at] = values[first]  # a value that is kept: extrema stay what they are
        self._golden, mine = _side_sums(g), _side_sums(m)
        g[at] = m[at] = 0
        count = self._size - at.size
        return _joined(self._golden, count, self.excluded.golden), _joined(mine, count, self.excluded.mine)

    def sums(self, sides: tuple[SideSums, SideSums], start: int, scaled_peak: float) -> BlockSums | None:
        """Sum the loaded block, which begins at the flat position `start`, and fill in both sides.

        `scaled_peak` is the largest of blocks summed before. `None` when its errors call for float64.
        """
        n = self._size - (0 if self.excluded is None else self.excluded.at.size)
        g, d, _, _ = self._views
        np.subtract(d.array, g.array, out=d.array)  # mine until then
        peak = _side_sums(d.array).peak
        if not _ordinary(peak):
            return None
        golden_sum, difference_sum = g.total(), d.total()
        sides[0].total += golden_sum
        sides[1].total += golden_sum + difference_sum
        # Beside the square of a value from _SMALLEST on a block of subnormal numbers is nothing.
        with Flushed():
            gg, gd, dd = self._products(start, peak)
            # The products with mine of unrelated sides would cancel, so they are summed.
            gm, mm = (gg + gd, gg + 2 * gd + dd) if dd <= _CLOSE * gg else self._with_mine()
        block = BlockSums(
            compared=n,
            golden=golden_sum,
            mine=golden_sum + difference_sum,
            difference=difference_sum,
            golden_squared=gg,
            mine_squared=mm,
            golden_mine=gm,
            golden_difference=gd,
            difference_squared=dd,
            absolute=0.0,
            golden_peak=self._golden.peak,
            peak=peak,
            peak_at=0,
        )
        with Flushed():
            block.divergence = self._kl_sums(block)
        # Float32 has no subnormal steps at what is not near zero.
        with Flushed(floor_of(block.golden_peak) > 0 and self._tolerance.atol >= _PLAIN):
            self._errors(block)
            return block if self._relative_errors(block, scaled_peak) else None

    def _kl_sums(self, block: BlockSums) -> BlockDivergence:
        excluded = None if self.excluded is None else self.excluded.at
        return self._divergence.sums(self._views, self._golden, self._mine, block, excluded, far=self._far)

    def _with_mine(self) -> tuple[float, float]:
        """The sums of golden*mine and mine*mine."""
        mine = self._views[2]
        mine.tensor.copy_(self._mine)
        if self.excluded is not None:
            mine.array[self.excluded.at] = 0
        return self._buffers.wide_dots(self._views[0], mine)

    def _errors(self, block: BlockSums) -> None:
        """Absolute errors, and elements beyond tolerance. From here on buffers hold |golden| and errors."""
        size, error, allowed, _ = (view.array for view in self._views)
        flags = self._flags
        # The buffer used last is used first: it is still near the core.
        np.abs(error, out=error)
        block.absolute = self._views[1].total()
        if block.peak > self._furthest:
            self._furthest, block.peak_at = block.peak, int(error.argmax())
        np.abs(size, out=size)
        self._smallest = float(np.minimum.reduce(size))
        if block.peak > self._tolerance.atol:
            np.multiply(size, np.float32(self._tolerance.rtol), out=allowed)
            np.add(allowed, np.float32(self._tolerance.atol), out=allowed)
            block.beyond = int(np.count_nonzero(np.greater(error, allowed, out=flags)))
        if self._exact:
            block.mismatches = int(np.count_nonzero(np.greater(error, np.float32(0), out=flags)))

    def _relative_errors(self, block: BlockSums, scaled_peak: float) -> bool:
        """Errors relative to |golden|; false where they do not fit float32."""
        size, error, quotient, _ = self._views
        block.scaled_peak = block.peak
        if block.golden_peak > 1 and block.peak > scaled_peak:
            torch.clamp_min(size.tensor, 1.0, out=quotient.tensor)
            np.divide(error.array, quotient.array, out=quotient.array)
            block.scaled_peak = float(np.maximum.reduce(quotient.array))
        floor = floor_of(block.golden_peak)
        if self._smallest <= floor:
            near = np.less_equal(size.array, np.float32(floor), out=self._flags)
            block.near_zero = int(np.count_nonzero(near)) - (self._size - block.compared)
            torch.threshold_(size.tensor, floor, math.inf)
        if block.peak > 0:
            np.divide(error.array, size.array, out=error.array)
            block.relative_peak = float(np.maximum.reduce(error.array))
            block.relative = error.total()
        return math.isfinite(block.relative)

    def _products(self, start: int, peak: float) -> tuple[float, float, float]:
        """The sums of g*g, g*d and d*d; `peak` is the largest |d|."""
        g, d = (view.array for view in self._views[:2])
        if self._slices is None:
            return self._product(g, g).total(), self._product(g, d).total(), self._product(d, d).total()
        channels = self._slices.width(self._size)
        if self._far:
            # A row of tiny values would vanish: golden, then the difference, has a lever.
            by_golden, by_error = _lever(self._golden.peak), _lever(peak)
            levers = 1 / np.array((by_golden**2, by_golden, by_error**2))
            g_far = np.multiply(g, np.float32(by_golden), out=self._views[3].array)
            pairs = [self._product(g_far, side).sums(channels) for side in (g_far, d)]
            d_far = np.multiply(d, np.float32(by_error), out=self._views[3].array)
            pairs.append(self._product(d_far, d_far).sums(channels))
        else:
            pairs = [self._product(*factors).sums(channels) for factors in ((g, g), (g, d), (d, d))]
        by_row, by_channel = (np.array(sums) for sums in zip(*pairs))
        if self._far:
            by_row, by_channel = by_row * levers[:, None], by_channel * levers[:, None]
        self.sliced = self._slices.of_sums(start, by_row, by_channel)
        return self.sliced.total

    def _product(self, first: Floats, second: Floats) -> Buffer:
        np.multiply(first, second, out=self._views[2].array)
        return self._views[2]


def _lever(peak: float) -> float:
    """A power of two, up to 2^100, that brings `peak` to 2^49: squares of that sum up in float32."""
    return 2.0 ** min(49 - math.frexp(peak)[1], 100) if peak else 1.0


def _side_sums(values: Floats) -> SideSums:
    return SideSums(values.size, float(np.maximum.reduce(values)), float(np.minimum.reduce(values)))


def _joined(side: SideSums, count: int, excluded: Floats) -> SideSums:
    """A side of which so many are kept, and what is finite of the others, which alone is in its sum."""
    alone = excluded[np.isfinite(excluded)]
    if not alone.size:
        return SideSums(count, side.max, side.min)
    largest, smallest = max(side.max, float(alone.max())), min(side.min, float(alone.min()))
    return SideSums(count + alone.size, largest, smallest, float(alone.sum(dtype=np.float64)))


def _ordinary(peak: float) -> bool:
    return peak == 0.0 or _SMALLEST <= peak <= _LARGEST
