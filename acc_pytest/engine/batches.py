"""`Batch`: pairs that one task measures. A task costs some milliseconds by itself, so it gets many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ENOUGH_BYTES = 64 * 2**20
"""Bytes that make a batch full: a core reads and measures them in a tenth of a second."""
ENOUGH_PAIRS = 64
"""Pairs that make a batch full, however small: beside so many, what a task costs by itself is little."""
_LARGEST = 64
"""Bits of the size of a file."""
ANYWHERE: frozenset[str] = frozenset()
"""The places of what every node can read alike."""


@dataclass(frozen=True, slots=True)
class PairSize:
    """A pair by its number in the plan: the bytes of its tensors, and the nodes that hold most of them.

    `places` are ids of nodes; empty where no node is better than another.
    """

    number: int
    nbytes: int
    places: frozenset[str] = ANYWHERE


@dataclass(frozen=True, slots=True)
class Batch:
    """Pairs that travel together; `attempt` counts the tasks that were lost with them.

    `urgent`: a test waits for it already.
    """

    numbers: tuple[int, ...]
    nbytes: int
    places: frozenset[str] = ANYWHERE
    attempt: int = 0
    urgent: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """Its place in the queue: longest first, by powers of two; batches alike in the order of the run.

        Longest first, because a long one that starts last is what everybody waits for. The order of the run,
        because pytest reports in that order.
        """
        return (-_LARGEST if self.urgent else -self.nbytes.bit_length()), self.numbers[0]


def batches_of(pairs: Iterable[PairSize]) -> list[Batch]:
    """All pairs, in batches of those that lie in the same places; each but the last of a place is full."""
    open_ones: dict[frozenset[str], list[PairSize]] = {}
    full: list[Batch] = []
    for pair in pairs:
        mates = open_ones.setdefault(pair.places, [])
        mates.append(pair)
        if len(mates) >= ENOUGH_PAIRS or sum(mate.nbytes for mate in mates) >= ENOUGH_BYTES:
            full.append(_batch(open_ones.pop(pair.places)))
    return [*full, *map(_batch, open_ones.values())]


def _batch(pairs: list[PairSize]) -> Batch:
    numbers = tuple(pair.number for pair in pairs)
    return Batch(numbers, sum(pair.nbytes for pair in pairs), pairs[0].places)
