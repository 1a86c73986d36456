"""Bounds that people set themselves (`acc_threshold` markers), beside those of the standard."""

from __future__ import annotations

from collections.abc import Sequence

from ..judging.threshold import Threshold, ThresholdRule
from ..judging.verdict import value_of
from ..metrics.measurement import Measurement
from ..reporting.row import Check
from .case import Case
from .context import context_of


def matching(rules: Sequence[ThresholdRule], case: Case, dtype: str) -> list[ThresholdRule]:
    """The rules that are for this case and type, weakest first as they came."""
    context = context_of(case)
    return [rule for rule in rules if rule.match.holds(context, (dtype, dtype))]


def factor_of(rules: Sequence[ThresholdRule]) -> float:
    """By how much the standard's bound is stretched: the last rule that says so decides."""
    return next((rule.factor for rule in reversed(rules) if rule.factor is not None), 1.0)


def further_checks(rules: Sequence[ThresholdRule], measurement: Measurement) -> tuple[Check, ...]:
    """The checks of all bounds that rules set on metrics; of several for one metric the last counts."""
    found: dict[str, Check] = {}
    for rule in rules:
        for bound in rule.bounds:
            found.pop(bound.metric, None)
            if bound.value is None:
                continue
            measured = value_of(measurement, bound.metric)
            limit = Threshold(bound.metric, bound.value, bound.at_least, rule.origin)
            found[bound.metric] = Check(
                bound.metric, measured, bound.value, bound.at_least, rule.origin, limit.allows(measured)
            )
    return tuple(found.values())
