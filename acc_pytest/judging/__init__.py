"""Thresholds and verdicts: what two right computations may differ by, and whether they do."""

from __future__ import annotations

from .rules import in_precedence, rule_from_hook, rule_from_marker, rule_from_table
from .statistics import (
    StatisticsMeasurement,
    judge_statistics,
    measure_statistics,
    thresholds_for_statistics,
)
from .threshold import Bound, JudgeContext, Match, Threshold, ThresholdRule
from .thresholds import thresholds_for
from .verdict import Check, Judgement, judge

__all__ = [
    "Bound",
    "Check",
    "JudgeContext",
    "Judgement",
    "Match",
    "StatisticsMeasurement",
    "Threshold",
    "ThresholdRule",
    "in_precedence",
    "judge",
    "judge_statistics",
    "measure_statistics",
    "rule_from_hook",
    "rule_from_marker",
    "rule_from_table",
    "thresholds_for",
    "thresholds_for_statistics",
]
