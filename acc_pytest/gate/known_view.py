"""Known differences as a run ends: entries that excuse nothing any more should go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..judging.known import Known
from ..reporting.row import Row
from ..reporting.view import Run, View
from .extent import Extent
from .known import matches


class KnownView(View):
    """Counts, for each entry, the verdicts of the rows it is about."""

    def __init__(self, entries: Sequence[Known]) -> None:
        self._entries = entries
        self._counts: list[Counter[str]] = [Counter() for _ in entries]
        self._extent = Extent(Run())
        self._complete = False

    def begin(self, run: Run) -> None:
        """Note what there is to run."""
        self._extent = Extent(run)

    def add(self, row: Row) -> None:
        """Count a row for every entry that is about it."""
        self._extent.add(row)
        if row.verdict == "unmapped":
            return
        for entry, counts in zip(self._entries, self._counts):
            if matches(entry, row):
                counts[row.verdict] += 1

    def end(self, complete: bool) -> None:
        """Whether what was asked for has run to its end."""
        self._complete = complete

    def lines(self) -> list[str]:
        """A line for each entry that is to be looked at."""
        found = []
        for entry, counts in zip(self._entries, self._counts):
            if entry.expired:
                failing = f"; {counts['fail']} pairs that it is about fail" if counts["fail"] else ""
                found.append(f"known: {entry.source} has expired: {entry.origin}{failing}")
            elif not self._complete or not self._extent.whole:
                continue
            elif not counts:
                found.append(f"known: {entry.source} is about no pair of this run: {entry.origin}")
            elif counts.keys() <= {"pass", "tie"}:
                found.append(
                    f"known: {entry.source} is about passing pairs only ({counts.total()}), remove it: "
                    f"{entry.origin}"
                )
        return found
