"""Which rows a page keeps whole: all of a small run; of a large one those that people open.

Rows arrive one by one in any order and are not all held: of each verdict only the best candidates stay.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from operator import itemgetter

from ..row import Row

_SHARES = {
    "fail": 0.5,
    "incomparable": 0.15,
    "incomplete": 0.15,
    "known": 0.1,
    "inherited": 0.15,
    "unmapped": 0.04,
    "tie": 0.03,
    "pass": 0.03,
}
"""What share of the room each verdict may take before the others had theirs, most urgent first."""

_Entry = tuple[float, float, int, Row]


class KeptRows:
    """At most `room` rows of each verdict, the worst ones."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._best: dict[str, list[_Entry]] = {verdict: [] for verdict in _SHARES}

    def add(self, index: int, row: Row, excess: float) -> None:
        """Take a row into account, which arrived as number `index`. Of equally bad ones the earlier in
        execution order is kept."""
        heap = self._best[row.verdict]
        entry = (excess, -float("inf") if row.number is None else -row.number, -index, row)
        if len(heap) < self._room:
            heapq.heappush(heap, entry)
        elif entry[:3] > heap[0][:3]:
            heapq.heapreplace(heap, entry)

    def chosen(self, room: int, always: Mapping[int, Row]) -> dict[int, Row]:
        """At most `room` rows by index: those in `always`, then each verdict's share, then what fits."""
        chosen = dict(always)
        ranked = {
            verdict: sorted(heap, key=itemgetter(0, 1, 2), reverse=True)
            for verdict, heap in self._best.items()
        }
        shares = [entries[: round(_SHARES[verdict] * room)] for verdict, entries in ranked.items()]
        for entries in (*shares, *ranked.values()):
            for _, _, index, row in entries:
                if len(chosen) >= room:
                    return chosen
                chosen.setdefault(-index, row)
        return chosen

    def worst(self, verdicts: Iterable[str], count: int) -> list[Row]:
        """The `count` rows of these verdicts farthest beyond their bounds, among those of one verdict the
        worst first; verdicts in the order given."""
        rows: list[Row] = []
        for verdict in verdicts:
            heap = sorted(self._best[verdict], key=itemgetter(0, 1, 2), reverse=True)
            rows += [row for *_, row in heap]
        return rows[:count]
