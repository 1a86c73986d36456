"""Which pairs are choices (top-k, argmax, sort), and the tensors that they were chosen from.

An index says nothing of how near another one was; only the values chosen from tell a swap among equals from a
wrong choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..dumps.base import Dump, Slot
from ..errors import AccError
from ..tensors.ref import TensorRef
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

    A tensor that only hands a choice on (a Cast) is one where the other side's operator chose.
    """
    sides = (_Side(golden, (pair.golden for pair in plan.pairs)), _Side(mine, (p.mine for p in plan.pairs)))
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

    def __init__(self, dump: Dump, operands: Iterator[Operand]) -> None:
        self._dump = dump
        self.known: dict[tuple[TensorRef, ...], tuple[TensorRef, ...]] = {}
        for operand in operands:
            if operand.refs in self.known or not _says_what_was_chosen(operand):
                continue
            if found := self._chosen_from(operand):
                self.known[operand.refs] = (found,)

    def _chosen_from(self, operand: Operand) -> TensorRef | None:
        """The first input of the operator in the execution that wrote the tensor of `operand`."""
        for step in self._dump.steps:
            if (node := step.tree.by_path.get(operand.node)) is None:
                continue
            for rank in self._dump.ranks:
                try:
                    found = self._dump.tensors(step, rank, node)
                except (AccError, OSError):
                    continue
                if operand.refs[0] in found.values():
                    return found.get(_CHOSEN_FROM)
        return None


def _says_what_was_chosen(operand: Operand) -> bool:
    """Whether the tensor is that output of an operator that chooses; pieces and sums over ranks are not."""
    output = _OUTPUTS.get(_plain(operand.op_type))
    whole = operand.view == Whole() and len(operand.refs) == 1
    return whole and output is not None and operand.slot == str(Slot("output", (output,)))


def _plain(op_type: str) -> str:
    """`aten.topk.default`, `torch.topk` and `TopK` are one type."""
    parts = op_type.lower().split(".")
    if parts[0] == "aten" and len(parts) > 1:
        return parts[1]
    return parts[-1].replace("_", "")
