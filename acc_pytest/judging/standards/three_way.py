"""The standard `three-way`: mine may be a few times further from golden than another right run is.

For an operator's output the other run is a second device's, and both are held against the exact value: the
ratios of `second_golden.py`, whatever the operator, and nothing beside them. Whole numbers have to be equal.

For a pair of dumps it is a noise run: golden again, in lower precision or with another batch or device. With
e its relative distance from golden in this very tensor, n its elements and u the unit roundoff of the coarser
dtype,

    T = max(k * e, u)          k = 3 * exp(3.72 / sqrt(n))
    relative_euclidean_distance <= T
    cosine_similarity           >= 1 - T^2/2 - 1e-12
    max_absolute_error          <= max(5 * exp(3.72 / sqrt(n)) * the noise run's, u * max|golden|)
    mismatches, NaN, Inf        up to 3 times, or as many as, the noise run's

* 3 = 2 * 1.5. Mine may store four times as many results on the way as the noise run (an unfused graph
  against a fused one), whose errors of random sign add to sqrt(4) = 2 times as much; 1.5 is the safety
  factor. (torch._dynamo's accuracy check takes 2 to 3 of the error against float64, others 1.5 to 5.)
* exp(3.72 / sqrt(n)): e is a sample, and so is the error of mine. The logarithm of the ratio of two norms of
  n elements has a standard deviation of 1/sqrt(n), and 3.72 of them are exceeded once in 10,000 tensors.
* 5 instead of 3 for the largest element, a single value of each run that scatters more than a norm.
* u: whatever the noise run, the result of mine is rounded when it is stored.

A noise run in a finer dtype than mine does not show the rounding of mine, so the derived T stands where it is
larger. It stands, too, where the noise run has no counterpart of the tensor. docs/noise.md has the rest.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ...metrics.element_tolerance import EXACT, ElementTolerance
from ...tensors.dtypes import by_name
from ..derive import COSINE_RESOLUTION, element_scale, is_exact, is_zero, tolerance_of
from ..threshold import JudgeContext, Threshold
from ..tolerance import SAMPLE_SIGMAS, coarser
from .base import WHOLE_NUMBERS, Adjustment, Second, Standard, kind_of, of_output, unknown_dtype
from .default import derived_thresholds
from .second_golden import FLOOR, RATIO_WORDS, ratio_thresholds

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement

RATIO = 3.0
ELEMENT_RATIO = 5.0
_WORTH_SAYING = 1.01


def _thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    if context.written:
        ratios = ratio_thresholds(measurement, adjustment, "the other device")
        return of_output(measurement, *(ratios or (WHOLE_NUMBERS,)))
    if context.noise_error is None or adjustment.tolerance is not None:
        derived = derived_thresholds(context, measurement, adjustment)
        if adjustment.tolerance is not None:
            return derived
        why = context.noise_reason or "no noise run of this tensor"
        return tuple(replace(threshold, reason=f"{why}; {threshold.reason}") for threshold in derived)
    if is_exact(measurement):
        allowed = float(math.floor(RATIO * context.noise_mismatches))
        reason = f"{RATIO:g} times the {context.noise_mismatches} of the noise run"
        return (Threshold("mismatches", allowed, False, reason),)
    if measurement.golden_max_abs is None:
        return _counts(context)
    return (*_sized(context, measurement, adjustment), *_counts(context))


def _counts(context: JudgeContext) -> tuple[Threshold, ...]:
    new, lost = context.noise_new_nonfinite, context.noise_lost_nonfinite
    said = "as many NaN or Inf {} as the noise run has: {}"
    return (
        Threshold("new_nonfinite", float(new), False, said.format("where golden has none", new)),
        Threshold("lost_nonfinite", float(lost), False, said.format("missing where golden has them", lost)),
    )


def _sized(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> tuple[Threshold, ...]:
    """The bounds of float tensors with a finite element."""
    run = f"the noise run ({context.noise_dtype})"
    scatter = math.exp(SAMPLE_SIGMAS / math.sqrt(max(1, measurement.compared)))
    times = f"*{scatter:.3g} (scatter of {measurement.compared} elements)" if scatter >= _WORTH_SAYING else ""
    largest = context.noise_max_absolute_error or 0.0
    # An infinite bound would be none.
    element = min(ELEMENT_RATIO * scatter * adjustment.factor * largest, sys.float_info.max)
    said = f"{ELEMENT_RATIO:g}{times} times {run}'s largest error {largest:.3g}{adjustment.words}"
    if is_zero(measurement):
        fmt = coarser(measurement.golden_dtype, measurement.mine_dtype)
        said = f"golden is all zero; {said}, at least the smallest normal {fmt.name}"
        return (Threshold("max_absolute_error", max(element, fmt.smallest_normal), False, said),)
    own = context.noise_error or 0.0
    t = min(RATIO * scatter * adjustment.factor * own, sys.float_info.max)
    reason = f"T = {RATIO:g}{times} times {run}'s own error {own:.3g}{adjustment.words} = {t:.3g}"
    floor, element_floor, floor_reason = _floor(context, measurement, adjustment)
    if t < floor:
        t, reason = floor, f"{floor_reason}, which is more than {reason}"
    if element < element_floor:
        element, said = element_floor, f"{floor_reason}, which allows an element more than {said}"
    return (
        Threshold(
            "cosine_similarity",
            max(-1.0, 1 - t * t / 2 - COSINE_RESOLUTION),
            True,
            f"1 - T^2/2: what noise of relative size T leaves of the angle; {reason}",
        ),
        Threshold("max_absolute_error", element, False, said),
        Threshold("relative_euclidean_distance", t, False, reason),
    )


def _floor(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[float, float, str]:
    """The least T, the least bound of an element, and why."""
    fmt = coarser(measurement.golden_dtype, measurement.mine_dtype)
    rms, peak = measurement.golden_rms or 0.0, measurement.golden_max_abs or 0.0
    noise = by_name(context.noise_dtype).format if context.noise_dtype else None
    if noise is None or noise.roundoff < fmt.roundoff:
        t = tolerance_of(context, measurement, adjustment.factor, adjustment.origin)
        run = context.noise_dtype or "whole numbers"
        why = f"a noise run in {run} does not show the rounding of {fmt.name}"
        return t.value, t.value * element_scale(rms, peak), f"{why}: {t.reason}"
    u, said = fmt.roundoff, f"T = u = {fmt.roundoff:.3g}, the rounding of {fmt.name}"
    if 0 < rms < fmt.smallest_normal:
        u = max(u, fmt.spacing / 2 / rms)
        said = f"T = u = {u:.3g}, the spacing of subnormal {fmt.name} against rms {rms:.2g}"
    return u, u * peak, said


def _elements(
    context: JudgeContext, dtypes: tuple[str, str], adjustment: Adjustment
) -> ElementTolerance | None:
    if not context.written:
        return None
    if kind_of(context) != "float":
        return EXACT
    if context.written not in FLOOR:
        raise unknown_dtype("three-way", context)
    return ElementTolerance(10.0 * FLOOR[context.written], scale="relative")


def _requirement(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> str:
    return RATIO_WORDS if kind_of(context) == "float" else f"100%({EXACT})"


def _second(context: JudgeContext, has_other: bool) -> Second:
    return Second.DEVICE if kind_of(context) == "float" else Second.NONE


THREE_WAY = Standard(
    "three-way",
    "a few times the error of noise runs of golden, tensor by tensor",
    _thresholds,
    _elements,
    _requirement,
    _second,
)
