"""One block in float64 arithmetic: any dtype, any size of value, the positions left after NaN and Inf.

Values whose squares would leave the range of float64 are scaled by a power of two first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .measurement import ElementTolerance
from .pair_sums import BlockResult, SideSums, SliceSums
from .totals import BlockDivergence, BlockSums, floor_of

_PLAIN_EXPONENT = 400
"""Largest |exponent| of values whose squares, summed over any tensor, stay inside float64."""

_STEEP = 30.0
"""Beyond this d, e^d may overflow beside a small weight, so both exponents are added first."""


def double_sums(golden: Values, mine: Values, tolerance: ElementTolerance) -> BlockSums:
    """Sum a block of at least one element, all finite."""
    g, m, d = golden.wide, mine.wide, difference(mine, golden)
    if not d.any():
        return _equal_sums(g)
    size, error = _modulus(g), _modulus(d)
    golden_peak, peak = float(size.max()), float(error.max())
    g_exp, m_exp, d_exp = _exponent(golden_peak), _exponent(float(_modulus(m).max())), _exponent(peak)
    gs, ms, ds = _scaled(g, g_exp), _scaled(m, m_exp), _scaled(d, d_exp)

    near = size <= floor_of(golden_peak)
    relative = error / np.where(near, math.inf, size)
    beyond = error > tolerance.atol + tolerance.rtol * size
    return BlockSums(
        compared=size.size,
        golden=float(gs.sum()),
        mine=float(ms.sum()),
        difference=float(ds.sum()),
        golden_squared=_dot(gs, gs),
        mine_squared=_dot(ms, ms),
        golden_mine=_dot(gs, ms),
        golden_difference=_dot(gs, ds),
        difference_squared=_dot(ds, ds),
        absolute=float(_scaled(error, d_exp).sum()),
        golden_peak=golden_peak,
        peak=peak,
        peak_at=int(error.argmax()),
        relative=float(relative.sum()),
        relative_peak=float(relative.max()),
        scaled_peak=float((error / np.maximum(size, 1.0)).max()),
        near_zero=int(np.count_nonzero(near)),
        beyond=int(np.count_nonzero(beyond)),
        mismatches=int(np.count_nonzero(error)),
        divergence=None if np.iscomplexobj(g) else divergence_sums(g, d),
        golden_exponent=g_exp,
        mine_exponent=m_exp,
        difference_exponent=d_exp,
    )


def _equal_sums(g: Wide) -> BlockSums:
    """The sums of a block that is the same on both sides."""
    size = _modulus(g)
    golden_peak = float(size.max())
    exponent = _exponent(golden_peak)
    gs = _scaled(g, exponent)
    total, squared = float(gs.sum()), _dot(gs, gs)
    scale = float(g.real.max())
    return BlockSums(
        compared=size.size,
        golden=total,
        mine=total,
        difference=0.0,
        golden_squared=squared,
        mine_squared=squared,
        golden_mine=squared,
        golden_difference=0.0,
        difference_squared=0.0,
        absolute=0.0,
        golden_peak=golden_peak,
        peak=0.0,
        peak_at=0,
        near_zero=int(np.count_nonzero(size <= floor_of(golden_peak))),
        divergence=None
        if np.iscomplexobj(g)
        else BlockDivergence(float(np.exp(g - scale).sum()), 0.0, 0.0, scale, scale, 0.0),
        golden_exponent=exponent,
        mine_exponent=exponent,
    )


def divergence_sums(g: Doubles, d: Doubles) -> BlockDivergence:
    """KL sums of golden and the difference, measured from its mean under softmax(golden)."""
    scale = float(g.max())
    weights = np.exp(g - scale)
    weight = float(weights.sum())
    center = float((weights * d).sum()) / weight
    d = d - center
    first, top = float((weights * d).sum()), float(d.max())
    if top <= _STEEP:
        return BlockDivergence(
            weight, first, float((weights * (np.expm1(d) - d)).sum()), scale, scale, center
        )
    shifted = g + d
    curved_scale = max(scale, float(shifted.max()))
    steep = d > _STEEP
    flat = np.where(steep, 0.0, d)
    terms = np.where(
        steep,
        np.exp(shifted - curved_scale) - np.exp(g - curved_scale) * (1 + d),
        np.exp(g - curved_scale) * (np.expm1(flat) - flat),
    )
    return BlockDivergence(weight, first, float(terms.sum()), scale, curved_scale, center)


def scaled_sum(values: Wide) -> tuple[float, int]:
    """Sum of real values as `(value, exponent)`: value * 2**exponent."""
    exponent = _exponent(float(np.abs(values).max()))
    return float(_scaled(values, exponent).sum()), exponent


def _modulus(values: Wide) -> Doubles:
    result: Doubles = np.abs(values)
    return result


def _exponent(peak: float) -> int:
    exponent = math.frexp(peak)[1] if math.isfinite(peak) else 0
    return exponent if abs(exponent) > _PLAIN_EXPONENT else 0


def _scaled(values: Wide, exponent: int) -> Doubles:
    """Real values, or real and imaginary parts side by side, times 2**-exponent."""
    components: Doubles = np.ascontiguousarray(values).view(np.float64)
    return np.ldexp(components, -exponent) if exponent else components


def _dot(first: Doubles, second: Doubles) -> float:
    # NumPy's BLAS, which `np.dot` is, would start threads of its own.
    return float(np.einsum("i,i->", first, second))


# Elements of any dtype as float64 (or complex128), and their differences without rounding.
#
# 64-bit integers do not fit a float64, so a block of them carries its upper and lower halves apart:
# `high` is a multiple of 2^32, `low` lies in [0, 2^32), both exact. The difference of two such blocks is
# exact up to 2^53 and correctly rounded beyond; cast to float32, as is often done, it would be lost.


Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Wide = NDArray[Any]
"""float64, or complex128 for complex tensors."""


@dataclass(frozen=True, slots=True)
class Values:
    """A block: `wide` is every element rounded to float64 (complex128); `low` and `high` see above."""

    wide: Wide
    high: Wide
    low: Doubles | None = None

    def pick(self, keep: NDArray[np.bool_]) -> Values:
        """The elements where `keep`."""
        low = None if self.low is None else self.low[keep]
        return Values(self.wide[keep], self.high[keep], low)


def widen(block: NDArray[Any], *, to_complex: bool) -> Values:
    """The values of a 1-D block of numbers; with `to_complex` as complex numbers."""
    if block.dtype not in (np.int64, np.uint64) or to_complex:
        array: Wide = block.astype(np.complex128 if to_complex else np.float64, copy=False)
        return Values(array, array)
    low = (block.view(np.int64) & 0xFFFFFFFF).astype(np.float64)
    high = (block >> np.array(32, block.dtype)).astype(np.float64) * 2.0**32
    return Values(high + low, high, low)


def difference(mine: Values, golden: Values) -> Wide:
    """mine - golden, rounded once."""
    upper = mine.high - golden.high
    if mine.low is None and golden.low is None:
        return upper
    lower = (0.0 if mine.low is None else mine.low) - (0.0 if golden.low is None else golden.low)
    result: Wide = upper + lower
    return result


# Blocks summed in float64: any values, and whole numbers as arrays, for which torch is not needed.


class DoubleBlocks:
    """Kernel that sums blocks in float64."""

    def __init__(self, tolerance: ElementTolerance, slices: SliceSums | None) -> None:
        self._tolerance, self._slices = tolerance, slices

    def result(self, golden: Values, mine: Values, start: int) -> BlockResult:
        """The result of a block of both sides, from the flat position `start`; `identical` is not known."""
        finite = np.isfinite(golden.wide), np.isfinite(mine.wide)
        result = BlockResult(
            start, (_side(golden.wide, finite[0]), _side(mine.wide, finite[1])), None, identical=False
        )
        keep, elements = finite[0] & finite[1], golden.wide.size
        if keep.all():
            at = np.arange(elements)
        else:
            excluded = np.flatnonzero(~keep)
            note(result, excluded, golden.wide[excluded], mine.wide[excluded])
            at = np.flatnonzero(keep)
            if not at.size:
                return result
            golden, mine = golden.pick(keep), mine.pick(keep)
        result.compared = double_sums(golden, mine, self._tolerance)
        result.compared.peak_at = int(at[result.compared.peak_at])
        if self._slices is not None:
            errors = difference(mine, golden)
            result.slices = self._slices.of_positions(start, elements, at, golden.wide, errors)
        return result


class WholeNumbers:
    """Kernel that sums blocks of whole numbers and truth values."""

    def __init__(self, tolerance: ElementTolerance) -> None:
        self._blocks = DoubleBlocks(tolerance, None)

    def result(self, golden: NDArray[Any], mine: NDArray[Any], start: int) -> BlockResult:
        """The result of a block of both sides, from the flat position `start`."""
        g, m = widen(golden, to_complex=False), widen(mine, to_complex=False)
        with np.errstate(all="ignore"):  # what overflows is looked at where it can
            result = self._blocks.result(g, m, start)
        is_same_type = golden.dtype == mine.dtype
        result.identical = is_same_type and not np.count_nonzero(golden.view(np.uint8) != mine.view(np.uint8))
        return result


def note(result: BlockResult, at: NDArray[np.int64], golden: Wide, mine: Wide) -> None:
    """Note what stands at positions that are left out, for not both sides are finite there."""
    result.counts, first = nonfinite_counts(golden, mine)
    if first >= 0:
        result.first_disagreeing = int(at[first])


def _side(values: Wide, finite: NDArray[np.bool_]) -> SideSums | None:
    values = values[finite]
    if np.iscomplexobj(values) or not values.size:
        return None
    total, exponent = scaled_sum(values)
    return SideSums(values.size, float(values.max()), float(values.min()), total, exponent)


def nonfinite_counts(golden: Wide, mine: Wide) -> tuple[dict[str, int], int]:
    """The fields of `NonFinite` of values of which at least one side is not finite.

    And the place of the first that the other side does not have, -1 without one.
    """
    g_finite, m_finite = np.isfinite(golden), np.isfinite(mine)
    g_nan, m_nan = np.isnan(golden), np.isnan(mine)
    common_nan, common_inf = g_nan & m_nan, ~g_finite & (golden == mine)
    new, lost = g_finite & ~m_finite, ~g_finite & m_finite
    changed = ~g_finite & ~m_finite & ~common_nan & ~common_inf
    flags = {
        "golden_nan": g_nan,
        "golden_inf": ~g_finite & ~g_nan,
        "mine_nan": m_nan,
        "mine_inf": ~m_finite & ~m_nan,
        "common_nan": common_nan,
        "common_inf": common_inf,
        "new": new,
        "lost": lost,
        "changed": changed,
    }
    disagreeing = new | lost | changed
    first = int(disagreeing.argmax()) if disagreeing.any() else -1
    return {name: int(np.count_nonzero(flagged)) for name, flagged in flags.items()}, first
