"""Pairs of choices (top-k, argmax, sort), and the tensors that they were chosen from.

An index does not say how near the next one was; only the values chosen from tell a swap among equals from a
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
"""Types of operators that choose among the values of their first input, and the output that says which."""
_CHOSEN_FROM = Slot("input")


def with_choices(plan: Plan, golden: Dump, mine: Dump) -> Plan:
    """The plan whose pairs of choices have the tensors chosen from, on each side, as far as they were dumped.

    A tensor that only hands a choice on (a Cast) is a choice where the other side's operator chose. So is an
    output of a module (a router): its other tensors are searched for the one that it chose from.
    """
    sides = (
        _ChoicesOfDump(golden, ((pair, pair.golden) for pair in plan.pairs)),
        _ChoicesOfDump(mine, ((pair, pair.mine) for pair in plan.pairs)),
    )
    if not any(side.sources for side in sides):
        return plan
    choices = _ChoicesOfBoth(plan.pairs, *sides)
    return replace(plan, pairs=tuple(choices.attached(pair) for pair in plan.pairs))


def with_logits(pairs: Sequence[Pair], parents: Sequence[Sequence[int]]) -> tuple[Pair, ...]:
    """The pairs; token ids of a decode step have the logits of the step before, which they were chosen
    from."""
    with_choice = list(pairs)
    for number, pair in enumerate(pairs):
        sources = parents[number] if pair.fed == "token ids" and number < len(parents) else ()
        if sources and pairs[sources[-1]].step != pair.step:
            logits = pairs[sources[-1]]
            with_choice[number] = chosen(pair, logits.golden.refs, logits.mine.refs)
    return tuple(with_choice)


def chosen(pair: Pair, golden: tuple[TensorRef, ...], mine: tuple[TensorRef, ...]) -> Pair:
    """The pair of a choice, with the tensors that either side chose from."""
    return replace(
        pair,
        golden=replace(pair.golden, chosen_from=golden),
        mine=replace(pair.mine, chosen_from=mine),
    )


class _ChoicesOfDump:
    """Tensors that the choices of one dump were chosen from, by the tensors of these choices."""

    def __init__(self, dump: Dump, ends: Iterator[tuple[Pair, Operand]]) -> None:
        self._dump = dump
        self.sources: dict[tuple[TensorRef, ...], tuple[TensorRef, ...]] = {}
        for pair, operand in ends:
            if operand.refs in self.sources or not _is_choice_output(operand):
                continue
            if ref := self._chosen_from(pair, operand):
                self.sources[operand.refs] = (ref,)

    def of(self, operand: Operand) -> tuple[TensorRef, ...] | None:
        """The tensors that the choice in `operand` was chosen from."""
        return self.sources.get(operand.refs)

    def sibling_tensors(self, pair: Pair, operand: Operand) -> tuple[TensorRef, ...]:
        """All other tensors of the node that wrote the tensor of `operand`, outputs first; empty for a
        piece."""
        if not _is_unchanged(operand):
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
    """Tensors that the choices of both dumps were chosen from, as far as pairs link the two."""

    def __init__(self, pairs: Sequence[Pair], golden: _ChoicesOfDump, mine: _ChoicesOfDump) -> None:
        self._golden = golden
        self._mine = mine
        self._by_golden: dict[tuple[TensorRef, ...], tuple[TensorRef, ...]] = {}
        self._by_mine: dict[tuple[TensorRef, ...], tuple[TensorRef, ...]] = {}
        for pair in pairs:
            golden_source, mine_source = golden.of(pair.golden), mine.of(pair.mine)
            if golden_source and mine_source:
                self._by_golden[pair.golden.refs] = mine_source
                self._by_mine[pair.mine.refs] = golden_source

    def attached(self, pair: Pair) -> Pair:
        """The pair with the tensors chosen from; unchanged where only one side has them, or none."""
        golden = self._golden.of(pair.golden) or self._by_mine.get(pair.mine.refs)
        mine = self._mine.of(pair.mine) or self._by_golden.get(pair.golden.refs)
        if mine and not golden:
            golden = self._golden.sibling_tensors(pair, pair.golden)
        elif golden and not mine:
            mine = self._mine.sibling_tensors(pair, pair.mine)
        return chosen(pair, golden, mine) if golden and mine else pair


def _is_choice_output(operand: Operand) -> bool:
    """Whether the tensor is the choice of an operator that chooses; pieces and sums over ranks are not."""
    output = _OUTPUTS.get(_plain(operand.op_type))
    return _is_unchanged(operand) and output is not None and operand.slot == str(Slot("output", (output,)))


def _is_unchanged(operand: Operand) -> bool:
    """Whether the operand is no piece and no sum: shards of choices are replicas, so the first one counts."""
    return operand.view == Whole()


def _plain(op_type: str) -> str:
    """The type without its namespace: `topk` of `aten.topk.default`, `torch.topk` and `TopK`."""
    parts = op_type.lower().split(".")
    if parts[0] == "aten" and len(parts) > 1:
        return parts[1]
    return parts[-1].replace("_", "")
