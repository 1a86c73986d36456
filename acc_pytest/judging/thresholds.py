"""The thresholds of one pair: derived defaults, then rules laid over them, the last one winning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..base.reason import Reason
from ..errors import SettingsError
from ..metrics.measurement import METRICS, STATISTICS_METRICS
from ..tensors.dtypes import by_name
from .derive import is_zero
from .standards import DEFAULT, Adjustment, Standard
from .threshold import OF_STANDARD, SET, SWITCHED_OFF, JudgeContext, Threshold, ThresholdRule
from .tolerance import Tolerance

if TYPE_CHECKING:
    from ..metrics.measurement import ElementTolerance, Measurement

_PLACES = {name: (place, name) for place, name in enumerate(METRICS)}
"""The order of metrics in reports."""
_NONE = Adjustment()


def thresholds_for(
    context: JudgeContext,
    measurement: Measurement,
    rules: Sequence[ThresholdRule] = (),
    standard: Standard = DEFAULT,
) -> tuple[Threshold, ...]:
    """The thresholds of a pair of tensors, in catalogue order; none for empty tensors.

    They are those of `standard`, whose name starts each reason, with `rules` laid over them. `rules` come
    weakest first (config files, markers, hooks); of all that match the pair, the last that names a metric
    decides it.
    Bounds on relative metrics do not apply where golden is all zero, because the default bound on the
    absolute error stands in for them there. Of an operator's output (`context.written`) rules bound further
    metrics, and a factor is all that moves the standard's own bounds.
    Raises `SettingsError` when the rules leave nothing that measures the size of an error, `Incomparable`
    when the standard needs elements counted with another tolerance (`element_tolerance`).
    """
    if measurement.empty:
        return ()
    dtypes = context.dtypes(measurement)
    matching = matching_rules(context, dtypes, rules)
    adjustment = adjustment_of(matching, dtypes)
    chosen = {
        metric: Threshold(metric, bound, is_floor, Reason(OF_STANDARD, standard.name, reason), strict)
        for metric, bound, is_floor, reason, strict in standard.thresholds(context, measurement, adjustment)
    }
    if context.written:
        further: dict[str, Threshold] = {}
        overlay(further, matching)
        return (*chosen.values(), *in_order(further.values()))
    if matching:
        has_size = any(_sizes(metric) for metric in chosen)
        # Metrics no rule can bound here: of statistics; relative to zero; of no finite element at all.
        zero = has_size and is_zero(measurement)
        skip = STATISTICS_METRICS.keys() | {name for name, kind in METRICS.items() if zero and kind.relative}
        overlay(chosen, matching, skip if has_size else METRICS.keys() - {"new_nonfinite", "lost_nonfinite"})
        if has_size:
            refuse_blind(chosen, matching)
    return in_order(chosen.values())


def element_tolerance(
    context: JudgeContext,
    dtypes: tuple[str, str],
    rules: Sequence[ThresholdRule] = (),
    standard: Standard = DEFAULT,
) -> ElementTolerance | None:
    """The tolerance that `standard` needs elements to be counted with; `None` where it counts none.

    `dtypes` are those of golden and mine by name. To be asked before the tensors are measured.
    """
    if standard.elements is None:
        return None
    return standard.elements(context, dtypes, adjustment_of(matching_rules(context, dtypes, rules), dtypes))


def matching_rules(
    context: JudgeContext, dtypes: tuple[str, str], rules: Iterable[ThresholdRule]
) -> list[ThresholdRule]:
    """The rules that are for tensors of this context and these dtypes, in order."""
    return [rule for rule in rules if rule.match.holds(context, dtypes)]


def adjustment_of(rules: Sequence[ThresholdRule], dtypes: tuple[str, str]) -> Adjustment:
    """The adjustment of a standard by the rules that match."""
    if not rules:
        return _NONE
    return Adjustment(*factor_of(rules), tolerance_of_rules(rules, dtypes))


def factor_of(rules: Iterable[ThresholdRule]) -> tuple[float, str]:
    """The factor of the last rule that has one, and where that rule was written."""
    factor, origin = 1.0, ""
    for rule in rules:
        if rule.factor is not None:
            factor, origin = rule.factor, rule.origin
    return factor, origin


def tolerance_of_rules(rules: Iterable[ThresholdRule], dtypes: tuple[str, str]) -> Tolerance | None:
    """T where a rule bounds the relative distance: that *is* T, and the bounds derived from T follow it."""
    setting = None
    for rule in rules:
        for bound in rule.bounds:
            if bound.metric == "relative_euclidean_distance":
                setting = None if bound.value is None else (bound.value, rule.origin)
    if setting is None or all(by_name(dtype).format is None for dtype in dtypes):
        return None
    value, origin = setting
    return Tolerance.stated(value, dtypes, Reason("T = {:.3g} {}", value, Reason(SET, origin)))


def overlay(chosen: dict[str, Threshold], rules: Iterable[ThresholdRule], skip: Iterable[str] = ()) -> None:
    """Let each rule replace, add or switch off thresholds in `chosen`; metrics in `skip` are left alone."""
    skipped = frozenset(skip)
    for rule in rules:
        for bound in rule.bounds:
            if bound.metric in skipped:
                continue
            if bound.value is not None:
                chosen[bound.metric] = Threshold(
                    bound.metric, bound.value, bound.at_least, Reason(SET, rule.origin)
                )
            elif bound.metric in chosen:
                worst = -math.inf if bound.at_least else math.inf
                chosen[bound.metric] = Threshold(
                    bound.metric, worst, bound.at_least, Reason(SWITCHED_OFF, rule.origin)
                )


def refuse_blind(chosen: dict[str, Threshold], rules: Iterable[ThresholdRule]) -> None:
    """Raise `SettingsError` unless some threshold measures the size of the error."""
    bounded = [metric for metric, threshold in chosen.items() if not threshold.off]
    if any(_sizes(metric) for metric in bounded):
        return
    sources = ", ".join(dict.fromkeys(rule.source for rule in rules))
    bounds = ", ".join(bounded) or "nothing"
    raise SettingsError(
        f"{sources}: bounds only {bounds}, which cannot gate: cosine similarity does not see scale or one "
        "bad row in a million, counts of NaN and Inf see nothing finite. Keep a bound on "
        "relative_euclidean_distance, max_absolute_error or another error size"
    )


def in_order(thresholds: Iterable[Threshold]) -> tuple[Threshold, ...]:
    """Thresholds in catalogue order, custom metrics last by name."""
    return tuple(sorted(thresholds, key=lambda bound: _PLACES.get(bound[0]) or (len(_PLACES), bound[0])))


def _sizes(metric: str) -> bool:
    return metric in METRICS and METRICS[metric].sizes_error
