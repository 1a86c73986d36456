"""What a dump states and does not hold: tensors, steps and ranks, each a failing entry of the plan.

A dump says by `Dump.absent` and `Dump.asks_for` what it should hold. What nobody asked for is not absent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..dumps.base import Dump, Rank, Step, StepLabel
from ..topology.tree import Node
from ..vocabulary import INCOMPLETE
from .pair import Plan, Unmapped

_NAMED = 4
"""Files that a reason names."""


def with_absences(plan: Plan, golden: Dump, mine: Dump) -> Plan:
    """The plan with an entry for each node at a step and rank that lacks files, for each step that a rank
    lacks, and with these nodes in its totals."""
    found = [_Absences("golden", golden), _Absences("mine", mine)]
    for side, other in (found, found[::-1]):
        side.look(other)
    absent = [entry for side in found for entry in side.entries]
    if not absent:
        return plan
    return replace(
        plan,
        unmapped=(*plan.unmapped, *absent),
        golden_total=plan.golden_total + found[0].lacking,
        mine_total=plan.mine_total + found[1].lacking,
    )


@dataclass(eq=False, slots=True)
class _Absences:
    """The entries of one side, and how many nodes its total lacks because of them."""

    side: str
    dump: Dump
    entries: list[Unmapped] = field(default_factory=list)
    lacking: int = 0

    def look(self, other: _Absences) -> None:
        """Find what is absent. A step that only the `other` side has is, where this one asks for it."""
        for step in self.dump.steps:
            for rank in self.dump.ranks:
                self._of_rank(step, rank)

    def _of_rank(self, step: Step, rank: Rank) -> None:
        where = f" of rank {rank.name}" if len(self.dump.ranks) > 1 else ""
        for path, files in self.dump.absent(step, rank).items():
            node = step.tree.by_path.get(path) or Node(path, "", path)
            named = ", ".join(files[:_NAMED]) + (f" and {len(files) - _NAMED} more" if files[_NAMED:] else "")
            verb = "is" if len(files) == 1 else "are"
            reason = f"the dump names {named}{where}, which {verb} not there"
            self.entries.append(self._entry(step.label, rank, node, reason))
            if rank is self.dump.ranks[0] and not self._has_output(step, rank, node):
                self.lacking += 1

    def _has_output(self, step: Step, rank: Rank, node: Node) -> bool:
        return any(slot.kind == "output" for slot in self.dump.tensors(step, rank, node))

    def _entry(self, label: StepLabel, rank: Rank, node: Node, reason: str) -> Unmapped:
        number = rank.index if len(self.dump.ranks) > 1 else None
        return Unmapped(
            self.side, label, node.path, node.name, node.op_type, reason, rank=number, why=INCOMPLETE
        )
