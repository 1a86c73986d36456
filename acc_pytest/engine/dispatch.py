"""`Dispatch`: which batch runs next and where, what became of each pair, and what is tried again.

A pair is final once, by its number: what arrives later for it is dropped, so that a task may run twice. A
batch whose task was lost runs again; lost twice, its pairs run alone, so that one that kills its process
takes nobody along. A pair that was lost `ATTEMPTS` times is given up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .answers import Measured
from .batches import Batch

ATTEMPTS = 4
TOGETHER = 2
"""How many of these a batch has before its pairs run alone."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A pair without a row: `reason` says why."""

    number: int
    reason: str


class Dispatch:
    """The pairs of a run on their way. Nodes are told by their ids, `kinds` says which see the same files."""

    def __init__(self) -> None:
        self.final: dict[int, Measured | GivenUp] = {}
        self._known: set[int] = set()
        self._waiting: dict[frozenset[str], list[tuple[int, int, int, Batch]]] = {}
        self._tried: dict[int, set[str]] = {}
        self._second_best: dict[int, Measured] = {}
        self._count = 0

    def __contains__(self, number: int) -> bool:
        """Whether a pair is waiting, on its way or final."""
        return number in self._known

    @property
    def is_idle(self) -> bool:
        """Whether no batch waits."""
        return not any(self._waiting.values())

    def add(self, batches: Iterable[Batch]) -> None:
        """Queue the batches."""
        for batch in batches:
            self._known.update(batch.numbers)
            self._count += 1
            heapq.heappush(self._waiting.setdefault(batch.places, []), (*batch.order, self._count, batch))

    def next_for(self, node: str, alive: frozenset[str]) -> Batch | None:
        """The batch that a node is to run next: one whose files it holds, else one that any node may run.

        What only nodes hold that are gone (not `alive`) may run anywhere.
        """
        own = [queue for places, queue in self._waiting.items() if queue and node in places]
        anyone = [
            queue for places, queue in self._waiting.items() if queue and not places & alive and node in alive
        ]
        queues = own or anyone
        if not queues:
            return None
        batch = heapq.heappop(min(queues, key=lambda queue: queue[0]))[-1]
        left = tuple(number for number in batch.numbers if number not in self.final)
        return replace(batch, numbers=left) if left else self.next_for(node, alive)

    def answered(self, measured: Measured, kind: str, kinds: dict[str, frozenset[str]]) -> None:
        """A node of a kind has measured a pair. Where files were missing, nodes of another kind are asked.

        `kinds` are the nodes that are alive, by kind.
        """
        number = measured.number
        if number in self.final:
            return
        if measured.incomplete:
            tried = self._tried.setdefault(number, set())
            tried.add(kind)
            best = self._second_best.get(number)
            if best is None or best.row is None or best.row.verdict == "incomparable":
                best = self._second_best[number] = measured
            if untried := [nodes for name, nodes in kinds.items() if name not in tried]:
                self.add([Batch((number,), 0, untried[0], urgent=True)])
                return
            measured = best
        self._finish(number, measured)

    def lost(self, batch: Batch, reason: str) -> None:
        """The task of a batch has ended without an answer."""
        left = tuple(number for number in batch.numbers if number not in self.final)
        again = replace(batch, numbers=left, attempt=batch.attempt + 1)
        if again.attempt >= ATTEMPTS:
            self.give_up(left, f"{reason}; tried {again.attempt} times")
        elif again.attempt < TOGETHER or len(left) == 1:
            self.add([again] if left else [])
        else:
            share = batch.nbytes // max(1, len(left))
            self.add(replace(again, numbers=(number,), nbytes=share) for number in left)

    def give_up(self, numbers: Sequence[int], reason: str) -> None:
        """Settle for no row."""
        for number in numbers:
            if number not in self.final:
                self._finish(number, self._second_best.get(number) or GivenUp(number, reason))

    def drop_waiting(self) -> list[int]:
        """Take all batches out of the queue: their pairs."""
        batches = [entry[-1] for queue in self._waiting.values() for entry in queue]
        self._waiting.clear()
        return [number for batch in batches for number in batch.numbers if number not in self.final]

    def _finish(self, number: int, what: Measured | GivenUp) -> None:
        self.final[number] = what
        self._tried.pop(number, None)
        self._second_best.pop(number, None)
