"""`Engine`: rows of pairs, measured on the nodes of a pool ahead of the tests that wait for them.

It has no thread: whoever waits for a row hands out batches and takes answers meanwhile. So Ctrl-C and `-x`
end it as they end any test, and rows arrive only where somebody can use them.
"""

from __future__ import annotations

import collections
import functools
import pickle
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import AccError, SettingsError, Unforeseen
from ...reference.recomputation import Recomputation
from ...reporting import progress
from ...tensors.address import is_address
from ..stores.hosts import host_of
from .dispatch import TOGETHER, Batch, Dispatch, GivenUp, Placement, batches_of
from .pool import ClusterNode, LostTask, Pool, ProbeQuestion, Sight, refusal, sight_of
from .work import MeasureCall, RecomputeCall, unpacked

if TYPE_CHECKING:
    from ...judging.threshold import ThresholdRule
    from ...reporting.row import Row


PER_TASK = 2
"""Tasks that a node has for each that can run there: one runs, one waits, so that no core does."""
LOOK = 0.5
"""Seconds for which an answer is waited for before anything else is looked at."""
SELDOM = 0.05
"""Seconds between two looks for answers while rows that are there already are asked for."""
PATIENCE = 60.0
"""Seconds without any node, after which the pairs that are left are given up."""
RulesOf = Callable[[int], "tuple[ThresholdRule, ...] | None"]
"""The rules of a pair where they are others than the config files'. Raises `AccError` for wrong ones."""


@dataclass(slots=True)
class Traffic:
    """Bytes between the controller and the nodes, the run itself apart: calls sent, answers received."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True)
class _Task:
    """A task on its way: its batch (`None`: a call that somebody waits for), its node, and since when."""

    batch: Batch | None
    node: str
    begun: float

    @property
    def weight(self) -> tuple[int, int]:
        """Its bytes and pairs."""
        return (0, 1) if self.batch is None else (self.batch.nbytes, len(self.batch.numbers))

    @property
    def is_alone(self) -> bool:
        """Whether its node is to run nothing beside it."""
        return self.batch is not None and self.batch.attempt >= TOGETHER


class NotMeasured(AccError):
    """A pair has no row, because what ran it was lost every time."""


class Engine:
    """Measures pairs on a pool. `say` prints a line; `patience` says when a task counts as lost."""

    def __init__(
        self,
        pool: Pool,
        fleet: Fleet,
        placement: Placement,
        say: Callable[[str], None],
        patience: TaskPatience,
    ) -> None:
        self._pool = pool
        self._fleet = fleet
        self._placement = placement
        self._say = say
        self._dispatch = Dispatch()
        self._rules: RulesOf = lambda _: None
        self._local_pairs: set[int] = set()
        self._patience = patience
        self._tasks: dict[Hashable, _Task] = {}
        self._overdue: dict[Hashable, _Task] = {}
        self._heard: dict[str, float] = {}
        self._loads: collections.Counter[str] = collections.Counter()
        self._alone: collections.Counter[str] = collections.Counter()
        self._replies: dict[Hashable, bytes | LostTask] = {}
        self._without_nodes: float | None = None
        self._pace = EnginePace()
        self._last_look = 0.0
        self.traffic = Traffic()

    def expect(self, numbers: Sequence[int], rules: RulesOf, *, in_order: bool = False) -> None:
        """Begin to measure these pairs, longest first; `in_order`: in this order, for the run may stop early.

        Their rows will be asked for in this order.
        """
        self._rules = rules
        self._dispatch.in_order = in_order
        sizes = list(self._placement.sizes(numbers, self._fleet.present))
        self._dispatch.add(batches_of(sizes))
        self._pace.begin(time.monotonic(), len(sizes), sum(size.nbytes for size in sizes))
        self._hand_out()

    def row(self, number: int) -> Row | None:
        """The row of a pair; waits for it. `None`: the caller is to judge it himself, and will see why.

        Raises `NotMeasured` where it was lost, `Unforeseen` where a node met an error nobody foresaw.
        """
        if number not in self._dispatch:
            (size,) = self._placement.sizes([number], self._fleet.present)
            self._dispatch.add([Batch((number,), size.nbytes, size.places, urgent=True)])
        if time.monotonic() - self._last_look > SELDOM:
            self._turn(0.0)
        while number not in self._dispatch.final and number not in self._local_pairs:
            self._turn()
        if number in self._local_pairs:
            return None
        final = self._dispatch.final[number]
        if isinstance(final, GivenUp):
            raise NotMeasured(final.reason)
        if final.row is None:
            raise Unforeseen(final.error)
        return final.row

    def ask(self, number: int, call: RecomputeCall) -> Any:
        """The answer of a node to a call about a pair: of one that holds what it is to read, where one does.

        Raises `NotMeasured` where no node could.
        """
        (size,) = self._placement.sizes([number], self._fleet.present, call.side)
        tried: set[str] = set()
        reason, outcome = "no node of the cluster is left", None
        while nodes := self._untried(size.places, tried):
            node = min(nodes, key=self._loads.__getitem__)
            reply = self._reply(call, node)
            if isinstance(reply, LostTask):
                tried.add(node)
                reason = reply.reason
                continue
            incomplete, outcome = pickle.loads(reply)  # noqa: S301 - our own bytes from our own node
            if not incomplete:
                return outcome
            tried |= self._fleet.kinds.get(self._fleet.kind(node), frozenset((node,)))
        if outcome is None:
            raise NotMeasured(reason)
        return outcome

    def _untried(self, places: frozenset[str], tried: set[str]) -> list[str]:
        """The nodes to ask next: those of `places` first."""
        left = [node for node in self._fleet.alive if node not in tried]
        return [node for node in left if node in places] or left

    def _reply(self, call: Any, node: str) -> bytes | LostTask:
        ticket = self._submit(call, node, None)
        while ticket not in self._replies:
            self._turn()
        return self._replies.pop(ticket)

    def _turn(self, seconds: float = LOOK) -> None:
        """Hand out batches, and take what has ended; waits so long for it."""
        now = self._last_look = time.monotonic()
        self._fleet.refresh(now)
        self._hand_out()
        self._check_fleet(now)
        for ticket, answer in self._pool.ended(seconds):
            self._ended(ticket, answer)
        self._end_overdue()
        if self._pace.due(now):
            self._say(self._pace.line(now, len(self._fleet.alive)))

    def _ended(self, ticket: Hashable, answer: bytes | LostTask) -> None:
        if ticket in self._overdue:
            self._ended_late(self._overdue.pop(ticket), answer)
            return
        task, now = self._tasks.pop(ticket), time.monotonic()
        self._loads[task.node] -= 1
        self._alone[task.node] -= task.is_alone
        if isinstance(answer, LostTask):
            if answer.node_is_gone:
                self._fleet.rest(task.node, now)
        else:
            self._learn(task, now)
            self.traffic.received += len(answer)
        if task.batch is None:
            self._replies[ticket] = answer
        else:
            self._take(task.batch, task.node, answer)

    def _learn(self, task: _Task, now: float) -> None:
        """Learn from the time of a task on its core; the first of a node includes the start of a process."""
        heard, node = self._heard.get(task.node), self._fleet.alive.get(task.node)
        if heard is not None and node is not None:
            self._patience.answered((now - max(task.begun, heard)) * node.tasks, *task.weight)
        self._heard[task.node] = now

    def _end_overdue(self) -> None:
        """Give up tasks that have had no answer for too long, and the nodes that have not answered since."""
        now = time.monotonic()
        for ticket, task in [*self._tasks.items()]:
            seconds = self._patience.with_task(*task.weight)
            if now - task.begun < seconds:
                continue
            self._pool.cancel(ticket)
            if self._heard.get(task.node, 0.0) < task.begun:
                self._fleet.leave_out(task.node, f"has not answered for {seconds:.0f} s")
            self._ended(ticket, LostTask(f"no answer for {seconds:.0f} s (acc_engine_patience)"))
            self._overdue[ticket] = task

    def _ended_late(self, task: _Task, answer: bytes | LostTask) -> None:
        """A task has ended after all: its answer counts where there was none, and its core is free."""
        if task.batch is not None and not isinstance(answer, LostTask):
            self._take(task.batch, task.node, answer)
        if all(overdue.node != task.node for overdue in self._overdue.values()):
            self._fleet.take_back(task.node)

    def _take(self, batch: Batch, node: str, answer: bytes | LostTask) -> None:
        if isinstance(answer, LostTask):
            self._dispatch.lost(batch, answer.reason)
            return
        before = len(self._dispatch.final)
        self._dispatch.answered(unpacked(answer), self._fleet.kind(node), self._fleet.kinds)
        self._pace.ended(len(self._dispatch.final) - before, batch.nbytes)

    def _hand_out(self) -> None:
        """Give each node that has room a batch, in turn, as long as there are any."""
        alive = frozenset(self._fleet.alive)
        rooms = {node.id: self._room(node) for node in self._fleet.alive.values()}
        while any(room > 0 for room in rooms.values()):
            node = max(rooms, key=lambda node: rooms[node])
            batch = self._dispatch.next_for(node, alive, is_free=not self._loads[node])
            if batch is not None and (call := self._call(batch)) is not None:
                self._submit(call, node, batch)
            rooms[node] = 0 if batch is None else self._room(self._fleet.alive[node])

    def _room(self, node: ClusterNode) -> int:
        """The number of tasks that a node still has room for."""
        return 0 if self._alone[node.id] else node.tasks * PER_TASK - self._loads[node.id]

    def _call(self, batch: Batch) -> MeasureCall | None:
        """The call for a batch, without pairs whose rules are wrong: their tests will say so."""
        rules: dict[int, tuple[ThresholdRule, ...]] = {}
        for number in batch.numbers:
            try:
                pair_rules = self._rules(number)
            except AccError:
                self._local_pairs.add(number)
                continue
            if pair_rules is not None:
                rules[number] = pair_rules
        numbers = tuple(number for number in batch.numbers if number not in self._local_pairs)
        return MeasureCall(numbers, rules) if numbers else None

    def _submit(self, call: Any, node: str, batch: Batch | None) -> Hashable:
        packed = pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
        ticket = self._pool.submit(packed, self._fleet.alive[node])
        task = self._tasks[ticket] = _Task(batch, node, time.monotonic())
        self._loads[node] += 1
        self._alone[node] += task.is_alone
        self.traffic.sent += len(packed)
        return ticket

    def _check_fleet(self, now: float) -> None:
        """Give up what is left where no node has been alive for long."""
        if self._fleet.alive or self._tasks:
            self._without_nodes = None
            return
        if self._without_nodes is None:
            self._without_nodes = now
            self._say(f"acc: no node of the cluster is left; waiting {PATIENCE:.0f} s for one")
        elif now - self._without_nodes > PATIENCE:
            self._dispatch.give_up(self._dispatch.drop_waiting(), "no node of the cluster is left")

    def close(self) -> None:
        """End what still runs."""
        self._pool.close()


# `TaskPatience`: how long an answer is waited for before its task counts as lost.


_SLOWEST = 4 * 2**20
"""Bytes a second that a node reads at least, as long as nothing better is known."""
_SLOWER = 10.0
"""Factor by which a task may be slower than the slowest so far, byte for byte."""


class TaskPatience:
    """Learns from tasks that were answered. A task weighs its bytes, and something for each of its pairs.

    Any task may take so many `seconds`, beside those for its bytes: a process starts, a file system is slow.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._slowest = 0.0

    def answered(self, seconds: float, nbytes: int, pairs: int) -> None:
        """A task has kept a core so long."""
        self._slowest = max(self._slowest, seconds / _weight(nbytes, pairs))

    def with_task(self, nbytes: int, pairs: int) -> float:
        """Seconds for which the answer of a task is waited for, from the moment it was handed out."""
        weight = _weight(nbytes, pairs)
        return max(self._seconds + weight / _SLOWEST, _SLOWER * self._slowest * weight)


def _weight(nbytes: int, pairs: int) -> int:
    return nbytes + PER_PAIR * pairs


# `Fleet`: the nodes that take part. Each is asked what it has before its first batch, late ones as well.


EVERY = 2.0
"""Seconds between two looks at which nodes are alive."""
REST = 15.0
"""Seconds for which a node is left alone on which a task could not run: a cluster learns late that one is
gone."""


class Fleet:
    """The nodes of a pool that have answered `question` as this machine does. `say` prints a line."""

    def __init__(self, pool: Pool, question: ProbeQuestion, say: Callable[[str], None]) -> None:
        self._pool = pool
        self._question = question
        self._say = say
        self._local_sight = question.answer()
        self._sights: dict[str, Sight] = {}
        self._kinds: dict[str, str] = {}
        self._refused: set[str] = set()
        self._excluded: set[str] = set()
        self._due = 0.0
        self._resting: dict[str, float] = {}
        self.alive: dict[str, ClusterNode] = {}

    def start(self, now: float) -> None:
        """Ask all nodes. One that is gone by then is left out.

        Raises `SettingsError` for one that cannot take part, or where there is none.
        """
        nodes = [node for node in self._pool.nodes() if node.tasks]
        if refusals := [sentence for _, sentence in self._ask(nodes)]:
            suffix = f" ({len(refusals) - 1} other nodes are refused too)" if refusals[1:] else ""
            raise SettingsError(f"acc_engine = ray: {refusals[0]}{suffix}")
        if not nodes:
            raise SettingsError(
                "acc_engine = ray: no node of the cluster has a core (or as many as acc_threads); add one"
            )
        self._admit(nodes)
        if not self.alive:
            raise SettingsError("acc_engine = ray: no node of the cluster answers; look at `ray status`")
        self._due = now + EVERY

    def refresh(self, now: float) -> None:
        """Look which nodes are alive, if it is time to. One that came later and is of no use is left out,
        with a line."""
        if now < self._due:
            return
        self._due = now + EVERY
        self._resting = {node: until for node, until in self._resting.items() if until > now}
        out = self._refused | self._excluded | self._resting.keys()
        nodes = [node for node in self._pool.nodes() if node.tasks and node.id not in out]
        for node, sentence in self._ask([node for node in nodes if node.id not in self._sights]):
            self._refused.add(node.id)
            self._say(f"acc: {sentence}; it is left out")
        self._admit(nodes)

    def rest(self, node: str, now: float) -> None:
        """Take a node out for a while."""
        self._resting[node] = now + REST
        self.alive.pop(node, None)

    def leave_out(self, node: str, why: str) -> None:
        """Take a node out until it is taken back."""
        if node in self.alive:
            self._say(f"acc: node {self.alive.pop(node).name} {why}; its pairs go elsewhere")
        self._excluded.add(node)

    def take_back(self, node: str) -> None:
        """A node may take part again."""
        self._excluded.discard(node)

    def _ask(self, nodes: Sequence[ClusterNode]) -> list[tuple[ClusterNode, str]]:
        """The nodes that cannot take part, and why; those that are gone neither can nor cannot."""
        if not nodes:
            return []
        answers = self._pool.probe(pickle.dumps(self._question), nodes)
        refused = []
        for node, answer in zip(nodes, answers):
            if isinstance(answer, LostTask) and answer.node_is_gone:
                continue
            if sentence := refusal(node, answer, self._question, self._local_sight):
                refused.append((node, sentence))
            else:
                sight = self._sights[node.id] = sight_of(answer)
                self._kinds[node.id] = repr(sight.files)
        return refused

    def _admit(self, nodes: Sequence[ClusterNode]) -> None:
        self.alive = {node.id: node for node in nodes if node.id in self._sights}

    @property
    def present(self) -> dict[str, Sequence[bool]]:
        """For each node that is alive, which of the samples it has; all have what lies in stores."""
        return {
            node.id: [
                is_present or (is_address(sample) and host_of(sample) in ("", *node.called))
                for sample, is_present in zip(self._question.samples, self._sights[node.id].present)
            ]
            for node in self.alive.values()
        }

    @property
    def kinds(self) -> dict[str, frozenset[str]]:
        """The nodes that are alive, those that see the same files together."""
        kinds: dict[str, set[str]] = collections.defaultdict(set)
        for node in self.alive:
            kinds[self._kinds[node]].add(node)
        return {kind: frozenset(nodes) for kind, nodes in kinds.items()}

    def kind(self, node: str) -> str:
        """The kind of a node that takes part, or has."""
        return self._kinds[node]


# `RemoteRecomputer`: operators of mine computed again on a node that has their inputs.


class RemoteRecomputer:
    """A `Recomputer` whose answers come from the nodes of an engine. Each is asked for once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answers = functools.cache(self._ask)

    def of_pair(self, number: int) -> Recomputation:
        return self._answers("of_pair", number)

    def of_operator(self, number: int, path: str) -> Recomputation:
        return self._answers("of_operator", number, path)

    def of_golden(self, number: int) -> Recomputation:
        return self._answers("of_golden", number)

    @functools.cache  # noqa: B019 - it lives as long as the run
    def unlike(self, number: int, path: str) -> str:
        try:
            return str(self._engine.ask(number, RecomputeCall("unlike", (number, path))))
        except NotMeasured:
            return ""

    def _ask(self, method: str, number: int, *more: str) -> Recomputation:
        try:
            outcome: Recomputation = self._engine.ask(number, RecomputeCall(method, (number, *more)))
        except NotMeasured as error:
            return Recomputation(why=str(error))
        return outcome


# `EnginePace`: how far the nodes are, in a line: how many, how fast, what is left.


PER_PAIR = 2**20
"""Cost of a pair beyond its bytes, as bytes."""
SLOW = 0.1
"""GB/s below which a speed is written in MB/s."""


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class EnginePace:
    """Pace of a run: when a line is due, and what it says. Times are seconds of any clock."""

    def __init__(self) -> None:
        self._began = self._next = 0.0
        self._pairs = self._bytes = self._total = self._size = 0

    def begin(self, now: float, pairs: int, nbytes: int) -> None:
        """So many pairs of so many bytes are to be measured."""
        self._began, self._next = now, now + progress.FIRST
        self._total += pairs
        self._size += nbytes

    def ended(self, pairs: int, nbytes: int) -> None:
        """So many of them are."""
        self._pairs += pairs
        self._bytes += nbytes

    def due(self, now: float) -> bool:
        """Whether enough time has passed since the last line, and something is left."""
        return now >= self._next and self._pairs < self._total

    def line(self, now: float, nodes: int) -> str:
        """`acc: 4 nodes, 2.1 GB/s, 1,024 of 8,192 pairs left, about 40 s`; the pace is that so far."""
        passed = now - self._began
        self._next = now + max(progress.EVERY, progress.SHARE * passed)
        phrases = [counted(nodes, "node")]
        if self._pairs and passed:
            speed, unit = self._bytes / passed / 1e9, "GB/s"
            if speed < SLOW:
                speed, unit = 1e3 * speed, "MB/s"
            phrases.append(f"{speed:.2g} {unit}")
        phrases.append(f"{self._total - self._pairs:,} of {self._total:,} pairs left")
        if self._pairs:
            done, total = (PER_PAIR * self._pairs + self._bytes, PER_PAIR * self._total + self._size)
            phrases.append(f"about {progress.duration(passed * max(0, total - done) / done)}")
        return f"acc: {', '.join(phrases)}"
