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
The other metrics are reported without a bound, docs/bounds.md says why.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..base.reason import Reason
from ..tensors.dtypes import by_name
from .threshold import LAYERS_BEFORE, JudgeContext, Threshold, is_narrowed
from .tolerance import CAP, SAFETY, Tolerance, coarser, scatter_of, scatter_text, tolerance

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
        return (
            Threshold("mismatches", 0.0, False, Reason("{} values are exact: indices, masks, counts", dtype)),
        )
    peak, rms = measurement.golden_max_abs, measurement.golden_rms
    if peak is None or rms is None:
        return NONFINITE
    allowed = rule_tolerance or tolerance_of(context, measurement, factor, factor_origin)
    if peak == 0:
        return (_zero(allowed), *NONFINITE)
    t = allowed.value
    scale = element_scale(rms, peak)
    what = "max|golden|" if scale == peak else f"{ELEMENT_SIGMAS}*rms(golden)"
    reason = Reason(
        "T times {} = {:.3g}: no element may leave the noise of the whole; {}", what, scale, allowed.reason
    )
    element, why = beside_neighbours(measurement, t * scale, reason)
    sized = (
        Threshold(
            "cosine_similarity",
            max(-1.0, 1 - t * t / 2 - COSINE_RESOLUTION),
            True,
            Reason("1 - T^2/2: what noise of relative size T leaves of the angle; {}", allowed.reason),
        ),
        Threshold("max_absolute_error", element, False, why),
        Threshold("relative_euclidean_distance", t, False, allowed.reason),
    )
    thresholds = (*sized, *slice_thresholds(measurement, allowed), *NONFINITE)
    if rule_tolerance is None and context.level_rows:
        return beside_layers_before(context, measurement, allowed, factor, thresholds)
    return thresholds


NONFINITE = (
    Threshold("new_nonfinite", 0.0, False, "NaN or Inf where golden is finite is never rounding"),
    Threshold("lost_nonfinite", 0.0, False, "a NaN or Inf of golden must appear in mine too"),
)
"""NaN and infinities are where golden has them."""


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
    reason = Reason(
        "{} + {:.3g} of position tables whose frequencies mine has rounded", allowed.reason, explained
    )
    return replace(allowed, value=min(CAP, allowed.value + explained), reason=reason)


def least_tolerance(measurement: Measurement, in_one_element: bool = False) -> float:
    """The T at which the bounds of finite floats just hold, that of the bias apart. An error that may be
    `in_one_element` has no bound for elements but that of the whole tensor."""
    distance, cosine = measurement.relative_euclidean_distance or 0.0, measurement.cosine_similarity
    largest = measurement.max_absolute_error or 0.0
    if largest <= BESIDE_OTHERS * (measurement.slices.neighbour_error or 0.0):
        largest = 0.0
    scale = element_scale(measurement.golden_rms or 0.0, measurement.golden_max_abs or 0.0)
    scale = max(scale, golden_norm(measurement)) if in_one_element else scale
    angle = math.sqrt(2 * max(0.0, 1 - (1.0 if cosine is None else cosine) - COSINE_RESOLUTION))
    return max(distance, angle, largest / scale if scale else 0.0, needed_tolerance(measurement))


def by_tolerance(
    context: JudgeContext, measurement: Measurement, t: float, reason: str
) -> tuple[Threshold, ...]:
    """The default thresholds of floats that follow from this T; `reason` says where it comes from."""
    allowed = Tolerance.stated(t, context.computed_types(measurement), reason)
    return derived(context, measurement, rule_tolerance=allowed)


def _rows(measurement: Measurement) -> int | None:
    """The number of rows; `None` for what has none: vectors, and tensors without elements."""
    return math.prod(measurement.shape[:-1]) or None if len(measurement.shape) > 1 else None


def golden_norm(measurement: Measurement) -> float:
    """The L2 norm of golden's values."""
    return (measurement.golden_rms or 0.0) * math.sqrt(math.prod(measurement.shape))


def element_scale(rms: float, peak: float) -> float:
    """The factor of T in the bound of one element: max(8 * rms, max|golden|)."""
    # Near the largest float64 the product overflows, and an infinite bound would mean none.
    return min(max(ELEMENT_SIGMAS * rms, peak), sys.float_info.max)


def _zero(allowed: Tolerance) -> Threshold:
    fmt = allowed.format
    return Threshold(
        "max_absolute_error",
        fmt.smallest_normal,
        False,
        Reason(
            "golden is all zero, so nothing is relative to it: the smallest normal {} is the only "
            "value that flushing to zero can hide",
            fmt.name,
        ),
    )


# Bounds of single rows and channels, and of the bias: what T of the whole tensor does not see.
#
# With T of `tolerance.py`, over rows and channels (`metrics/pair_sums.py`), of which there are at least 8
# each:
#
#     typical_row_error, bulk_error   <= 2 T
#     worst_row_error                 <= max(min(4 T, max(1/2, 2 T)), 16 * d) * exp(3.72 / sqrt(channels))
#     worst_channel_error             <= the same over channels, * exp(3.72 / sqrt(rows))
#     bias                            <= u + sqrt(K) * a + 4 * its standard error + r^2 / 2
#
# * T bounds a norm in which a few large rows or channels count for all. The others may differ from the whole
#   by the safety factor 2 of T once more, typically. The worst may by that twice, or by twice as much beyond
#   the worst tenth as an element may beyond the whole (8). A zeroed row has an error of 1, beyond 1/2.
# * Few elements scatter as they do in T.
# * Rounding errors are nearly orthogonal to golden, so their bias is far below u, the unit roundoff of the
#   coarser dtype, at any depth. One rounding that goes in one direction leaves up to u. 4 standard errors are
#   exceeded once in 15,000 tensors. Errors of size r turn a vector, and one of the same norm loses r^2/2.


LARGEST = SAFETY * CAP
"""The bound of a row that follows from a derived T ends here: a zeroed row has an error of 1."""
ELEMENT_SIGMAS = 8
"""Standard deviations that one normal value in 8 * 10^14 exceeds, more than any tensor has."""
BESIDE_OTHERS = SAFETY * ELEMENT_SIGMAS
"""Factor of the error of its neighbours by which an element, or a row, may be off."""
DEVIATIONS = 4


def needed_tolerance(measurement: Measurement) -> float:
    """The T at which the bounds of rows and channels just hold, that of the bias apart."""
    slices = measurement.slices
    if slices.bias is None:
        return 0.0
    channels = measurement.shape[-1]
    needs = [(slices.typical_row_error or 0.0) / SAFETY, (slices.bulk_error or 0.0) / SAFETY]
    for worst, decile, elements in (
        (slices.worst_row_error, slices.row_error_p90, channels),
        (slices.worst_channel_error, slices.channel_error_p90, measurement.numel // channels),
    ):
        error = (worst or 0.0) / scatter_of(elements)
        if error > BESIDE_OTHERS * (decile or 0.0):
            needs.append(error / SAFETY / (SAFETY if error <= LARGEST else 1.0))
    return max(needs)


def needed_rounding(measurement: Measurement) -> float:
    """The rounding of one operation at which the bound of the bias just holds."""
    slices = measurement.slices
    if slices.bias is None:
        return 0.0
    return max(0.0, abs(slices.bias) - _deviation_and_turn(measurement))


def slice_thresholds(measurement: Measurement, allowed: Tolerance) -> tuple[Threshold, ...]:
    """The bounds of the rows and channels of float tensors; none for tensors with too few of either."""
    slices = measurement.slices
    if slices.bias is None:
        return ()
    channels = measurement.shape[-1]
    rows = measurement.numel // channels
    typical, bulk = _twice(allowed.value)
    return (
        _worst("row", slices.row_error_p90, channels, allowed.value),
        typical,
        _worst("channel", slices.channel_error_p90, rows, allowed.value),
        bulk,
        _bias(measurement, allowed),
    )


@functools.lru_cache(maxsize=4096)  # most tensors of a dump are of few shapes and depths
def _twice(t: float) -> tuple[Threshold, Threshold]:
    """The bounds of a typical row and of most channels."""
    bound = SAFETY * t
    of_rows = Reason("2 T = {:.3g}: half of the rows may not be further off", bound)
    of_bulk = Reason("2 T = {:.3g}: channels that are not golden's largest may not be further off", bound)
    return Threshold("typical_row_error", bound, False, of_rows), Threshold(
        "bulk_error", bound, False, of_bulk
    )


def beside_neighbours(measurement: Measurement, bound: float, reason: str) -> tuple[float, str]:
    """The bound of the largest error, and why: the one given, or what its row or channel allows it."""
    neighbours = measurement.slices.neighbour_error or 0.0
    if BESIDE_OTHERS * neighbours <= bound:
        return bound, reason
    neighbour_reason = Reason(
        "{:g} times the error {:.3g} of the rest of its row or channel", BESIDE_OTHERS, neighbours
    )
    return BESIDE_OTHERS * neighbours, Reason("{}; by itself {}", neighbour_reason, reason)


def _worst(what: str, ninth_decile: float | None, elements: int, t: float) -> Threshold:
    """The bound of the worst row or channel, which has that many elements."""
    by_t, of_t = _worst_by_t(what, elements, t)
    by_decile = BESIDE_OTHERS * (ninth_decile or 0.0)
    if by_decile <= by_t:
        return of_t
    scatter = scatter_of(elements)
    reason = Reason(
        "{:g} times {:.3g}, which nine of ten {}s stay within, times {:.3g} for the scatter of {} elements",
        BESIDE_OTHERS,
        ninth_decile,
        what,
        scatter,
        elements,
    )
    return Threshold(f"worst_{what}_error", by_decile * scatter, False, reason)


@functools.lru_cache(maxsize=4096)
def _worst_by_t(what: str, elements: int, t: float) -> tuple[float, Threshold]:
    """The bound of the worst row or channel by T, without and with its scatter."""
    scatter = scatter_of(elements)
    by_t = min(SAFETY**2 * t, max(LARGEST, SAFETY * t))
    reason = Reason(
        "min(4 T, max(1/2, 2 T)) = {:.3g}, times {:.3g} for the scatter of {} elements",
        by_t,
        scatter,
        elements,
    )
    return by_t, Threshold(f"worst_{what}_error", by_t * scatter, False, reason)


def _bias(measurement: Measurement, allowed: Tolerance) -> Threshold:
    distance, deviation = measurement.relative_euclidean_distance or 0.0, measurement.slices.bias_deviation
    reason = Reason(
        "{:.3g} for one rounding to {}, + {} standard errors "
        "of {:.2g}, + r^2/2 of r = {:.2g}: other rounding has no direction",
        allowed.rounding,
        allowed.format.name,
        DEVIATIONS,
        deviation or 0.0,
        distance,
    )
    return Threshold("bias", allowed.rounding + _deviation_and_turn(measurement), False, reason)


# Bounds of rows from the layers before, in the run itself (`noise.along_depth`):
#
#     typical_row_error, last_row_error   <= min(2 T, 4 * max(level, u + sqrt(K) * a) * exp(3.72 / sqrt(n)))
#     relative_euclidean_distance         <= min(T, the same), of the single token of a decode step
#
# with n elements, and where rows are tokens: as many as the outputs of layers have. The bias may be as far
# off as those of the same tensor in the layers before scatter, where that is more than its bound, up to T.
# The first eight layers have their own bound alone, so that what is wrong in all layers shows there.
#
# 4 are the two safety factors of a typical row by T: T is twice the noise, and such a row may have twice T.
# The bound is never below one rounding with both. Attention weights have a row for each head, and what
# rounding does to these is not smooth; nor is what it does to the first token, which a prompt of one token
# is. `benchmarks/layers_before.py` prints what right runs have.


def beside_layers_before(
    context: JudgeContext,
    measurement: Measurement,
    allowed: Tolerance,
    factor: float,
    thresholds: Sequence[Threshold],
) -> tuple[Threshold, ...]:
    """The thresholds; those of rows that are tokens are not above what the layers before show."""
    by_metric = {threshold.metric: threshold for threshold in thresholds}
    if _rows(measurement) != context.level_rows or is_zero(measurement):
        return tuple(thresholds)
    for metric, level, elements in _levels(context, measurement):
        highest = by_metric.get(metric, by_metric["relative_euclidean_distance"]).bound
        highest *= SAFETY if metric == "last_row_error" else 1.0
        times = SAFETY**2 * scatter_of(elements)
        bound = times * max(factor * level, allowed.rounding)
        if bound < highest:
            reason = Reason(LAYERS_BEFORE, SAFETY**2 * factor, level, scatter_text(elements))
            if factor * level < allowed.rounding:
                reason = Reason("{:g} roundings, more than {}", SAFETY**2, reason)
            by_metric[metric] = Threshold(metric, bound, False, reason)
    bias, scatter = by_metric.get("bias"), min(factor * (context.level_bias or 0.0), allowed.value)
    if bias is not None and bias.bound < scatter:
        reason = Reason(
            "{:.3g} that biases of the layers before scatter by, more than {}", scatter, bias.reason
        )
        by_metric["bias"] = bias._replace(bound=scatter, reason=reason)
    return tuple(by_metric.values())


def _levels(context: JudgeContext, measurement: Measurement) -> Iterator[tuple[str, float, int]]:
    """The metrics that a level is known for, that level, and the elements that they are of."""
    of_typical, of_last = context.level_typical_row, context.level_last_row
    if measurement.slices.typical_row_error is not None and of_typical:
        yield "typical_row_error", of_typical, measurement.numel
    if measurement.slices.last_row_error is not None and of_last:
        yield "last_row_error", of_last, measurement.numel // measurement.shape[-2]
    if context.level_rows == 1 and context.step not in (0, "warmup") and of_last:
        yield "relative_euclidean_distance", of_last, measurement.numel


def _deviation_and_turn(measurement: Measurement) -> float:
    distance, deviation = measurement.relative_euclidean_distance or 0.0, measurement.slices.bias_deviation
    return DEVIATIONS * (deviation or 0.0) + distance * distance / 2
