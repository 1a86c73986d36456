"""Small plans and rows for the tests of root analysis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from acc_pytest.diagnosis.evidence import PairState
from acc_pytest.diagnosis.inheritance import Inheritance
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.reference.recomputation import Recomputation
from acc_pytest.reporting.row import Row, RowSide


def plan_of(
    parents: Sequence[Sequence[int]],
    steps: Sequence[int] = (),
    by_order: frozenset[int] = frozenset(),
    between: Mapping[int, tuple[str, ...]] | None = None,
    lineage: str = "tensor names in the topology",
) -> Plan:
    """A plan whose pairs are called `Op_0`, `Op_1` and so on."""
    pairs = tuple(
        Pair(
            id=f"Op_{number}",
            step=steps[number] if steps else 0,
            rank=None,
            level="op",
            layer="model",
            depth=0,
            order=number,
            policy="role",
            reason="",
            golden=Operand(f"g{number}", f"g{number}", "", "output[0]", ()),
            mine=Operand(f"{number}_Op", f"Op_{number}", "Op", "output[0]", ()),
        )
        for number in range(len(parents))
    )
    return Plan(
        "g", "m", "torch", "atb", "dump", pairs, (), (), 0, 0, 0, 0,
        tuple(map(tuple, parents)), lineage, by_order, between or {},
    )  # fmt: skip


def row_of(number: int, level: float, step: int = 0, error: float | None = None, **more: Any) -> Row:
    """The row of `Op_{number}`, which fails where its `level` is above 1."""
    passed = level <= 1
    check = Check("relative_euclidean_distance", level * 0.01, 0.01, False, "", passed)
    return Row(
        f"dump::step{step}::Op_{number}",
        "pass" if passed else "fail",
        f"error is {level:g}",
        number=number,
        step=step,
        mine=RowSide(name=f"Op_{number}", op_type="Op"),
        metrics={"relative_euclidean_distance": level * 0.01 if error is None else error},
        checks=() if math.isnan(level) else (check,),
        **more,
    )


class Locals:
    """Answers of what was computed again, by number, and by path for what is not compared."""

    def __init__(self, known: Mapping[Any, str] | None = None) -> None:
        self._known = known or {}
        self.asked: list[object] = []

    def of_pair(self, number: int) -> Recomputation:
        self.asked.append(number)
        error = 0.3 if number in self._known else None
        reads = self._known.get(("reads", number), "")
        return Recomputation(self._known.get(number, ""), error, "no reference", reads=reads)

    def of_golden(self, number: int) -> Recomputation:
        return Recomputation(self._known.get(("golden", number), ""))

    def of_operator(self, number: int, path: str) -> Recomputation:
        self.asked.append(path)
        return Recomputation(self._known.get(path, ""))

    def unlike(self, number: int, path: str) -> str:
        return self._known.get(("unlike", path), "")


def inheritance_of(
    plan: Plan, levels: Mapping[int, float], known: Mapping[Any, str] | None = None
) -> tuple[Inheritance, dict[int, PairState], Locals]:
    """Root analysis of pairs with these levels; those without one do not run."""
    states = {number: PairState.of(row_of(number, level), number) for number, level in levels.items()}
    locals_ = Locals(known)
    return Inheritance(plan, states.get, locals_), states, locals_
