"""Known differences applied: a failing pair that an entry accepts is an expected failure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..judging.known import Known
from ..reporting.row import Row
from ..vocabulary import number
from .gate import Gate
from .row_key import context_of_row, dtypes_of


def matches(entry: Known, row: Row) -> bool:
    """Whether the entry is about the pair of this row."""
    return entry.match.holds(context_of_row(row), dtypes_of(row))


def beyond(entry: Known, row: Row) -> str:
    """The first bound of the entry that the row does not keep, in words; empty where it keeps all."""
    for metric, bound in entry.at_most:
        value = measured(row, metric)
        if value is None or math.isnan(value):
            return f"{metric} has no value, and at most {number(bound)} of it is accepted"
        if value > bound:
            return f"{metric} {number(value)} is more than the accepted {number(bound)}"
    return ""


def measured(row: Row, metric: str) -> float | None:
    """The value of a metric of a row, wherever it stands."""
    for check in row.checks:
        if check.metric == metric:
            return check.measured
    for group in (row.metrics, row.counts, row.custom, row.statistics):
        value = group.get(metric)
        if isinstance(value, (int, float)):
            return float(value)
    return None


class KnownGate(Gate):
    """Accepts failing pairs that an entry is about; the first one that does counts."""

    def __init__(self, entries: Sequence[Known]) -> None:
        self._entries = tuple(entry for entry in entries if not entry.expired)

    def accepting(self, row: Row) -> tuple[Known | None, tuple[str, ...]]:
        """The first entry that accepts a failing row, and why those before it do not."""
        notes: list[str] = []
        for entry in self._entries:
            if not matches(entry, row):
                continue
            why = beyond(entry, row)
            if not why:
                return entry, tuple(notes)
            notes.append(f"known: not accepted by {entry.source}: {why}")
        return None, tuple(notes)

    def apply(self, row: Row) -> Row:
        """The row as a known difference, or with a note why an entry does not accept it."""
        if row.verdict != "fail":
            return row
        entry, notes = self.accepting(row)
        if entry is None:
            return replace(row, notes=(*row.notes, *notes)) if notes else row
        sentence = f"known: {entry.origin}; {row.sentence}"
        reasons = tuple(sentence if reason == row.sentence else reason for reason in row.reasons)
        return replace(row, verdict="known", sentence=sentence, reasons=reasons)
