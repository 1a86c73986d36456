"""One block in float64 arithmetic: any dtype, any size of value, the positions left after NaN and Inf.

Values whose squares would leave the range of float64 are scaled by a power of two first.
"""

from __future__ import annotations

import math

import numpy as np

from .divergence import BlockDivergence
from .element_tolerance import ElementTolerance
from .totals import BlockSums, floor_of
from .values import Doubles, Values, Wide, difference

_PLAIN_EXPONENT = 400
"""Largest |exponent| of values whose squares, summed over any tensor, stay inside float64."""

_STEEP = 30.0
"""Beyond this d, e^d may overflow beside a small weight, so both exponents are added first."""


def double_sums(golden: Values, mine: Values, tolerance: ElementTolerance, *, exact: bool) -> BlockSums:
    """Sum a block of at least one element, all finite; `exact` asks for the count of unequal ones."""
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
        mismatches=int(np.count_nonzero(error)) if exact else 0,
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
