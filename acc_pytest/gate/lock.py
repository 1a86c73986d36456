"""The threshold lock: what every comparison was allowed when somebody last agreed to it.

A threshold that allows a larger error than in the lock, that is off, or that is gone is loosened; the run
fails until the lock is updated with a reason. Bounds are nominal: they do not depend on the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..judging.nominal_bounds import NominalBound, nominal_bounds
from ..judging.standards import DEFAULT, Standard
from ..judging.threshold import ThresholdRule
from ..reporting.row import Row
from .baseline import PREFIX
from .gate import Gate

RESOLUTION = 1e-9
"""Relative difference of two bounds that floating point makes."""

FROM_TABLES = ("ascend", "msit", "open")
"""Standards of single operators whose bounds depend on operator and dtype, not on a second run."""

Bounds = Mapping[str, NominalBound]


@dataclass(frozen=True, slots=True)
class Change:
    """The reason for which the lock was updated, when, and by whom."""

    date: str
    user: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lock:
    """The bounds by key (`row_key.key_of`) and metric, and the changes that led to them, oldest first."""

    path: str
    history: tuple[Change, ...]
    tests: Mapping[str, Bounds]


@dataclass(frozen=True, slots=True)
class Loosened:
    """A threshold that allows more than before: `times` the error, infinite where it was bounded and is not.

    `now` is `None` where the metric is not bounded any more.
    """

    key: str
    metric: str
    before: NominalBound
    now: NominalBound | None
    times: float

    def __str__(self) -> str:
        now = "not bounded" if self.now is None else str(self.now)
        return f"{self.key}: {self.metric} {self.before} -> {now}"


def loosened(key: str, before: Bounds, now: Bounds) -> list[Loosened]:
    """The thresholds of one comparison that allow more than before."""
    changes = []
    for metric, old in before.items():
        new = now.get(metric)
        times = float("inf") if new is None else new.looser_than(old)
        if new is None and old == replace(old, bound=float("inf")):
            continue
        if times > 1 + RESOLUTION:
            changes.append(Loosened(key, metric, old, new, times))
    return changes


def tightened(before: Bounds, now: Bounds) -> int:
    """The number of thresholds of one comparison that allow less than before, or are new."""
    return sum(
        metric not in before or new.looser_than(before[metric]) < 1 - RESOLUTION
        for metric, new in now.items()
    )


def with_nominal_bounds(row: Row, rules: Sequence[ThresholdRule], standard: Standard = DEFAULT) -> Row:
    """The row with the nominal bounds that it was judged by; without any where it was not judged."""
    bounds = nominal_bounds(row.context, row.statistics, rules, standard) if row.statistics else {}
    return replace(row, levels=bounds) if bounds else row


class OperatorBounds(Gate):
    """Gives rows of single operators their nominal bounds, where the standard takes them from tables."""

    def apply(self, row: Row) -> Row:
        """The row with its nominal bounds; other rows as they are."""
        standard = row.case.get("standard")
        if standard not in FROM_TABLES:
            return row
        bounds = {
            check.metric: str(NominalBound(check.allowed, check.at_least, str(standard)))
            for check in row.checks
            if not check.metric.startswith(PREFIX)
        }
        return replace(row, levels=bounds) if bounds else row


def nominal_bounds_in(row: Row) -> Bounds:
    """The nominal bounds of a row; none where they cannot be read, as in a file of rows that was edited."""
    try:
        return {metric: NominalBound.parse(str(text)) for metric, text in row.levels.items()}
    except ValueError:
        return {}
