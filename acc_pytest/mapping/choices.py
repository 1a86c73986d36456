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
from .pair import Operand, Pair, Plan
from .views import Whole

_OUTPUTS = {
    "topk": 1,
    "topkv2": 1,
    "topkd": 1,
    "moegatingtopksoftmax": 1,
    "sort": 1,
    "sortoperation": 1,
    "max": 1,
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
        _ChoicesOfDump(golden, ((pair, pair.golden) for pair in plan.pairs)),
        _ChoicesOfDump(mine, ((pair, pair.mine) for pair in plan.pairs)),
    )
    if not any(side.known for side in sides):
        return plan
    choices = _ChoicesOfBoth(plan.pairs, *sides)
    return replace(plan, pairs=tuple(choices.attached(pair) for pair in plan.pairs))


def with_logits(pairs: Sequence[Pair], parents: Sequence[Sequence[int]]) -> tuple[Pair, ...]:
    """The pairs; token ids of a decode step know the logits of the step before they were chosen from."""
    with_choice = list(pairs)
    for number, pair in enumerate(pairs):
        above = parents[number] if pair.fed == "token ids" and number < len(parents) else ()
        if above and pairs[above[-1]].step != pair.step:
            logits = pairs[above[-1]]
            with_choice[number] = chosen(pair, logits.golden.refs, logits.mine.refs)
    return tuple(with_choice)


def chosen(pair: Pair, golden: tuple[TensorRef, ...], mine: tuple[TensorRef, ...]) -> Pair:
    """The pair of a choice that knows what either side chose from."""
    return replace(
        pair,
        golden=replace(pair.golden, chosen_from=golden),
        mine=replace(pair.mine, chosen_from=mine),
    )


class _ChoicesOfDump:
    """What the choices of one dump were chosen from, by the tensors that say what was chosen."""

    def __init__(self, dump: Dump, ends: Iterator[tuple[Pair, Operand]]) -> None:
        self._dump = dump
        self.known: dict[tuple[TensorRef, ...], tuple[TensorRef, ...]] = {}
        for pair, operand in ends:
            if operand.refs in self.known or not _says_what_was_chosen(operand):
                continue
            if ref := self._chosen_from(pair, operand):
                self.known[operand.refs] = (ref,)

    def other_tensors(self, pair: Pair, operand: Operand) -> tuple[TensorRef, ...]:
        """All other tensors of the node that wrote that of `operand`, outputs first; empty for a piece."""
        if not _is_whole(operand):
            return ()
        outputs_first = sorted(
            self._tensors(pair, operand).items(), key=lambda item: (item[0].kind != "output", item[0])
        )
        return tuple(ref for _, ref in outputs_first if ref not in operand.refs)

    def _chosen_from(self, pair: Pair, operand: Operand) -> TensorRef | None:
        """The first input of the operator in the execution that wrote the tensor of `operand`."""
        return self._tensors(pair, operand).get(_CHOSEN_FROM)

    def _tensors(self, pair: Pair, operand: Operand) -> Mapping[Slot, TensorRef]:
        """The tensors of the execution that wrote the tensor of `operand`."""
        # Nearly always it is the step of the same label; golden's may have another.
        for step, node in sorted(self._places[operand.node], key=lambda place: place[0].label != pair.step):
            for rank in self._dump.ranks:
                try:
                    tensors = self._dump.tensors(step, rank, node)
                except (AccError, OSError):
                    continue
                if operand.refs[0] in tensors.values():
                    return tensors
        return {}

    @cached_property
    def _places(self) -> Mapping[str, Sequence[tuple[Step, Node]]]:
        """The steps in which each node ran, by its path."""
        steps: dict[str, list[tuple[Step, Node]]] = defaultdict(list)
        for step in self._dump.steps:
            for node in step.tree.walk():
                steps[node.path].append((step, node))
        return steps


class _ChoicesOfBoth:
    """What the choices of both dumps were chosen from, as far as pairs link what is known of either."""

    def __init__(self, pairs: Sequence[Pair], golden: _ChoicesOfDump, mine: _ChoicesOfDump) -> None:
        self._golden = golden
        self._mine = mine
        self._by_golden: dict[tuple[TensorRef, ...], tuple[TensorRef, ...]] = {}
        self._by_mine: dict[tuple[TensorRef, ...], tuple[TensorRef, ...]] = {}
        for pair in pairs:
            golden_choice, mine_choice = golden.known.get(pair.golden.refs), mine.known.get(pair.mine.refs)
            if golden_choice and mine_choice:
                self._by_golden[pair.golden.refs] = mine_choice
                self._by_mine[pair.mine.refs] = golden_choice

    def attached(self, pair: Pair) -> Pair:
        """The pair with what was chosen from; as it is where only one side knows, or none."""
        golden = self._golden.known.get(pair.golden.refs) or self._by_mine.get(pair.mine.refs)
        mine = self._mine.known.get(pair.mine.refs) or self._by_golden.get(pair.golden.refs)
        if mine and not golden:
            golden = self._golden.other_tensors(pair, pair.golden)
        elif golden and not mine:
            mine = self._mine.other_tensors(pair, pair.mine)
        return chosen(pair, golden, mine) if golden and mine else pair


def _says_what_was_chosen(operand: Operand) -> bool:
    """Whether the tensor is that output of an operator that chooses; pieces and sums over ranks are not."""
    output = _OUTPUTS.get(_plain(operand.op_type))
    return _is_whole(operand) and output is not None and operand.slot == str(Slot("output", (output,)))


def _is_whole(operand: Operand) -> bool:
    """Whether it is no piece and no sum: shards of choices are replicas, of which the first tells of all."""
    return operand.view == Whole()


def _plain(op_type: str) -> str:
    """`aten.topk.default`, `torch.topk` and `TopK` are one type."""
    parts = op_type.lower().split(".")
    if parts[0] == "aten" and len(parts) > 1:
        return parts[1]
    return parts[-1].replace("_", "")
