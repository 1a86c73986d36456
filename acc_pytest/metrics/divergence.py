"""Kullback-Leibler divergence of two flattened tensors, streamed without cancellation.

With p = softmax(golden), q = softmax(mine), d = mine - golden and A = E_p[d], B = E_p[expm1(d) - d]:

    KL(p || q) = log E_p[e^d] - E_p[d] = log(1 + A + B) - A

KL does not change when a constant is subtracted from d; with the mean of d under p as that constant A is 0
and B is of the size of the result, so values of 1e-15 keep their digits where differences of
log-softmaxes drown in rounding. Blocks bring their own constant, `center`; merging two moves both to the
mean of the union (as Chan, Golub & LeVeque merge variances, Stanford CS report 773, 1979).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .scaled import ScaledSum, natural_sum

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
