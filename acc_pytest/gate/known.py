"""Known differences applied: a failing pair that an entry accepts is an expected failure."""

from __future__ import annotations

import datetime
import glob
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..base.reason import Reason, joined
from ..base.vocabulary import number
from ..errors import SettingsError
from ..judging.rules import Known
from ..judging.threshold import JudgeContext
from ..metrics.measurement import METRICS
from ..reporting.row import Row
from ..reporting.view import Run
from .gate import Gate, PlanView, context_of_row, dtypes_of

NOT_ACCEPTED = "known: not accepted by {}: {}"
"""A note: the entry, and what of it a row does not keep."""


def matches(entry: Known, row: Row) -> bool:
    """Whether the entry is about the pair of this row."""
    return entry.match.holds(context_of_row(row), dtypes_of(row))


def beyond(entry: Known, row: Row) -> str:
    """The first bound of the entry that the row does not keep, in words; empty where it keeps all."""
    for metric, bound in entry.at_most:
        value = measured(row, metric)
        if value is None or math.isnan(value):
            return Reason("{} has no value, and at most {} of it is accepted", metric, number(bound))
        if value > bound:
            return Reason("{} {} is more than the accepted {}", metric, number(value), number(bound))
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
            notes.append(Reason(NOT_ACCEPTED, entry.source, why))
        return None, tuple(notes)

    def apply(self, row: Row) -> Row:
        """The row as a known difference, or with a note why an entry does not accept it."""
        if row.verdict != "fail":
            return row
        entry, notes = self.accepting(row)
        if entry is None:
            return replace(row, notes=(*row.notes, *notes)) if notes else row
        sentence = joined("; ", (Reason("known: {}", entry.origin), row.sentence))
        reasons = tuple(sentence if reason == row.sentence else reason for reason in row.reasons)
        return replace(row, verdict="known", sentence=sentence, reasons=reasons)


# Known differences in a run: how many pairs each entry accepts, and which entries should go.


class KnownView(PlanView):
    """Counts, for each entry, the verdicts of the rows it is about."""

    def __init__(self, entries: Sequence[Known]) -> None:
        super().__init__()
        self._entries = entries
        self._counts: list[Counter[str]] = [Counter() for _ in entries]
        self._gate = KnownGate(entries)
        self._accepted: Counter[Known | None] = Counter()

    def begin(self, run: Run) -> None:
        """Note the plan. Raises `SettingsError` for an entry that would accept everything."""
        super().begin(run)
        pairs = [] if run.plan is None else [JudgeContext.of(pair) for pair in run.plan.pairs if pair.id]
        if len({pair.mine_path for pair in pairs}) < 2:
            return
        for entry in self._entries:
            if not entry.expired and all(map(entry.names, pairs)):
                raise SettingsError(
                    f"{entry.source}: match is about every operator of the plan ({len(pairs)} pairs); name "
                    "those that differ"
                )

    def add(self, row: Row) -> None:
        """Count a row for every entry that is about it."""
        super().add(row)
        if row.alone:
            return
        if row.verdict == "known":
            self._accepted[self._gate.accepting(row)[0]] += 1
        for entry, counts in zip(self._entries, self._counts):
            if matches(entry, row):
                counts[row.verdict] += 1

    def lines(self) -> list[str]:
        """A line for each entry that accepts pairs, and for each that is to be looked at."""
        lines: list[str] = []
        for entry, counts in zip(self._entries, self._counts):
            if accepted := self._accepted[entry]:
                bounds = ", ".join(f"{metric} {number(bound)}" for metric, bound in entry.at_most)
                lines.append(
                    Reason(
                        "known: {} accepts {} pairs up to {}: {}",
                        entry.source,
                        accepted,
                        bounds,
                        entry.origin,
                    )
                )
            elif entry.expired:
                failing = Reason("; {} pairs that it is about fail", counts["fail"]) if counts["fail"] else ""
                lines.append(Reason("known: {} has expired: {}{}", entry.source, entry.origin, failing))
            elif not self._plan_ran:
                continue
            elif not counts:
                lines.append(Reason("known: {} is about no pair of this run: {}", entry.source, entry.origin))
            elif counts.keys() <= {"pass", "tie"}:
                lines.append(
                    Reason(
                        "known: {} is about passing pairs only ({}), remove it: {}",
                        entry.source,
                        counts.total(),
                        entry.origin,
                    )
                )
        return lines


# The entry that is offered for a failing row.


DAYS = 90
"""How long the entry that is offered holds: a quarter."""
ROOM = 1.05
"""How much more than the measured error the entry accepts: it is written with two digits."""


def entry_of(row: Row, today: datetime.date) -> Iterator[str]:
    """The lines; whoever pastes them says why the difference is right, and whose it is."""
    yield "[[known]]"
    # What tells the row from others: its operator, layer and step.
    side = row.mine if row.mine.node else row.golden
    match: dict[str, str | int] = {"name": glob.escape(side.name or side.node or row.name)}
    if row.layer:
        match["layer"] = glob.escape(row.layer)
    if isinstance(row.step, (int, str)) and row.step != "":
        match["step"] = row.step
    for key, value in match.items():
        yield f"match.{key} = {_toml(value)}"
    yield 'reason = "WHY IT IS RIGHT"'
    yield 'owner = "WHOSE IT IS"'
    yield f"expires = {today + datetime.timedelta(days=DAYS)}"
    failing = (check.metric for check in row.checks if not check.passed and not check.at_least)
    for metric in ("relative_euclidean_distance", *(metric for metric in failing if metric in METRICS)):
        error = measured(row, metric)
        if error is not None and math.isfinite(error):
            text = f"{error * ROOM:.2g}"
            yield f"at_most.{metric} = {text if 'e' in text else f'{error * ROOM:#.2g}'.rstrip('.')}"
            return


def _toml(value: str | int) -> str:
    """A value of TOML. Its basic strings are those of JSON, without lone surrogates."""
    if isinstance(value, int):
        return str(value)
    return json.dumps(value.encode("utf-8", "replace").decode("utf-8")).replace("\x7f", "\\u007f")
