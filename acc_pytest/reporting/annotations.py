"""Annotations of GitHub Actions: one `::error` line for each root cause, which GitHub shows beside the run.

GitHub keeps ten errors of a step, so there are never more: the roots in execution order, then what could
not be compared. Only on GitHub (`GITHUB_ACTIONS=true`), for anywhere else such lines are noise. The escapes
are those of GitHub's workflow commands.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator, Mapping

from .printable import printable
from .row import Row
from .view import Result, View

MOST = 10
"""Errors of one step that GitHub shows."""
TITLE = 120
MESSAGE = 1000
"""Characters: a message is read in a box beside a commit."""
TITLES = {
    "fail": "fails",
    "incomparable": "could not be compared",
    "unmapped": "is unmapped",
    "incomplete": "is not there",
}
_ORDER = tuple(TITLES)


def on_github(environment: Mapping[str, str]) -> bool:
    """Whether this process is a step of GitHub Actions."""
    return environment.get("GITHUB_ACTIONS") == "true"


def annotation(title: str, message: str) -> str:
    """One `::error` command; both texts may be anything."""
    title = _data(printable(title, TITLE)).replace(":", "%3A").replace(",", "%2C")
    return f"::error title={title}::{_data(printable(message, MESSAGE))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


class Annotations(View):
    """The view: keeps the first failing rows, and prints the lines when everything else is printed."""

    def __init__(self) -> None:
        self._first: list[tuple[tuple[int, int, str], Row]] = []
        self._lines: list[str] = []

    def add(self, row: Row) -> None:
        """Keep a failing row while it is among the first."""
        if not row.red:
            return
        place = row.number if row.number is not None else sys.maxsize
        rank = _ORDER.index(row.verdict) if row.verdict in _ORDER else 0
        self._first.append(((rank, place, row.test_id), row))
        if len(self._first) > 2 * MOST:
            self._first = self._smallest()

    def _smallest(self) -> list[tuple[tuple[int, int, str], Row]]:
        return heapq.nsmallest(MOST, self._first, key=lambda entry: entry[0])

    def finish(self, result: Result) -> None:
        """Choose what is shown: by cause where causes are known."""
        self._lines = list(self._chosen(result))[:MOST]

    def _chosen(self, result: Result) -> Iterator[str]:
        has_roots = result.diagnosis is not None and bool(result.diagnosis.roots)
        for root in result.diagnosis.roots if result.diagnosis is not None else ():
            yield annotation(f"root cause: {root.fed or root.name}", f"{root.sentence} [{root.test_id}]")
        for _, row in self._smallest():
            if not (has_roots and row.verdict in ("fail", "inherited")):
                where = f" [{row.test_id}]" if row.test_id else ""
                title = f"{printable(row.name, TITLE - 30)} {TITLES.get(row.verdict, 'fails')}"
                yield annotation(title, f"{row.sentence}{where}")
        for problem in result.problems:
            yield annotation("accuracy run", problem)

    def close(self) -> None:
        """Print the lines: a runner reads them wherever they stand at the beginning of a line."""
        for line in self._lines:
            # Names are Unicode, a log need not be.
            encoding = sys.stdout.encoding or "utf-8"
            sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        self._lines = []
