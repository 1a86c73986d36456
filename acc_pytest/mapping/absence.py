"""Tensors, steps and ranks that a dump names and does not hold, each a failing entry of the plan.

`Dump.absent` and `Dump.asks_for` say what a dump should hold. A tensor that nobody asked for is not absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..dumps.base import Dump, Rank, Slot, Step, StepLabel
from ..topology.tree import Node
from ..vocabulary import INCOMPLETE
from .dump_step import DumpStep
from .layered_tree import LayeredTree
from .pair import LAST_OUTPUT, Pair, Unmapped
from .steps import token_steps

_NAMED = 4
"""Files that a reason names."""


def absences(golden: Dump, mine: Dump) -> tuple[Absences, Absences]:
    """The absences of golden and of mine, in the steps that are compared or that the other side has."""
    sides = Absences("golden", golden), Absences("mine", mine)
    by_label = token_steps(golden, mine) is None
    for side, partner in (sides, sides[::-1]):
        labels = {step.label for step in (partner if by_label else side).dump.steps}
        side.look([step for step in side.dump.steps if step.label in labels])
        if by_label:
            side.look_for_steps(partner.dump)
    return sides


def ends_of(golden: LayeredTree) -> list[Node]:
    """The nodes that give the last output of golden's model: those of the logits, else the model and the node
    that ended last in it; empty where golden holds none."""
    logits = [export.node for export in golden.model_exports() if export.role == "lm_head"]
    ends: list[Node] = []
    inside = [golden.side.tree.root]
    while inside and not logits:
        ends += inside[-1:]
        inside = [node for node in inside[-1].children if _outputs(golden.side.slots(node))]
    return logits or [node for node in ends if _outputs(golden.side.slots(node))]


def ends_alone(ends: Mapping[StepLabel, Sequence[Node]], pairs: Iterable[Pair]) -> Iterator[Unmapped]:
    """An entry for each step of whose `ends` none is compared."""
    compared = {(pair.step, pair.golden.node) for pair in pairs}
    for label, nodes in ends.items():
        if nodes and not any((label, node.path) in compared for node in nodes):
            last = nodes[0]
            reason = f"{LAST_OUTPUT}: mine has no partner for it"
            yield Unmapped("golden", label, last.path, last.name, last.op_type, reason, why=INCOMPLETE)


@dataclass(eq=False, slots=True)
class Absences:
    """The entries of one side, and the number of nodes that each rank lacks."""

    side: str
    dump: Dump
    entries: list[Unmapped] = field(default_factory=list)
    lacking: Counter[int] = field(default_factory=Counter)

    def look(self, steps: Iterable[Step]) -> None:
        """Find the files and the ranks that are absent in steps that are compared."""
        for step in steps:
            dump_step = DumpStep(self.dump, step)
            needs_all_ranks = len(self.dump.ranks) > 1 and self.dump.asks_for(step.label)
            empty = [rank for rank in self.dump.ranks if needs_all_ranks and not dump_step.holds(rank)]
            filled = [rank for rank in self.dump.ranks if rank not in empty]
            for rank in filled:
                self._look_at(dump_step, rank)
            for rank in empty if filled else ():
                self.lacking[rank.index] += _output_count(dump_step, filled[0])
                reason = f"rank {rank.index} of {len(self.dump.ranks)} has no tensors at step {step.label}"
                self._add(step.label, rank, Node(f"rank{rank.index}", "", ""), reason)

    def look_for_steps(self, counterpart: Dump) -> None:
        """Find the steps that only the dump `counterpart` has, though this one asks for them."""
        labels = {step.label for step in self.dump.steps}
        for step in counterpart.steps:
            if step.label not in labels and self.dump.asks_for(step.label):
                rank = self.dump.ranks[0]
                self.lacking[rank.index] += _output_count(DumpStep(self.dump, self.dump.steps[0]), rank)
                reason = f"step {step.label} was to be dumped and is not there: was the capture interrupted?"
                self._add(step.label, rank, Node(f"step{step.label}", "", ""), reason)

    def count(self, totals: Counter[str]) -> None:
        """Add to the totals of a plan the nodes that the first rank lacks; where other ranks lack some, those
        of all ranks are counted."""
        total, mapped = f"{self.side}_total", f"{self.side}_mapped"
        totals[total] += self.lacking.pop(self.dump.ranks[0].index, 0) if self.lacking else 0
        if self.lacking.total():
            totals[total] *= len(self.dump.ranks)
            totals[mapped] = max(0, totals[mapped] * len(self.dump.ranks) - self.lacking.total())

    def _look_at(self, dump_step: DumpStep, rank: Rank) -> None:
        where = f" of rank {rank.name}" if len(self.dump.ranks) > 1 else ""
        for path, files in self.dump.absent(dump_step.step, rank).items():
            node = dump_step.tree.by_path.get(path) or Node(path, "", path)
            names = ", ".join(files[:_NAMED]) + (f" and {len(files) - _NAMED} more" if files[_NAMED:] else "")
            verb = "is" if len(files) == 1 else "are"
            reason = f"the dump names {names}{where}, which {verb} not there"
            self._add(dump_step.step.label, rank, node, reason)
            self.lacking[rank.index] += not _outputs(dump_step.slots(node, rank))

    def _add(self, label: StepLabel, rank: Rank, node: Node, reason: str) -> None:
        number = rank.index if len(self.dump.ranks) > 1 else None
        names = node.path, node.name, node.op_type
        self.entries.append(Unmapped(self.side, label, *names, reason, rank=number, why=INCOMPLETE))


def _outputs(slots: Iterable[Slot]) -> bool:
    return any(slot.kind == "output" for slot in slots)


def _output_count(dump_step: DumpStep, rank: Rank) -> int:
    """Number of nodes that have an output."""
    return sum(_outputs(dump_step.slots(node, rank)) for node in dump_step.tree.walk())
