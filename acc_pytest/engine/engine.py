"""`Engine`: rows of pairs, measured on the nodes of a pool ahead of the tests that wait for them.

It has no thread: whoever waits for a row hands out batches and takes answers meanwhile. So Ctrl-C and `-x`
end it as they end any test, and rows arrive only where somebody can use them.
"""

from __future__ import annotations

import collections
import pickle
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import AccError, Unforeseen
from .answers import unpacked
from .batches import Batch, batches_of
from .dispatch import TOGETHER, Dispatch, GivenUp
from .fleet import Fleet
from .patience import TaskPatience
from .placement import Placement
from .pool import ClusterNode, LostTask, Pool
from .progress import EnginePace
from .work import MeasureCall, RecomputeCall

if TYPE_CHECKING:
    from ..judging.threshold import ThresholdRule
    from ..reporting.row import Row

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
