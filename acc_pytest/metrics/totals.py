"""Sums of the pass so far, and the metrics that follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .measurement import Moments

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


# Kullback-Leibler divergence of two flattened tensors, streamed without cancellation.
#
# With p = softmax(golden), q = softmax(mine), d = mine - golden and A = E_p[d], B = E_p[expm1(d) - d]:
#
#     KL(p || q) = log E_p[e^d] - E_p[d] = log(1 + A + B) - A
#
# KL does not change when a constant is subtracted from d; with the mean of d under p as that constant A is 0
# and B is of the size of the result, so values of 1e-15 keep their digits where differences of
# log-softmaxes drown in rounding. Blocks bring their own constant, `center`; merging two moves both to the
# mean of the union (as Chan, Golub & LeVeque merge variances, Stanford CS report 773, 1979).


_SERIES = 1e-3
"""Below this, log1p(x) - x and expm1(x) - x are summed as series: the differences would lose digits."""

_STEEP = 30.0
"""Above this shift, e^shift is carried as an exponent."""

_FLOAT_RANGE = 600.0
"""e^x and its products with sums stay inside float64 up to here."""


@dataclass(frozen=True, slots=True)
class BlockDivergence:
    """Sums over one block, weights w = e^(golden - scale), d measured from `center`.

    `weight` = sum w, `first` = sum w*d, both times e^scale; `curved` = sum w*(expm1(d) - d), times
    e^curved_scale (another scale only where e^d would overflow).
    """

    weight: float
    first: float
    curved: float
    scale: float
    curved_scale: float
    center: float


class Divergence:
    """The running sums of all blocks; `value()` is KL(golden || mine)."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._scale = 0.0
        self._center = 0.0
        self._first = 0.0
        self._curved = natural_sum()

    def add(self, block: BlockDivergence) -> None:
        """Add one block."""
        curved = natural_sum()
        curved.add(block.curved, block.curved_scale)
        if not self._weight:
            self._weight, self._scale = block.weight, block.scale
            self._center, self._first, self._curved = block.center, block.first, curved
            return
        scale = max(self._scale, block.scale)
        ours, theirs = math.exp(self._scale - scale), math.exp(block.scale - scale)
        weight, block_weight = self._weight * ours, block.weight * theirs
        first, block_first = self._first * ours, block.first * theirs
        # The new centre is the mean of both; a shift is what a side's centre lies above it.
        apart = block.center + block.first / block.weight - self._center - self._first / self._weight
        center = self._center + self._first / self._weight + apart * (block_weight / (weight + block_weight))
        shift, block_shift = self._center - center, block.center - center
        total = natural_sum()
        _move(total, self._curved, weight, first, scale, shift)
        _move(total, curved, block_weight, block_first, scale, block_shift)
        self._first = first + shift * weight + block_first + block_shift * block_weight
        self._weight, self._scale = weight + block_weight, scale
        self._center, self._curved = center, total

    def value(self) -> float | None:
        """The divergence in nats, never below 0; `None` before any block and where it is not finite."""
        if not self._weight:
            return None
        first, curved = self._first / self._weight, self._curved.value / self._weight
        gap = self._curved.exponent - self._scale if curved else 0.0
        if gap > _FLOAT_RANGE:
            # Next to e^600 the 1 + A inside the logarithm is nothing.
            result = math.log(curved) + gap - first
        else:
            result = _log1p_minus(first, curved * math.exp(gap))
        return max(result, 0.0) if math.isfinite(result) else None


def _move(
    total: ScaledSum, curved: ScaledSum, weight: float, first: float, scale: float, shift: float
) -> None:
    """Add to `total` the curved sum of a side whose d grows by `shift`.

    With s = shift: expm1(d + s) - (d + s) = e^s (expm1(d) - d) + expm1(s) d + (expm1(s) - s).
    """
    total.add(curved.value, curved.exponent + shift)
    if shift <= _STEEP:
        total.add(math.expm1(shift) * first + _curve(shift) * weight, scale)
    else:
        total.add(first + weight, scale + shift)
        total.add(-first - (1 + shift) * weight, scale)


def _curve(x: float) -> float:
    """expm1(x) - x, by its series where the difference would lose digits."""
    if abs(x) < _SERIES:
        return x * x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x / 720))))
    return math.expm1(x) - x


def _log1p_minus(first: float, curved: float) -> float:
    """log(1 + first + curved) - first."""
    x = first + curved
    if abs(x) < _SERIES:
        return curved - x * x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x / 6))))
    # E_p[e^d] > 0; rounding may leave nothing of it when mine puts no weight where golden does.
    return math.log1p(x) - first if x > -1.0 else math.nan


# Sums that neither overflow nor vanish: a float and an exponent beside it.


class ScaledSum:
    """A running sum `value * base**exponent` for base 2 or e; terms may carry any exponent."""

    __slots__ = ("_power", "exponent", "value")

    def __init__(self, power: Callable[[float], float], value: float = 0.0, exponent: float = 0.0) -> None:
        self._power = power
        self.value = value
        self.exponent = exponent

    def add(self, value: float, exponent: float = 0.0) -> None:
        """Add `value * base**exponent`, moving to the larger exponent of the two."""
        if value == 0.0:
            return
        if self.value == 0.0:
            self.value, self.exponent = value, exponent
        elif exponent > self.exponent:
            self.value = self.value * self._power(self.exponent - exponent) + value
            self.exponent = exponent
        else:
            self.value += value * self._power(exponent - self.exponent)


def binary_sum(value: float = 0.0, exponent: float = 0.0) -> ScaledSum:
    """A sum whose exponents are powers of two, so that rescaling is exact."""
    return ScaledSum(lambda exponent: math.ldexp(1.0, int(exponent)), value, exponent)


def natural_sum() -> ScaledSum:
    """A sum whose exponents are powers of e, as in a log-sum-exp."""
    return ScaledSum(math.exp)


def as_float(total: ScaledSum) -> float:
    """The binary sum as a float; `inf` or 0 where it does not fit."""
    return _ldexp(total.value, total.exponent)


def mean(total: ScaledSum, count: int) -> float:
    """The binary sum divided by `count`."""
    return _ldexp(total.value / count, total.exponent)


def ratio(numerator: ScaledSum, denominator: ScaledSum) -> float:
    """The quotient of two binary sums; `denominator` is not zero."""
    return _ldexp(numerator.value / denominator.value, numerator.exponent - denominator.exponent)


def root(total: ScaledSum) -> ScaledSum:
    """The square root of a binary sum that is not negative."""
    odd = total.exponent % 2
    return binary_sum(math.sqrt(total.value * 2.0**odd), (total.exponent - odd) / 2)


def product(first: ScaledSum, second: ScaledSum) -> ScaledSum:
    """The product of two binary sums."""
    return binary_sum(first.value * second.value, first.exponent + second.exponent)


def _ldexp(value: float, exponent: float) -> float:
    try:
        return math.ldexp(value, int(exponent)) if exponent else value
    except OverflowError:
        return math.copysign(math.inf, value)
