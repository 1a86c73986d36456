"""`Dispatch`: which batch runs next and where, what became of each pair, and what is tried again.

A pair is final once, by its number: what arrives later for it is dropped, so that a task may run twice. A
batch whose task was lost runs again; lost twice, each of its pairs has a node for itself, so that one that
kills its process takes nobody along. A pair that was lost `ATTEMPTS` times is given up.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ...errors import AccError
from ...tensors.address import is_address
from ...tensors.kept_dump import file_size
from ..stores.mirror import mirror_at, placed
from .work import Measured

if TYPE_CHECKING:
    from ...mapping.pair import Pair
    from ...tensors.ref import TensorRef


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


# Nodes that hold the tensors of a pair, and the bytes of these, without reading any.
#
# A dump lies on the host that wrote it, rank by rank. So nodes are asked for one file of each rank and
# side, and what holds for that one is taken to hold for all of them. It is a hint: a node that lacks a file
# says so. Of files in a store, and of those of a named host, nobody is asked: their addresses say where
# they lie.


UNKNOWN_SIZE = 2**20
"""Bytes that a tensor counts as whose file is not on this machine."""
Group = tuple[str, int, int]
"""Side, rank and place among the shards: what one host has written."""


class Placement:
    """The tensors of the pairs of a plan. `samples` are the files that nodes are asked for, or the addresses
    below which they lie."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        groups: dict[Group, str] = {}
        tensors_of: collections.Counter[str] = collections.Counter()
        for pair in pairs:
            for group, ref in _refs(pair):
                if group not in groups:
                    groups[group] = _sample(ref.path)
                tensors_of[ref.path] += 1
        self._shared = {path: tensors for path, tensors in tensors_of.items() if tensors > 1}
        self.samples = tuple(groups.values())
        self._order = {group: place for place, group in enumerate(groups)}
        self._on_disk = {place for place, sample in enumerate(self.samples) if not is_address(sample)}

    def sizes(
        self, numbers: Sequence[int], present: Mapping[str, Sequence[bool]], side: str = ""
    ) -> Iterator[PairSize]:
        """Pairs with their bytes and places, for one `side` the bytes of that. `present`: for each
        node, which samples it has.

        What lies on a disk can be read only there; all else from everywhere, but best where it lies.
        """
        for number in numbers:
            files = [
                (self._order[group], self._size(ref.path))
                for group, ref in _refs(self._pairs[number])
                if side in ("", group[0])
            ]
            nbytes = sum(size for _, size in files)
            needed = [place for place, _ in files if place in self._on_disk]
            able = [node for node, has in present.items() if all(has[place] for place in needed)]
            able = able or [*present]
            on = {node: sum(size for place, size in files if present[node][place]) for node in able}
            largest = max(on.values(), default=0)
            best = frozenset(node for node, size in on.items() if size == largest)
            yield PairSize(number, nbytes, best if len(best) < len(present) else ANYWHERE)

    def _size(self, path: str) -> int:
        """Bytes of one tensor: its share of the file."""
        try:
            return file_size(path) // self._shared.get(path, 1)
        except (AccError, OSError, ValueError):
            return UNKNOWN_SIZE


def _sample(path: str) -> str:
    """The file on the disk that a path is, or the address below which it lies."""
    mirror = mirror_at(path)
    if mirror is None:
        return path
    file = placed(path)
    if file is None:  # of a kept dump, all of which lies together
        return mirror.table.sources[0].root
    return file.source_path if not is_address(file.row.source.root) else file.row.source.root


def _refs(pair: Pair) -> Iterator[tuple[Group, TensorRef]]:
    rank = -1 if pair.rank is None else pair.rank
    for side, operand in (("golden", pair.golden), ("mine", pair.mine)):
        for shard, ref in enumerate(operand.refs):
            yield (side, rank, shard), ref
