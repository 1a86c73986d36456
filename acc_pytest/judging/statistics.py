"""Judging tensors of which only max, min, mean, l2norm or l1norm were dumped.

With g = golden, m = mine, T the tolerance of `tolerance.py` and P the printing error of a dump that
writes six decimals (5e-7 a side), two tensors within the default thresholds cannot leave these bounds:

    |max m - max g|, |min m - min g| <= E + P    E = T * max(8 * rms(g), max|g|), the element bound
    |mean m - mean g|                <= T * rms(g) + P    the mean error is at most the rms error
    | ||m|| - ||g|| | / ||g||        <= T + P / ||g||     triangle inequality
    | |m|_1 - |g|_1 | / |g|_1        <= T * rms(g) / mean|g| + P / |g|_1    as |e|_1 <= sqrt(n) * ||e||

so statistics never fail where the full tensors would pass. They see less: passing is no proof. T is that of
the noise run where one is known.
Writers that compute mean and norm in the dtype of the tensor add its rounding R: T + R in the last two.
Those that print few digits add the rounding D of these: E + D * max|g| in the first, T + D in the others.
rms(g) is l2norm / sqrt(n); where no l2norm is stated, rms(g) / mean|g| is that of normally
distributed numbers, sqrt(pi / 2). The relative errors of max, min and mean have
no bound: they grow without limit where the statistic is near zero. Integers: all four absolute errors are
bounded by P alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..base.reason import Reason
from ..errors import Incomparable
from ..metrics.measurement import STATISTICS, STATISTICS_METRICS, TENSOR_METRICS
from ..metrics.totals import NEAR_ZERO
from ..tensors.dtypes import by_name
from ..tensors.header import Statistics
from .derive import ELEMENT_SIGMAS
from .standards import DEFAULT, THREE_WAY, Adjustment, Standard
from .standards.three_way import by_noise
from .threshold import OF_STANDARD, JudgeContext, Threshold, ThresholdRule
from .thresholds import factor_of, in_order, matching_rules, overlay, refuse_blind
from .tolerance import tolerance
from .verdict import Check, Judgement, verdict_of

PRINTED = 1e-6
"""Half a unit of the sixth decimal on each side: the probe prints statistics with `%f`."""


NORMAL_SPREAD = math.sqrt(math.pi / 2)
"""Root mean square by mean absolute value of normally distributed numbers."""


@dataclass(frozen=True, slots=True)
class StatisticsMeasurement:
    """Differences of the statistics of two tensors of `numel` elements.

    `values` maps `{max,min,mean,l2norm,l1norm}_stat_{absolute,relative}_error` to the error, for the
    statistics both sides state. `rounding` is by how much mean and l2norm may be off in relation to the rms
    and the norm, because the writers rounded them; `digits` is by how much all may be, because they were
    printed.
    """

    numel: int
    golden_dtype: str
    mine_dtype: str
    golden: Statistics
    values: Mapping[str, float]
    rounding: float = 0.0
    digits: float = 0.0


def measure_statistics(
    golden: Statistics, mine: Statistics, *, numel: int, golden_dtype: str, mine_dtype: str
) -> StatisticsMeasurement:
    """Compare what two dumps state of tensors of `numel` elements (dtypes by name).

    The errors are those of `metrics.statistics`. Raises `Incomparable` when both sides state none in common.
    """
    values = {name: value for name, value in statistics_errors(golden, mine).items() if value is not None}
    if not values:
        raise Incomparable(
            "no statistic (max, min, mean, l2norm, l1norm) is in both dumps (N/A), "
            "so there is nothing to compare"
        )
    rounding = golden.rounding + mine.rounding
    digits = golden.digits + mine.digits
    return StatisticsMeasurement(numel, golden_dtype, mine_dtype, golden, values, rounding, digits)


def thresholds_for_statistics(
    context: JudgeContext,
    measurement: StatisticsMeasurement,
    rules: Sequence[ThresholdRule] = (),
    standard: Standard = DEFAULT,
) -> tuple[Threshold, ...]:
    """The thresholds of a statistics pair, for the statistics that both sides state.

    They are those of the standard `default`, or of `three-way` where that is `standard`; the others bound
    elements, which statistics do not have. `rules` as for `thresholds_for`; only their bounds on statistics
    metrics count here.
    """
    standard = standard if standard is THREE_WAY else DEFAULT
    dtypes = (measurement.golden_dtype, measurement.mine_dtype)
    matching = matching_rules(context, dtypes, rules)
    adjustment = Adjustment(*factor_of(matching))
    chosen = {
        t.metric: t._replace(reason=Reason(OF_STANDARD, standard.name, t.reason))
        for t in _derived(context, measurement, adjustment, standard)
        if t.metric in measurement.values
    }
    absent = STATISTICS_METRICS.keys() - measurement.values.keys()
    overlay(chosen, matching, skip=TENSOR_METRICS.keys() | absent)
    refuse_blind(chosen, matching)
    return in_order(chosen.values())


def judge_statistics(measurement: StatisticsMeasurement, thresholds: Sequence[Threshold]) -> Judgement:
    """The verdict of a statistics pair; its sentence says that only statistics were compared."""
    checks = [Check.of(threshold, measurement.values.get(threshold.metric)) for threshold in thresholds]
    judgement = verdict_of(checks, measurement.numel)
    return replace(judgement, sentence=Reason("{} (statistics only)", judgement.sentence))


def _derived(
    context: JudgeContext, measurement: StatisticsMeasurement, adjustment: Adjustment, standard: Standard
) -> tuple[Threshold, ...]:
    dtypes = measurement.golden_dtype, measurement.mine_dtype
    if all(by_name(dtype).format is None for dtype in dtypes):
        reason = Reason("{} values are exact; {:g} is the printing error of six decimals", dtypes[0], PRINTED)
        return tuple(Threshold(f"{s}_stat_absolute_error", PRINTED, False, reason) for s in STATISTICS)
    t = tolerance(
        *dtypes,
        depth=context.depth,
        length=context.length,
        factor=adjustment.factor,
        factor_origin=adjustment.origin,
        elements=measurement.numel,
        computed_in=context.computed_in,
    )
    g = measurement.golden
    norm, rms, peak = _sizes(g, measurement.numel)
    largest = 0.0
    if standard is THREE_WAY:
        t, largest = by_noise(context, dtypes, measurement.numel, (rms, peak), t, adjustment)
    digits = measurement.digits
    off = t.value + measurement.rounding + digits
    element = max(largest, t.value * max(ELEMENT_SIGMAS * rms, peak)) + PRINTED + digits * peak
    extremum_note, computed_note = _writing(measurement)
    extremum = Reason("T * max({}*rms(golden), max|golden|) {}; {}", ELEMENT_SIGMAS, extremum_note, t.reason)
    mean = Reason("T * rms(golden), which no mean error can exceed, {}; {}", computed_note, t.reason)
    bounds: list[tuple[str, float, str]] = [
        ("max_stat_absolute_error", element, extremum),
        ("min_stat_absolute_error", element, extremum),
        ("mean_stat_absolute_error", off * rms + PRINTED, mean),
    ]
    if norm:
        bounds.append(
            ("l2norm_stat_relative_error", off + PRINTED / norm, Reason("{} {}", t.reason, computed_note))
        )
    elif norm == 0:
        reason = Reason("golden is all zero; {:g} is printing", PRINTED)
        bounds.append(("l2norm_stat_absolute_error", PRINTED, reason))
    bounds += _of_sums(g, norm, measurement.numel, t.value, Reason("{} {}", t.reason, computed_note))
    return tuple(Threshold(metric, bound, False, reason) for metric, bound, reason in bounds)


def _sizes(golden: Statistics, numel: int) -> tuple[float | None, float, float]:
    """The norm of golden where it is known, its root mean square and its largest magnitude."""
    ends = (golden.max, golden.min)
    peak = max((abs(end) for end in ends if end is not None and math.isfinite(end)), default=0.0)
    norm = golden.l2norm if golden.l2norm is not None and math.isfinite(golden.l2norm) else None
    return norm, peak if norm is None else norm / math.sqrt(max(1, numel)), peak


def _writing(measurement: StatisticsMeasurement) -> tuple[str, str]:
    """The addends of the bounds for writing, in words: of extrema, and of computed statistics as well."""
    printed = Reason("plus {:g} for printing six decimals", PRINTED)
    if measurement.digits:
        printed = Reason("plus {:.2g} because few digits were printed, {}", measurement.digits, printed)
    if not measurement.rounding:
        return printed, printed
    kinds = " and ".join(dict.fromkeys((measurement.golden_dtype, measurement.mine_dtype)))
    return printed, Reason(
        "plus {:.2g} because it was computed in {}, {}", measurement.rounding, kinds, printed
    )


def _of_sums(
    golden: Statistics, norm: float | None, numel: int, t: float, reason: str
) -> list[tuple[str, float, str]]:
    """The bound on the sum of absolute values, where golden states one."""
    total = golden.l1norm
    if total is None:
        return []
    if total == 0 or not math.isfinite(total):
        kind = "is all zero" if total == 0 else "has NaN or Inf, and so must mine"
        return [("l1norm_stat_absolute_error", PRINTED, Reason("golden {}; {:g} is printing", kind, PRINTED))]
    spread, how = NORMAL_SPREAD, "its value for normally distributed numbers"
    if norm:
        spread, how = math.sqrt(max(1, numel)) * norm / total, "of golden"
    bound = t * spread + PRINTED / total
    return [
        (
            "l1norm_stat_relative_error",
            bound,
            Reason("T * {:.3g} (rms / mean |golden|, {}); {}", spread, how, reason),
        )
    ]


# Errors between two tensors of which only statistics were dumped.


def statistics_errors(golden: Statistics, mine: Statistics) -> dict[str, float | None]:
    """`{max,min,mean,l2norm,l1norm}_stat_{absolute,relative}_error`, in column order.

    Absolute: |m - g|. Relative: |m - g| / max(|g|, 2^-23). `None` where a side does not state the
    statistic. Equal infinities, or NaN on both sides, differ by 0; any other non-finite value by
    infinity.
    """
    errors: dict[str, float | None] = {}
    for name in STATISTICS:
        g, m = getattr(golden, name), getattr(mine, name)
        absolute = relative = None
        if g is not None and m is not None:
            absolute = _distance(float(g), float(m))
            relative = absolute / max(abs(g), NEAR_ZERO) if 0 < absolute < math.inf else absolute
        errors[f"{name}_stat_absolute_error"] = absolute
        errors[f"{name}_stat_relative_error"] = relative
    return errors


def _distance(golden: float, mine: float) -> float:
    if golden == mine or (math.isnan(golden) and math.isnan(mine)):
        return 0.0
    if not (math.isfinite(golden) and math.isfinite(mine)):
        return math.inf
    return abs(mine - golden)
