"""The default thresholds of a pair of tensors, from their dtypes and depth alone.

Float and complex tensors, with T of `tolerance.py`:

    relative_euclidean_distance <= T
    cosine_similarity           >= 1 - T^2/2 - 1e-12
    max_absolute_error          <= max(T * max(8 * rms(golden), max|golden|), 16 * neighbours)
    new_nonfinite, lost_nonfinite <= 0

and, with 8 rows and 8 channels or more, those of `slices.py`. The neighbours of the largest error are the
other errors of its row and of its channel: tokens and channels differ in what rounding does to them, so an
element may be as far off as its row and its channel are.

Golden all zero: nothing can be relative to it, so `max_absolute_error` <= the smallest normal number
of the coarser dtype. Integers and booleans: `mismatches` <= 0.
The other metrics are reported without a bound, docs/thresholds.md says why.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ..tensors.dtypes import by_name
from .slices import BESIDE_OTHERS, ELEMENT_SIGMAS, beside_neighbours, needed_tolerance, slice_thresholds
from .threshold import JudgeContext, Threshold, is_narrowed
from .tolerance import CAP, PER_LAYER, SAFETY, Tolerance, coarser, tolerance

if TYPE_CHECKING:
    from ..metrics.measurement import Measurement

COSINE_RESOLUTION = 1e-12
"""Error of a cosine in float64 sums of a billion products; matters for float64 pairs only."""


def derived(
    context: JudgeContext,
    measurement: Measurement,
    factor: float = 1.0,
    factor_origin: str = "",
    rule_tolerance: Tolerance | None = None,
) -> tuple[Threshold, ...]:
    """The default thresholds of tensors that are not empty.

    `factor` scales T and `factor_origin` says which rule asked for it; `rule_tolerance` is a rule's own T.
    """
    if is_exact(measurement):
        dtype = measurement.golden_dtype
        return (Threshold("mismatches", 0.0, False, f"{dtype} values are exact: indices, masks, counts"),)
    counts = nonfinite_thresholds()
    peak, rms = measurement.golden_max_abs, measurement.golden_rms
    if peak is None or rms is None:
        return counts
    allowed = rule_tolerance or tolerance_of(context, measurement, factor, factor_origin)
    if peak == 0:
        return (_zero(allowed), *counts)
    sized = _sized(measurement, allowed, rms, peak)
    return (*sized, *slice_thresholds(measurement, allowed), *counts)


def nonfinite_thresholds() -> tuple[Threshold, ...]:
    """NaN and infinities are where golden has them."""
    return _NONFINITE


_NONFINITE = (
    Threshold("new_nonfinite", 0.0, False, "NaN or Inf where golden is finite is never rounding"),
    Threshold("lost_nonfinite", 0.0, False, "a NaN or Inf of golden must appear in mine too"),
)


def is_exact(measurement: Measurement) -> bool:
    """Whether both sides are integers or booleans, which have no rounding to forgive."""
    return by_name(measurement.golden_dtype).format is None and by_name(measurement.mine_dtype).format is None


def is_zero(measurement: Measurement) -> bool:
    """Whether golden is zero wherever it was compared, so that nothing can be relative to it."""
    return measurement.golden_max_abs == 0


def tolerance_of(
    context: JudgeContext, measurement: Measurement, factor: float = 1.0, factor_origin: str = ""
) -> Tolerance:
    """T for this pair of tensors, of which at least one is float."""
    golden, mine = context.computed_types(measurement)
    origin = context.declared if is_narrowed(context.computed_in, context.declared) else context.computed_in
    rms = measurement.golden_rms
    tiny = rms if rms and rms < coarser(golden, mine).smallest_normal else None
    allowed = tolerance(
        golden,
        mine,
        context.depth,
        context.length,
        tiny,
        factor,
        factor_origin,
        measurement.compared,
        origin,
        None if context.written else _rows(measurement),
    )
    explained = SAFETY * context.rounded_frequencies
    if not explained:
        return allowed
    reason = f"{allowed.reason} + {explained:.3g} of position tables whose frequencies mine has rounded"
    return replace(allowed, value=min(CAP, allowed.value + explained), reason=reason)


def least_tolerance(measurement: Measurement) -> float:
    """The T at which the bounds of finite floats just hold, that of the bias apart."""
    distance, cosine = measurement.relative_euclidean_distance or 0.0, measurement.cosine_similarity
    largest = measurement.max_absolute_error or 0.0
    if largest <= BESIDE_OTHERS * (measurement.slices.neighbour_error or 0.0):
        largest = 0.0
    scale = element_scale(measurement.golden_rms or 0.0, measurement.golden_max_abs or 0.0)
    angle = math.sqrt(2 * max(0.0, 1 - (1.0 if cosine is None else cosine) - COSINE_RESOLUTION))
    return max(distance, angle, largest / scale if scale else 0.0, needed_tolerance(measurement))


def by_tolerance(
    context: JudgeContext, measurement: Measurement, t: float, reason: str
) -> tuple[Threshold, ...]:
    """The default thresholds of floats that follow from this T; `reason` says where it comes from."""
    fmt = coarser(*context.computed_types(measurement))
    return derived(
        context, measurement, rule_tolerance=Tolerance(t, fmt, reason, max(fmt.roundoff, t / PER_LAYER))
    )


def _rows(measurement: Measurement) -> int | None:
    """The number of rows; `None` for what has none: vectors, and tensors without elements."""
    return math.prod(measurement.shape[:-1]) or None if len(measurement.shape) > 1 else None


def element_scale(rms: float, peak: float) -> float:
    """The factor of T in the bound of one element: max(8 * rms, max|golden|)."""
    # Near the largest float64 the product overflows, and an infinite bound would mean none.
    return min(max(ELEMENT_SIGMAS * rms, peak), sys.float_info.max)


def _sized(measurement: Measurement, allowed: Tolerance, rms: float, peak: float) -> tuple[Threshold, ...]:
    t = allowed.value
    scale = element_scale(rms, peak)
    what = "max|golden|" if scale == peak else f"{ELEMENT_SIGMAS}*rms(golden)"
    reason = f"T times {what} = {scale:.3g}: no element may leave the noise of the whole; {allowed.reason}"
    element, why = beside_neighbours(measurement, t * scale, reason)
    return (
        Threshold(
            "cosine_similarity",
            max(-1.0, 1 - t * t / 2 - COSINE_RESOLUTION),
            True,
            f"1 - T^2/2: what noise of relative size T leaves of the angle; {allowed.reason}",
        ),
        Threshold("max_absolute_error", element, False, why),
        Threshold("relative_euclidean_distance", t, False, allowed.reason),
    )


def _zero(allowed: Tolerance) -> Threshold:
    fmt = allowed.format
    return Threshold(
        "max_absolute_error",
        fmt.smallest_normal,
        False,
        f"golden is all zero, so nothing is relative to it: the smallest normal {fmt.name} is the only "
        "value that flushing to zero can hide",
    )
