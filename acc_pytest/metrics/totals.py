"""Sums of the pass so far, and the metrics that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .divergence import BlockDivergence, Divergence
from .measurement import Moments
from .scaled import as_float, binary_sum, mean, product, ratio, root

NEAR_ZERO = 2.0**-23
"""Golden values up to this carry no relative error, unless all of golden is that small."""

_CLOSE = 0.25
"""Up to this |d|^2 / |g|^2 the cosine is computed from d, whose rounding does not reach it."""


@dataclass(slots=True)
class BlockSums:
    """One block's sums over its compared positions.

    A sum over golden, mine or the difference is to be multiplied by 2 to the power of that side's
    exponent (twice for squares, both for products). `peak_at` is the place of the largest absolute error
    in the block, or any where a block summed before has one as large. `scaled_peak` is the largest
    |d| / max(1, |golden|), or, where it does not beat that of a block already summed, anything up to it.
    `relative` and `near_zero` are those of a tensor that is this block alone, with the floor
    `floor_of(golden_peak)`.
    """

    compared: int
    golden: float
    mine: float
    difference: float
    golden_squared: float
    mine_squared: float
    golden_mine: float
    golden_difference: float
    difference_squared: float
    absolute: float
    golden_peak: float
    peak: float
    peak_at: int
    relative: float = 0.0
    relative_peak: float = 0.0
    scaled_peak: float = 0.0
    near_zero: int = 0
    beyond: int = 0
    mismatches: int = 0
    divergence: BlockDivergence | None = None
    golden_exponent: int = 0
    mine_exponent: int = 0
    difference_exponent: int = 0


def floor_of(golden_peak: float) -> float:
    """The |golden| up to which elements of a tensor with that largest |golden| are near zero."""
    return NEAR_ZERO if golden_peak > NEAR_ZERO else 0.0


class Totals:
    """Running sums over the compared positions."""

    def __init__(self) -> None:
        self.compared = 0
        self.golden_peak = 0.0
        self.peak = 0.0
        self.peak_at = -1
        self.near_zero = 0
        self.beyond = 0
        self.mismatches = 0
        self.relative_peak = 0.0
        self.scaled_peak = 0.0
        self._relative = 0.0
        self._golden = binary_sum()
        self._mine = binary_sum()
        self._difference = binary_sum()
        self._golden_squared = binary_sum()
        self._mine_squared = binary_sum()
        self._golden_mine = binary_sum()
        self._golden_difference = binary_sum()
        self._difference_squared = binary_sum()
        self._absolute = binary_sum()
        self._divergence: Divergence | None = Divergence()

    def add(self, block: BlockSums, start: int) -> None:
        """Add the block from the flat position `start`; of equal errors the first stays."""
        g, m, d = block.golden_exponent, block.mine_exponent, block.difference_exponent
        self._add_relative(block)
        self.compared += block.compared
        self.golden_peak = max(self.golden_peak, block.golden_peak)
        self.beyond += block.beyond
        self.mismatches += block.mismatches
        self.scaled_peak = max(self.scaled_peak, block.scaled_peak)
        if block.peak > self.peak:
            self.peak, self.peak_at = block.peak, start + block.peak_at
        self._golden.add(block.golden, g)
        self._mine.add(block.mine, m)
        self._difference.add(block.difference, d)
        self._golden_squared.add(block.golden_squared, 2 * g)
        self._mine_squared.add(block.mine_squared, 2 * m)
        self._golden_mine.add(block.golden_mine, g + m)
        self._golden_difference.add(block.golden_difference, g + d)
        self._difference_squared.add(block.difference_squared, 2 * d)
        self._absolute.add(block.absolute, d)
        if block.divergence is None:
            self._divergence = None
        elif self._divergence is not None:
            self._divergence.add(block.divergence)

    def _add_relative(self, block: BlockSums) -> None:
        """The first value above `NEAR_ZERO` makes blocks near zero that have none, before and after."""
        is_large, small = self.golden_peak > NEAR_ZERO, block.golden_peak <= NEAR_ZERO
        if is_large and small:
            self.near_zero += block.compared
            return
        if not is_large and not small:
            self._relative = self.relative_peak = 0.0
            self.near_zero = self.compared
        self.near_zero += block.near_zero
        self.relative_peak = max(self.relative_peak, block.relative_peak)
        self._relative += block.relative

    def cosine(self) -> float | None:
        """Cosine of the angle; 1 for two zero tensors, 0 for one."""
        if not self.compared:
            return None
        gg, mm, dd = self._golden_squared, self._mine_squared, self._difference_squared
        if not gg.value or not mm.value:
            return 1.0 if not gg.value and not mm.value else 0.0
        along, apart = ratio(self._golden_difference, gg), ratio(dd, gg)
        if apart <= _CLOSE:
            across = max(apart - along * along, 0.0) / (1 + along) ** 2
            return 1 / math.sqrt(1 + across)
        cosine = ratio(self._golden_mine, product(root(gg), root(mm)))
        return min(max(cosine, -1.0), 1.0)

    def euclidean(self) -> float | None:
        """Relative Euclidean distance; 0 for a zero golden."""
        if not self.compared:
            return None
        difference, golden = self._difference_squared, self._golden_squared
        if not golden.value:
            return 0.0
        return as_float(
            root(binary_sum(difference.value / golden.value, difference.exponent - golden.exponent))
        )

    def divergence(self) -> float | None:
        """KL divergence; `None` for complex tensors."""
        return self._divergence.value() if self._divergence is not None else None

    def golden_rms(self) -> float | None:
        """Root mean square of golden."""
        if not self.compared:
            return None
        return as_float(root(self._golden_squared)) / math.sqrt(self.compared)

    def mean_absolute(self) -> float | None:
        """Mean of |mine - golden|."""
        return mean(self._absolute, self.compared) if self.compared else None

    def mean_error(self) -> float | None:
        """Mean of mine - golden; of the real and imaginary parts together for complex tensors."""
        return mean(self._difference, self.compared) if self.compared else None

    def mean_relative(self) -> float | None:
        """Mean of the relative error, 0 where golden is near zero."""
        return self._relative / self.compared if self.compared else None

    def moments(self) -> Moments:
        """The sums themselves."""
        return Moments(
            golden=as_float(self._golden),
            mine=as_float(self._mine),
            difference=as_float(self._difference),
            golden_squared=as_float(self._golden_squared),
            mine_squared=as_float(self._mine_squared),
            golden_times_mine=as_float(self._golden_mine),
            golden_times_difference=as_float(self._golden_difference),
            difference_squared=as_float(self._difference_squared),
            absolute_difference=as_float(self._absolute),
            relative_error=self._relative,
        )
