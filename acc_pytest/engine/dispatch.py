"""`Dispatch`: which batch runs next and where, what became of each pair, and what is tried again.

A pair is final once, by its number: what arrives later for it is dropped, so that a task may run twice. A
batch whose task was lost runs again; lost twice, each of its pairs has a node for itself, so that one that
kills its process takes nobody along. A pair that was lost `ATTEMPTS` times is given up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .answers import Measured
from .batches import Batch

ATTEMPTS = 4
TOGETHER = 2
"""Number of these that a batch has before its pairs run alone."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A pair without a row: `reason` says why."""

    number: int
    reason: str


Waiting = list[tuple[int, int, int, Batch]]
"""Batches in a heap, by their order; the third number keeps those apart that have one order."""


class Queue(NamedTuple):
    """Batches that are measured in the same places, and whether nothing else is to run beside them."""

    places: frozenset[str]
    is_alone: bool


class Dispatch:
    """The pairs of a run on their way. Nodes go by their ids, `kinds` says which see the same files.

    `in_order`: batches go in the order of the run, not longest first.
    """

    def __init__(self) -> None:
        self.in_order = False
        self.final: dict[int, Measured | GivenUp] = {}
        self._numbers: set[int] = set()
        self._waiting: dict[Queue, Waiting] = {}
        self._tried: dict[int, set[str]] = {}
        self._second_best: dict[int, Measured] = {}
        self._count = 0

    def __contains__(self, number: int) -> bool:
        """Whether a pair is waiting, on its way or final."""
        return number in self._numbers

    def add(self, batches: Iterable[Batch]) -> None:
        """Queue the batches."""
        for batch in batches:
            self._numbers.update(batch.numbers)
            self._count += 1
            key = Queue(batch.places, batch.attempt >= TOGETHER)
            size, first = batch.order
            place = (0 if self.in_order and not batch.urgent else size, first, self._count, batch)
            heapq.heappush(self._waiting.setdefault(key, []), place)

    def next_for(self, node: str, alive: frozenset[str], *, is_free: bool) -> Batch | None:
        """The batch that a node is to run next: one whose files it holds, else one that any node may run.

        What only nodes hold that are gone (not `alive`) may run anywhere. Where something waits that is to
        run alone, it gets that once it is free, and nothing before.
        """
        queues = self._queues(node, alive)
        if any(key.is_alone for key in queues):
            queues = {key: queue for key, queue in queues.items() if key.is_alone and is_free}
        queues = {key: queue for key, queue in queues.items() if node in key.places} or queues
        if not queues:
            return None
        batch = heapq.heappop(min(queues.values(), key=lambda queue: queue[0]))[-1]
        remaining = tuple(number for number in batch.numbers if number not in self.final)
        return replace(batch, numbers=remaining) if remaining else self.next_for(node, alive, is_free=is_free)

    def _queues(self, node: str, alive: frozenset[str]) -> dict[Queue, Waiting]:
        """The queues from which a node may take."""
        return {
            key: queue
            for key, queue in self._waiting.items()
            if queue and (node in key.places or not key.places & alive)
        }

    def answered(self, answers: Iterable[Measured], kind: str, kinds: Mapping[str, frozenset[str]]) -> None:
        """A node of a kind has measured pairs. Where files were missing, nodes of another kind are asked.

        `kinds` are the nodes that are alive, by kind.
        """
        elsewhere: dict[frozenset[str], list[int]] = {}
        for measured in answers:
            number = measured.number
            if number in self.final:
                continue
            if measured.incomplete:
                tried = self._tried.setdefault(number, set())
                tried.add(kind)
                measured = self._best(measured)
                if untried := [nodes for name, nodes in kinds.items() if name not in tried]:
                    elsewhere.setdefault(untried[0], []).append(number)
                    continue
            self._finish(number, measured)
        self.add(Batch(tuple(numbers), 0, nodes, urgent=True) for nodes, numbers in elsewhere.items())

    def _best(self, measured: Measured) -> Measured:
        """The best of the incomplete answers of a pair."""
        best = self._second_best.get(measured.number)
        if best is None or best.row is None or best.row.verdict == "incomparable":
            best = self._second_best[measured.number] = measured
        return best

    def lost(self, batch: Batch, reason: str) -> None:
        """The task of a batch has ended without an answer."""
        remaining = tuple(number for number in batch.numbers if number not in self.final)
        again = replace(batch, numbers=remaining, attempt=batch.attempt + 1)
        if again.attempt >= ATTEMPTS:
            self.give_up(remaining, f"{reason}; tried {again.attempt} times")
        elif again.attempt < TOGETHER or len(remaining) == 1:
            self.add([again] if remaining else [])
        else:
            share = batch.nbytes // max(1, len(remaining))
            self.add(replace(again, numbers=(number,), nbytes=share) for number in remaining)

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
