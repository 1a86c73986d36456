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

The largest error may also be 16 times that of its neighbours. Rows, channels and the bias have the bounds of
`noise_slices.py`.

* 3 = 2 * 1.5. Mine may store four times as many results on the way as the noise run (an unfused graph
  against a fused one), whose errors of random sign add to sqrt(4) = 2 times as much; 1.5 is the safety
  factor. (torch._dynamo's accuracy check takes 2 to 3 of the error against float64, others 1.5 to 5.)
  Where e is the largest of several noise runs, k is 2.25 = 1.5 * 1.5: these run golden's own code, each
  operator of which rounds its result, so that mine stores twice as many at most, and are no single sample.
* exp(3.72 / sqrt(n)): e is a sample, and so is the error of mine. The logarithm of the ratio of two norms of
  n elements has a standard deviation of 1/sqrt(n), and 3.72 of them are exceeded once in 10,000 tensors. The
  larger of two noise runs is exceeded by 2.96 of them as rarely, that of three by 2.62.
  Where a few values hold the noise, n is their number, as far as the derived T allows.
* 5 instead of 3 for the largest element, a single value of each run that scatters more than a norm.
* u: whatever the noise run, the result of mine is rounded when it is stored.

A noise run in a finer dtype than mine does not show the rounding of mine, so the derived T stands where it is
larger. It stands, too, where the noise run has no counterpart of the tensor, or k times the error of what is
around it where that is known and larger. T ends at the cap of `tolerance.py`, times the factor of a rule. A
noise run that is further off itself measures nothing: the derived T stands. docs/bounds.md has the rest.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...base.reason import Reason
from ...metrics.measurement import EXACT, ElementTolerance
from ...tensors.dtypes import FloatFormat, by_name
from ..derive import (
    COSINE_RESOLUTION,
    beside_neighbours,
    element_scale,
    is_exact,
    is_zero,
    slice_thresholds,
    tolerance_of,
)
from ..threshold import JudgeContext, Threshold
from ..tolerance import CAP, CAPPED, Tolerance, coarser, scatter_of, scatter_text
from .ascend import FLOOR, RATIO_TEXT, ratio_thresholds
from .base import (
    WHOLE_NUMBERS,
    Adjustment,
    Second,
    Standard,
    derived_thresholds,
    kind_of,
    of_output,
    unknown_dtype,
)

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement


ELEMENT_RATIO = 5.0
TWICE = 2
"""Roundings of a value on its way: the result of an operator, and its sum with the residual."""
SHOWN = 16.0
"""A tensor in a fine type shows the rounding of what it was computed from, if it is off by so little a share
of it: tables that one run computes exactly, and another one from rounded frequencies, do not."""


def _thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    if context.written:
        ratios = ratio_thresholds(measurement, adjustment, "the other device")
        return of_output(measurement, *(ratios or (WHOLE_NUMBERS,)))
    if adjustment.tolerance is not None:
        return derived_thresholds(context, measurement, adjustment)
    if context.noise_error is not None and context.noise_error > CAP:
        reason = Reason(
            "the noise run itself is off by {:.3g}, beyond {:g}: it measures nothing here",
            *(context.noise_error, CAP),
        )
        context = replace(context, noise_error=None, noise_nearby=None, noise_reason=reason)
    if context.noise_error is None:
        adjustment = _by_what_is_nearby(context, measurement, adjustment)
        why = context.noise_reason or "no noise run of this tensor"
        derived = derived_thresholds(context, measurement, adjustment)
        return tuple(
            threshold._replace(reason=Reason("{}; {}", why, threshold.reason)) for threshold in derived
        )
    if is_exact(measurement):
        allowed = float(math.floor(RATIO * context.noise_mismatches))
        reason = Reason("{:g} times the {} of the noise run", RATIO, context.noise_mismatches)
        return (Threshold("mismatches", allowed, False, reason),)
    if measurement.golden_max_abs is None:
        return _counts(context)
    return (*_sized(context, measurement, adjustment), *_counts(context))


def _by_what_is_nearby(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> Adjustment:
    """With the T that the noise around this tensor asks for, where that is more than the derived one."""
    if context.noise_nearby is None or is_exact(measurement) or measurement.golden_max_abs is None:
        return adjustment
    t = tolerance_of(context, measurement, adjustment.factor, adjustment.origin)
    return replace(adjustment, tolerance=stand_in(context, t, adjustment))


def stand_in(context: JudgeContext, derived: Tolerance, adjustment: Adjustment) -> Tolerance:
    """T of a tensor that the noise run lacks: `derived`, or what the noise around it asks for, if larger."""
    noise = min(CAP, RATIO * adjustment.factor * (context.noise_nearby or 0.0))
    if noise <= derived.value:
        return derived
    text = Reason(
        "T = {:g} times the noise run's error {:.3g} around it{} = {:.3g}",
        *(RATIO, context.noise_nearby, adjustment.text, noise),
    )
    return replace(derived, value=noise, reason=Reason("{}, which is more than {}", text, derived.reason))


def _counts(context: JudgeContext) -> tuple[Threshold, ...]:
    new, lost = context.noise_new_nonfinite, context.noise_lost_nonfinite
    new_reason = Reason("as many NaN or Inf where golden has none as the noise run has: {}", new)
    lost_reason = Reason("as many NaN or Inf missing where golden has them as the noise run has: {}", lost)
    return (
        Threshold("new_nonfinite", float(new), False, new_reason),
        Threshold("lost_nonfinite", float(lost), False, lost_reason),
    )


def _sized(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> tuple[Threshold, ...]:
    """The bounds of float tensors with a finite element."""
    fmt = coarser(*context.computed_types(measurement))
    rms, peak = measurement.golden_rms or 0.0, measurement.golden_max_abs or 0.0
    sample = NoiseSample.of(context, measurement.compared, rms, peak)
    element, reason = _element(context, fmt, sample.elements, adjustment)
    if is_zero(measurement):
        reason = Reason("golden is all zero; {}, at least the smallest normal {}", reason, fmt.name)
        return (Threshold("max_absolute_error", max(element, fmt.smallest_normal), False, reason),)
    derived = tolerance_of(context, measurement, adjustment.factor, adjustment.origin)
    floor = _floor(context, fmt, rms, derived, sample)
    t = _measured(context, fmt, sample, adjustment, floor, derived)
    few, few_reason = _element(context, fmt, sample.holding, adjustment)
    if element < (few := min(few, derived.value * element_scale(rms, peak))):
        element, reason = few, Reason("{}, at most what T = {:.3g} allows", few_reason, derived.value)
    element_floor = floor.value * (element_scale(rms, peak) if floor.derived else peak)
    if element < element_floor:
        element = element_floor
        reason = Reason("{}, which allows an element more than {}", floor.reason, reason)
    element, reason = beside_neighbours(measurement, element, reason)
    return (
        Threshold(
            "cosine_similarity",
            max(-1.0, 1 - t.value * t.value / 2 - COSINE_RESOLUTION),
            True,
            Reason("1 - T^2/2: what noise of relative size T leaves of the angle; {}", t.reason),
        ),
        Threshold("max_absolute_error", element, False, reason),
        Threshold("relative_euclidean_distance", t.value, False, t.reason),
        *slices_by_noise(
            context,
            measurement,
            max(t, derived, key=lambda tolerance: tolerance.value),
            floor.value,
            adjustment.factor,
        ),
    )


def by_noise(
    context: JudgeContext,
    dtypes: tuple[str, str],
    elements: int,
    size: tuple[float, float],
    derived: Tolerance,
    adjustment: Adjustment,
) -> tuple[Tolerance, float]:
    """T, and what one element may be off by, of a tensor of which statistics alone are known.

    `size` are golden's root mean square and largest magnitude. `derived` stands in for what the noise run
    does not show.
    """
    if context.noise_error is None:
        return stand_in(context, derived, adjustment), 0.0
    fmt = coarser(*dtypes)
    sample = NoiseSample.of(context, elements, *size)
    floor = _floor(context, fmt, size[0], derived, sample)
    element, _ = _element(context, fmt, sample.holding, adjustment)
    return _measured(context, fmt, sample, adjustment, floor, derived), element


def _measured(
    context: JudgeContext,
    fmt: FloatFormat,
    sample: NoiseSample,
    adjustment: Adjustment,
    floor: _Floor,
    derived: Tolerance,
) -> Tolerance:
    """T from the error of the noise run; by fewer elements not more than the derived one."""
    t, reason = _times_noise(context, fmt, sample.elements, adjustment)
    few, few_reason = _times_noise(context, fmt, sample.holding, adjustment)
    if t < few <= derived.value:
        t, reason = few, few_reason
    elif t < derived.value < few:
        t, reason = derived.value, Reason("{}, which is less than {}", derived.reason, few_reason)
    if t < floor.value:
        t, reason = floor.value, Reason("{}, which is more than {}", floor.reason, reason)
    if t > (limit := CAP * max(1.0, adjustment.factor)):  # a rule's factor is meant
        t = limit
        reason = Reason(CAPPED, reason) if t == CAP else Reason("{}, capped at {:g}", reason, limit)
    return Tolerance(t, fmt, reason, floor.rounding)


def _times_noise(
    context: JudgeContext, fmt: FloatFormat, elements: int, adjustment: Adjustment
) -> tuple[float, str]:
    """So many times the error of the noise run as its scatter over these elements asks for."""
    runs = context.noise_runs
    scatter, times = scatter_of(elements, runs), scatter_text(elements, runs)
    error, ratio = context.noise_error or 0.0, ratio_of(context)
    t = min(ratio * scatter * adjustment.factor * error, sys.float_info.max)
    run = _run(context, fmt)
    return t, Reason(
        "T = {:g}{} times {}'s own error {:.3g}{} = {:.3g}", ratio, times, run, error, adjustment.text, t
    )


def _element(
    context: JudgeContext, fmt: FloatFormat, elements: int, adjustment: Adjustment
) -> tuple[float, str]:
    """The bound of one element by the largest error of the noise run, and why."""
    scatter, times = scatter_of(elements), scatter_text(elements)
    largest = context.noise_max_absolute_error or 0.0
    # An infinite bound would be none.
    element = min(ELEMENT_RATIO * scatter * adjustment.factor * largest, sys.float_info.max)
    run = _run(context, fmt)
    return element, Reason(
        "{:g}{} times {}'s largest error {:.3g}{}", ELEMENT_RATIO, times, run, largest, adjustment.text
    )


def _run(context: JudgeContext, fmt: FloatFormat) -> str:
    """The noise run, its type, and the rounding of mine where it has another."""
    differs = context.noise_dtype and fmt.name != context.noise_dtype
    rounding = Reason(", mine is {}", fmt.name) if differs else ""
    runs = "the noise run" if context.noise_runs == 1 else Reason("the {} noise runs", context.noise_runs)
    return Reason("{} ({}{})", runs, context.noise_dtype or "whole numbers", rounding)


@dataclass(frozen=True, slots=True)
class _Floor:
    """The least T, why, whether it is the derived one, and what one operation adds."""

    value: float
    reason: str
    derived: bool
    rounding: float


def _floor(
    context: JudgeContext, fmt: FloatFormat, rms: float, derived: Tolerance, sample: NoiseSample
) -> _Floor:
    """The rounding of mine when it is stored, or the derived T where the noise run does not show it."""
    noise = by_name(context.noise_dtype).format if context.noise_dtype else None
    if noise is None or noise.roundoff < fmt.roundoff:
        run = context.noise_dtype or "whole numbers"
        why = Reason("a noise run in {} does not show the rounding of {}", run, fmt.name)
        return _Floor(derived.value, Reason("{}: {}", why, derived.reason), True, derived.rounding)
    origin, error = by_name(context.computed_in).format, context.noise_error or 0.0
    if origin is not None and origin.roundoff > max(fmt.roundoff, SHOWN * error):
        why = Reason("a noise run that is off by {:.3g} does not show the rounding of {}", error, origin.name)
        return _Floor(derived.value, Reason("{}: {}", why, derived.reason), True, derived.rounding)
    u, text = fmt.roundoff, Reason("T = u = {:.3g}, the rounding of {}", fmt.roundoff, fmt.name)
    if 0 < rms < fmt.smallest_normal:
        u = max(u, fmt.spacing / 2 / rms)
        text = Reason("T = u = {:.3g}, the spacing of subnormal {} against rms {:.2g}", u, fmt.name, rms)
    if sample.is_few and TWICE * u < derived.value:
        u = TWICE * u
        text = Reason("T = {} u = {:.3g}: the few values that hold it are rounded twice", TWICE, u)
    return _Floor(u, text, False, derived.rounding)


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


THREE_WAY = Standard(
    "three-way",
    "a few times the error of noise runs of golden, tensor by tensor",
    _thresholds,
    _elements,
    lambda context, measurement, adjustment: RATIO_TEXT if kind_of(context) == "float" else f"100%({EXACT})",
    lambda context, has_second: Second.DEVICE if kind_of(context) == "float" else Second.NONE,
)


FEW = 0.5
"""Elements that hold the noise are few where they are so small a share of all."""


@dataclass(frozen=True, slots=True)
class NoiseSample:
    """Number of elements that were compared, and of those that hold the noise.

    Where a few large values have nearly all of golden, or of the noise, they are what scatters. Their number
    is a norm over its largest element, squared, in units of what that is for evenly spread values: 1 / (2 ln
    2n).
    """

    elements: int
    holding: int

    @classmethod
    def of(cls, context: JudgeContext, elements: int, rms: float, peak: float) -> NoiseSample:
        """The sample of golden's tensor with this root mean square and largest magnitude."""
        norm = rms * math.sqrt(elements)
        ends = (norm, peak), (norm * (context.noise_error or 0.0), context.noise_max_absolute_error or 0.0)
        counts = [_holding(elements, *end) for end in ends]
        return cls(elements, min((count for count in counts if count < FEW * elements), default=elements))

    @property
    def is_few(self) -> bool:
        """Whether a few elements hold the noise."""
        return self.holding < self.elements


def _holding(elements: int, norm: float, largest: float) -> int:
    if not 0 < largest < math.inf or not math.isfinite(norm) or elements < 1:
        return elements
    return max(1, round(min(norm / largest, elements) ** 2 * 2 * math.log(2 * elements)))


# Bounds of rows, channels and the bias from those of a noise run.
#
# With T and k of `three_way.py`, the noise run's errors of the same name and m elements of a row (of
# all last rows) or channel:
#
#     typical_row_error, bulk_error         <= k * exp(3.72 / sqrt(n)) * the noise run's
#     last_row_error                        <= k * exp(3.72 / sqrt(m / 4)) * the noise run's
#     worst_row_error, worst_channel_error  <= k * exp(s / sqrt(m)) * the noise run's
#     bias                                  <= that of `slices.py` + the noise run's
#
# never below the least T. The worst of many rows scatters less than one row does, s = 1.8 for 576 and two
# runs: where the noise run's is no further from its ninth decile than chance may bring a row of m elements,
# any of the worst tenth may be the worst. Else it is a row by itself, s = 3.72. Logits have no more
# independent errors than what they are computed from, hence m / 4. What a noise run says of the bias it adds
# to what one rounding may leave, for both may lean to one side.


RATIO, RATIO_OF_SEVERAL = 3.0, 2.25
"""Factors of the error that mine may have: of one noise run, and of the largest of several."""


def ratio_of(context: JudgeContext) -> float:
    """The factor of the noise that mine may have."""
    return RATIO if context.noise_runs < 2 else RATIO_OF_SEVERAL


def slices_by_noise(
    context: JudgeContext, measurement: Measurement, derived: Tolerance, floor: float, factor: float
) -> tuple[Threshold, ...]:
    """The bounds of a tensor's rows and channels; none for tensors with too few of either.

    Where the noise run has none of its own they follow from `derived`. `floor` is the least T, `factor` that
    of a rule.
    """
    by_t = slice_thresholds(measurement, derived)
    if context.noise_typical_row is None:
        return by_t
    measured = {threshold.metric: threshold for threshold in _slices(context, measurement, floor, factor)}
    last = [threshold for metric, threshold in measured.items() if by_t and metric == "last_row_error"]
    return tuple(
        _with_bias(threshold, context) if threshold.metric == "bias" else measured[threshold.metric]
        for threshold in (*by_t, *last)
    )


def _with_bias(threshold: Threshold, context: JudgeContext) -> Threshold:
    noise_bias = context.noise_bias or 0.0
    reason = Reason("{}, + the noise run's {:.2g}", threshold.reason, noise_bias)
    return threshold._replace(bound=threshold.bound + noise_bias, reason=reason)


def _slices(
    context: JudgeContext, measurement: Measurement, floor: float, factor: float
) -> Iterator[Threshold]:
    slices = measurement.slices
    channels = max(1, measurement.shape[-1])
    rows = max(1, measurement.numel // channels)
    runs, ratio = context.noise_runs, ratio_of(context) * factor
    for metric, noise in (
        ("typical_row_error", context.noise_typical_row),
        ("bulk_error", context.noise_bulk),
    ):
        yield _slice_bound(metric, ratio * scatter_of(measurement.compared, runs), noise, floor)
    for metric, noise, decile, elements, count in (
        ("worst_row_error", context.noise_worst_row, context.noise_row_p90, channels, rows),
        ("worst_channel_error", context.noise_worst_channel, context.noise_channel_p90, rows, channels),
    ):
        by_chance = (noise or 0.0) <= (decile or 0.0) * scatter_of(2 * elements)
        scatter = scatter_of(elements, runs, max(1, count // 10) if by_chance else 1)
        yield _slice_bound(metric, ratio * scatter, noise, floor * scatter_of(elements))
    if context.noise_last_row is not None and slices.last_row_error is not None:
        elements = measurement.numel // measurement.shape[-2] // 4
        ratio *= scatter_of(elements, runs)
        yield _slice_bound("last_row_error", ratio, context.noise_last_row, floor * scatter_of(elements))


def _slice_bound(metric: str, ratio: float, noise: float | None, floor: float) -> Threshold:
    """The bound by the noise run, not below the floor."""
    bound = min(ratio * (noise or 0.0), sys.float_info.max)  # an infinite bound would be none
    reason = Reason("{:.3g} times the noise run's {:.3g}", ratio, noise or 0.0)
    if floor > bound:
        return Threshold(metric, floor, False, Reason("the least T, more than {}", reason))
    return Threshold(metric, bound, False, reason)
