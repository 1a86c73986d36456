"""Known differences in a run: how many pairs each entry accepts, and which entries should go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import SettingsError
from ..judging.known import Known
from ..judging.threshold import JudgeContext
from ..reporting.row import Row
from ..reporting.view import Run
from ..vocabulary import number
from .known import KnownGate, matches
from .plan_view import PlanView


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
        lines = []
        for entry, counts in zip(self._entries, self._counts):
            if accepted := self._accepted[entry]:
                bounds = ", ".join(f"{metric} {number(bound)}" for metric, bound in entry.at_most)
                lines.append(f"known: {entry.source} accepts {accepted} pairs up to {bounds}: {entry.origin}")
            elif entry.expired:
                failing = f"; {counts['fail']} pairs that it is about fail" if counts["fail"] else ""
                lines.append(f"known: {entry.source} has expired: {entry.origin}{failing}")
            elif not self._plan_ran:
                continue
            elif not counts:
                lines.append(f"known: {entry.source} is about no pair of this run: {entry.origin}")
            elif counts.keys() <= {"pass", "tie"}:
                lines.append(
                    f"known: {entry.source} is about passing pairs only ({counts.total()}), remove it: "
                    f"{entry.origin}"
                )
        return lines
