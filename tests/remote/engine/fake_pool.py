"""A pool in this process: tasks run when they are asked for, unless a test has its node die before."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from acc_pytest.mapping.pair import Operand, Pair
from acc_pytest.remote.engine.dispatch import Placement
from acc_pytest.remote.engine.engine import Engine, Fleet, TaskPatience
from acc_pytest.remote.engine.pool import (
    ClusterNode,
    Ended,
    LostTask,
    ProbeAnswer,
    ProbeQuestion,
    portable_probe,
)
from acc_pytest.remote.engine.work import MeasureCall, RecomputeCall
from acc_pytest.reporting.row import Row
from acc_pytest.tensors.header import version_of
from acc_pytest.tensors.ref import TensorRef

PATIENCE = 300.0
Loses = Callable[[str, "MeasureCall | RecomputeCall"], bool]


@dataclass
class FakePool:
    """Nodes `a`, `b`, ... with one core each. `loses` says which tasks end without an answer; `silent` nodes
    never say so."""

    subject: Any
    names: list[str] = field(default_factory=lambda: ["a", "b"])
    loses: Loses = lambda node, call: False
    gone: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    cancelled: list[Hashable] = field(default_factory=list)
    ran: list[tuple[str, MeasureCall | RecomputeCall]] = field(default_factory=list)
    tasks: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    count: int = 0
    is_closed: bool = False

    def nodes(self) -> list[ClusterNode]:
        return [ClusterNode(name, name.upper(), 1, 1) for name in self.names]

    def probe(self, question: bytes, nodes: Sequence[ClusterNode]) -> list[ProbeAnswer]:
        return [portable_probe()(question) for _ in nodes]

    def submit(self, call: bytes, node: ClusterNode) -> Hashable:
        self.count += 1
        self.tasks[self.count] = node.id, call
        return self.count

    def ended(self, seconds: float) -> Iterator[Ended]:
        heard = [one for one in self.tasks.items() if one[1][0] not in self.silent]
        for ticket, (node, packed) in heard[:1]:
            del self.tasks[ticket]
            call = pickle.loads(packed)
            if node not in self.names or self.loses(node, call):
                yield ticket, LostTask("the node died", node in self.gone)
            else:
                self.ran.append((node, call))
                yield ticket, call.answer(self.subject_on(node))

    def subject_on(self, node: str) -> Any:
        """What a node compares: `subject` itself, unless a test has one for each."""
        return self.subject[node] if isinstance(self.subject, dict) else self.subject

    def cancel(self, ticket: Hashable) -> None:
        self.cancelled.append(ticket)

    def close(self) -> None:
        self.is_closed = True

    @property
    def measured(self) -> list[int]:
        """The pairs that were measured, in that order, those that were measured twice as well."""
        return [number for _, call in self.ran if isinstance(call, MeasureCall) for number in call.numbers]


def pair(number: int, *paths: str, rank: int | None = 0) -> Pair:
    """A pair of these files, the first golden's."""
    golden, *mine = (TensorRef(path) for path in paths or ("g", "m"))
    return Pair(
        f"Op_{number}", 0, rank, "op", "layers.0", 0, number, "name", "same name",
        Operand(f"g{number}", "g", "Op", "output[0]", (golden,)),
        Operand(f"m{number}", "m", "Op", "output[0]", tuple(mine)),
    )  # fmt: skip


class FakeSubject:
    """Pairs whose rows say which node measured them; `verdict` is that of all."""

    def __init__(self, pairs: Sequence[Pair], name: str = "", verdict: str = "pass") -> None:
        self.plan: Any = SimpleNamespace(pairs=tuple(pairs))
        self.recomputer: Any = None
        self.name = name
        self.verdict = verdict

    def judge_by(self, rules: Any) -> Any:
        return rules

    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Any]) -> Row:
        for ref in (*pair.golden.refs, *pair.mine.refs):
            version_of(ref.path)
        return Row(test_id, self.verdict, f"{self.name} {make_judge()}", number)


def engine_of(pool: FakePool, pairs: Sequence[Pair], said: list[str] | None = None) -> Engine:
    """An engine over the pool, whose lines go to `said`."""
    placement = Placement(tuple(pairs))
    say = (lambda line: None) if said is None else said.append
    fleet = Fleet(pool, ProbeQuestion(placement.samples, (), ()), say)
    fleet.start(0.0)
    return Engine(pool, fleet, placement, say, TaskPatience(PATIENCE))
