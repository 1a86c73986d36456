"""Which pairs are choices (top-k, argmax, sort), and the tensors that they were chosen from.

An index says nothing of how near another one was; only the values chosen from tell a swap among equals from a
wrong choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ..dumps.base import Dump, Slot, Step
from ..errors import AccError
from ..tensors.ref import TensorRef
from ..topology.tree import Node
from .pair import Operand, Pair, Plan, Whole

_OUTPUTS = {
    "topk": 1,
    "topkv2": 1,
    "topkd": 1,
    "moegatingtopksoftmax": 1,
    "sort": 1,
    "sortoperation": 1,
    "argmax": 0,
    "argmaxv2": 0,
    "argmaxd": 0,
    "argmin": 0,
    "argmaxwithvalue": 0,
    "argminwithvalue": 0,
}
"""Types of operators that choose among the values of their first input, and which output says what."""
_CHOSEN_FROM = Slot("input")


def with_choices(plan: Plan, golden: Dump, mine: Dump) -> Plan:
    """The plan whose pairs of choices know what was chosen from, on each side, as far as it was dumped.

    A tensor that only hands a choice on (a Cast) is one where the other side's operator chose. So is an
    output of a module (a router), whose other tensors are looked through for what it chose from.
    """
    sides = (
        _Side(golden, ((pair, pair.golden) for pair in plan.pairs)),
        _Side(mine, ((pair, pair.mine) for pair in plan.pairs)),
    )
    if not any(side.known for side in sides):
        return plan
    by_golden: dict[Sequence[TensorRef], tuple[TensorRef, ...]] = {}
    by_mine: dict[Sequence[TensorRef], tuple[TensorRef, ...]] = {}
    for pair in plan.pairs:
        one, other = (side.known.get(end.refs) for side, end in zip(sides, (pair.golden, pair.mine)))
        if one and other:
            by_golden[pair.golden.refs] = other
            by_mine[pair.mine.refs] = one
    pairs = []
    for pair in plan.pairs:
        one = sides[0].known.get(pair.golden.refs) or by_mine.get(pair.mine.refs)
        other = sides[1].known.get(pair.mine.refs) or by_golden.get(pair.golden.refs)
        if other and not one:
            one = sides[0].beside(pair, pair.golden)
        elif one and not other:
            other = sides[1].beside(pair, pair.mine)
        pairs.append(_chosen(pair, one, other) if one and other else pair)
    return replace(plan, pairs=tuple(pairs))


def with_logits(pairs: Sequence[Pair], parents: Sequence[Sequence[int]]) -> tuple[Pair, ...]:
    """The pairs with the logits of the step before, from which the token ids of a decode step were chosen."""
    found = list(pairs)
    for number, pair in enumerate(pairs):
        above = parents[number] if pair.fed == "token ids" and number < len(parents) else ()
        if above and pairs[above[-1]].step != pair.step:
            logits = pairs[above[-1]]
            found[number] = _chosen(pair, logits.golden.refs, logits.mine.refs)
    return tuple(found)


def _chosen(pair: Pair, golden: tuple[TensorRef, ...], mine: tuple[TensorRef, ...]) -> Pair:
    return replace(
        pair,
        golden=replace(pair.golden, chosen_from=golden),
        mine=replace(pair.mine, chosen_from=mine),
    )


class _Side:
    """What the choices of one dump were chosen from, by the tensors that say what was chosen."""

    def __init__(self, dump: Dump, ends: Iterator[tuple[Pair, Operand]]) -> None:
        self._dump = dump
        self.known: dict[tuple[TensorRef, ...], tuple[TensorRef, ...]] = {}
        for pair, operand in ends:
            if operand.refs in self.known or not _says_what_was_chosen(operand):
                continue
            if found := self._chosen_from(pair, operand):
                self.known[operand.refs] = (found,)

    def beside(self, pair: Pair, operand: Operand) -> tuple[TensorRef, ...]:
        """All other tensors of the node that wrote that of `operand`, outputs first; empty for a piece."""
        if not _is_whole(operand):
            return ()
        found = sorted(
            self._tensors(pair, operand).items(), key=lambda one: (one[0].kind != "output", one[0])
        )
        return tuple(ref for _, ref in found if ref not in operand.refs)

    def _chosen_from(self, pair: Pair, operand: Operand) -> TensorRef | None:
        """The first input of the operator in the execution that wrote the tensor of `operand`."""
        return self._tensors(pair, operand).get(_CHOSEN_FROM)

    def _tensors(self, pair: Pair, operand: Operand) -> Mapping[Slot, TensorRef]:
        """The tensors of the execution that wrote the tensor of `operand`."""
        # Nearly always it is the step of the same label; golden's may have another.
        for step, node in sorted(self._places[operand.node], key=lambda place: place[0].label != pair.step):
            for rank in self._dump.ranks:
                try:
                    found = self._dump.tensors(step, rank, node)
                except (AccError, OSError):
                    continue
                if operand.refs[0] in found.values():
                    return found
        return {}

    @cached_property
    def _places(self) -> Mapping[str, Sequence[tuple[Step, Node]]]:
        """The steps in which each node ran, by its path."""
        found: dict[str, list[tuple[Step, Node]]] = defaultdict(list)
        for step in self._dump.steps:
            for node in step.tree.walk():
                found[node.path].append((step, node))
        return found


def _says_what_was_chosen(operand: Operand) -> bool:
    """Whether the tensor is that output of an operator that chooses; pieces and sums over ranks are not."""
    output = _OUTPUTS.get(_plain(operand.op_type))
    return _is_whole(operand) and output is not None and operand.slot == str(Slot("output", (output,)))


def _is_whole(operand: Operand) -> bool:
    return operand.view == Whole() and len(operand.refs) == 1


def _plain(op_type: str) -> str:
    """`aten.topk.default`, `torch.topk` and `TopK` are one type."""
    parts = op_type.lower().split(".")
    if parts[0] == "aten" and len(parts) > 1:
        return parts[1]
    return parts[-1].replace("_", "")
