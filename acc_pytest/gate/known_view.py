"""Known differences as a run ends: entries that excuse nothing any more should go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..judging.known import Known
from ..reporting.row import Row
from .known import matches
from .plan_view import PlanView


class KnownView(PlanView):
    """Counts, for each entry, the verdicts of the rows it is about."""

    def __init__(self, entries: Sequence[Known]) -> None:
        super().__init__()
        self._entries = entries
        self._counts: list[Counter[str]] = [Counter() for _ in entries]

    def add(self, row: Row) -> None:
        """Count a row for every entry that is about it."""
        super().add(row)
        if row.alone:
            return
        for entry, counts in zip(self._entries, self._counts):
            if matches(entry, row):
                counts[row.verdict] += 1

    def lines(self) -> list[str]:
        """A line for each entry that is to be looked at."""
        lines = []
        for entry, counts in zip(self._entries, self._counts):
            if entry.expired:
                failing = f"; {counts['fail']} pairs that it is about fail" if counts["fail"] else ""
                lines.append(f"known: {entry.source} has expired: {entry.origin}{failing}")
            elif not self._whole_plan_ran:
                continue
            elif not counts:
                lines.append(f"known: {entry.source} is about no pair of this run: {entry.origin}")
            elif counts.keys() <= {"pass", "tie"}:
                lines.append(
                    f"known: {entry.source} is about passing pairs only ({counts.total()}), remove it: "
                    f"{entry.origin}"
                )
        return lines
