"""Pairs of choices (top-k, argmax, sort), and the tensors that they were chosen from.

An index does not say how near the next one was; only the values chosen from tell a swap among equals from a
wrong choice.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Union

from ..base.imports import torch
from ..dumps.base import Dump, NodeSlot, Rank, Slot, Step, StepLabel
from ..errors import AccError, Incomparable, NoPayload
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node
from .pair import Gap, Operand, Pair, Plan
from .steps import StepPair, common_steps
from .views import Largest, TopPlaces, View, Whole

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


class _Execution(NamedTuple):
    """The step of an execution, the place of one of its tensors, and all of them."""

    step: Step
    place: NodeSlot
    tensors: Mapping[Slot, TensorRef]


class _ChoicesOfDump:
    """Tensors that the choices of one dump were chosen from, by the tensors of these choices."""

    def __init__(self, dump: Dump, ends: Iterator[tuple[Pair, Operand]]) -> None:
        self._dump = dump
        self.sources: dict[object, tuple[TensorRef, ...]] = {}
        for pair, operand in ends:
            if operand.refs in self.sources or not _is_choice_output(operand):
                continue
            execution = self._execution(pair, operand)
            if execution is not None and (ref := execution.tensors.get(_CHOSEN_FROM)):
                self.sources[operand.refs] = self.sources[self._origin(execution)] = (ref,)

    def of(self, pair: Pair, operand: Operand) -> tuple[TensorRef, ...] | None:
        """The tensors that the choice in `operand` was chosen from; modules hand on what a call in them
        chose."""
        if operand.refs in self.sources or not (self.sources and _is_unchanged(operand)):
            return self.sources.get(operand.refs)
        header = readable(operand.refs[0])
        execution = self._execution(pair, operand) if header and header.dtype.kind != "float" else None
        return self.sources.get(self._origin(execution)) if execution is not None else None

    def _origin(self, execution: _Execution) -> object:
        """The step of a tensor, and the place where it was seen first."""
        step, place, _ = execution
        origin = self._dump.calls(step).origins.get(place) if self._dump.has_modules else None
        return step.label, place if origin is None else origin.place

    def sibling_tensors(self, pair: Pair, operand: Operand) -> tuple[TensorRef, ...]:
        """All other tensors of the node that wrote the tensor of `operand`, outputs first; empty for a
        piece."""
        if not _is_unchanged(operand):
            return ()
        execution = self._execution(pair, operand)
        tensors = {} if execution is None else execution.tensors
        outputs_first = sorted(tensors.items(), key=lambda item: (item[0].kind != "output", item[0]))
        return tuple(ref for _, ref in outputs_first if ref not in operand.refs)

    def _execution(self, pair: Pair, operand: Operand) -> _Execution | None:
        """The execution that wrote the tensor of `operand`."""
        # Nearly always it is the step of the same label; golden's may have another.
        for step, node in sorted(self._places[operand.node], key=lambda place: place[0].label != pair.step):
            for rank in self._dump.ranks:
                try:
                    tensors = self._dump.tensors(step, rank, node)
                except (AccError, OSError):
                    continue
                for slot, ref in tensors.items():
                    if ref == operand.refs[0]:
                        return _Execution(step, NodeSlot(node.path, slot), tensors)
        return None

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
            golden_source, mine_source = golden.of(pair, pair.golden), mine.of(pair, pair.mine)
            if golden_source and mine_source:
                self._by_golden[pair.golden.refs] = mine_source
                self._by_mine[pair.mine.refs] = golden_source

    def attached(self, pair: Pair) -> Pair:
        """The pair with the tensors chosen from; unchanged where only one side has them, or none."""
        golden = self._golden.of(pair, pair.golden) or self._by_mine.get(pair.mine.refs)
        mine = self._mine.of(pair, pair.mine) or self._by_golden.get(pair.golden.refs)
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


# The choices above each pair, and the tokens of it that these may reach, by the plan alone.
#
# The choice of a token changes that token, until attention reads it: then all later tokens of its sequence,
# and every token of later steps. A choice says by itself which of its tokens differ, so choices above it
# are not passed on to the pairs below it.


_OF_ALL_TOKENS = re.compile(r"atten|attn|mixer|mamba|conv|rwkv|scan|matmul|bmm|einsum", re.IGNORECASE)
"""Words in names and types of modules that read other tokens than the one that they compute."""
_LINEAR = re.compile(r"linear|^conv1d$", re.IGNORECASE)
"""Types of products with weights, which read one token, whatever they are called (`c_attn`)."""
_OF_ONE_TOKEN = re.compile(
    r"mlp|ffn|feed_?forward|moe|expert|router|gate|gating|norm|act|lu$|swish|embed|head|_proj|linear"
    r"|elewise|split|concat|slice|cast|softmax|topk|sort|onehot|reduce|^(add|mul|sub|div|realdiv)",
    re.IGNORECASE,
)
"""Words in names and types of modules that compute each token from that token alone."""
_WITH_PARTS = re.compile(r"(layer|block|model|lm|decoder|encoder|stack)$", re.IGNORECASE)
"""Ends of types of modules whose submodules are compared, so that their names decide:
`Qwen3MoeDecoderLayer`."""


@dataclass(slots=True)
class _Bits:
    """Choices as the bits of integers: those that reach their own tokens, these and the later tokens of their
    sequences, and every token."""

    same: int = 0
    later: int = 0
    every: int = 0

    def add(self, parent: _Bits, *, mixes: bool, crosses_step: bool) -> None:
        """Add the choices above a parent: they are above the pair."""
        if crosses_step:
            self.every |= parent.same | parent.later | parent.every
        elif mixes:
            self.later |= parent.same | parent.later
            self.every |= parent.every
        else:
            self.same |= parent.same
            self.later |= parent.later
            self.every |= parent.every


@dataclass(frozen=True, slots=True)
class ReachingChoices:
    """The numbers of the choices above a pair."""

    same: tuple[int, ...] = ()
    later: tuple[int, ...] = ()
    every: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.same or self.later or self.every)


class ChoicesAbove:
    """The choices of a plan, and which of them lie above each pair."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.choices = tuple(number for number, pair in enumerate(plan.pairs) if is_choice(pair))
        self._by_call: dict[object, list[int]] = defaultdict(list)
        for number in self.choices:
            self._by_call[_call(plan.pairs[number])].append(number)
        self._bits = self._followed() if self.choices else []

    def of(self, number: int) -> ReachingChoices:
        """The choices above the pair `number`."""
        if not self._bits:
            return ReachingChoices()
        bits = self._bits[number]
        return ReachingChoices(
            *(tuple(self._numbers(flags)) for flags in (bits.same, bits.later, bits.every))
        )

    def beside(self, number: int) -> Sequence[int]:
        """The choices among the results of the call that made the tensor of a pair, such as its values."""
        pair = self._plan.pairs[number]
        return self._by_call.get(_call(pair), ()) if pair.mine.slot.startswith("output") else ()

    def mixes(self, number: int, parent: int) -> bool:
        """Whether a token of the pair may come from other tokens of its parent."""
        pair, gap = self._plan.pairs[number], self._plan.gaps.get(number)
        path = pair.mine.node if gap is None else gap.module
        # An input has the type of its reader, not of its writer.
        writers = (pair.mine, pair.golden) if gap is None else ()
        types = [side.op_type for side in writers if side.op_type and side.slot.startswith("output")]
        if any(map(_LINEAR.search, types)):
            return False
        name = re.split(r"[./]", path)[-1]
        names = [name, *(op_type for op_type in types if not _WITH_PARTS.search(op_type))]
        if any(map(_OF_ALL_TOKENS.search, names)):
            return True
        if any(map(_OF_ONE_TOKEN.search, names)):
            return False
        parent_node = self._plan.pairs[parent].mine.node
        return parent_node != path and not parent_node.startswith((f"{path}.", f"{path}/"))

    def _followed(self) -> list[_Bits]:
        plan = self._plan
        place = {number: place for place, number in enumerate(self.choices)}
        followed: list[_Bits] = []
        for number, pair in enumerate(plan.pairs):
            bits = _Bits()
            for choice in () if number in place else self.beside(number):
                bits.same |= 1 << place[choice]
            for parent in plan.parents[number] if number < len(plan.parents) else ():
                if parent >= number:
                    continue
                parent_pair = plan.pairs[parent]
                parent_bits = _Bits(same=1 << place[parent]) if parent in place else followed[parent]
                crosses_step = (parent_pair.step, parent_pair.graph) != (pair.step, pair.graph)
                bits.add(parent_bits, mixes=self.mixes(number, parent), crosses_step=crosses_step)
            followed.append(bits)
        return followed

    def _numbers(self, bits: int) -> Iterator[int]:
        while bits:
            lowest = bits & -bits
            yield self.choices[lowest.bit_length() - 1]
            bits ^= lowest


def _call(pair: Pair) -> object:
    return pair.step, pair.graph, pair.rank, pair.mine.node


def is_choice(pair: Pair) -> bool:
    """Whether the pair is a choice, with the tensors chosen from."""
    return bool(pair.golden.chosen_from and pair.mine.chosen_from)


# Choices of experts that no tensor of a dump holds: they follow from a router's logits.
#
# Code that chooses among experts itself (older releases of transformers, custom models) hands its choice to
# no module. Each expert is a module that ran on the rows of its tokens, though, so the dumps tell the
# number of experts of each token: the rows of all experts over those of the logits. The largest of the
# logits are then a pair, and a parent of all that the code around the experts made.


SLOT = "chosen"
"""The name in place of a slot: no module was handed the choice, or made it."""
_EXPERT = re.compile(r"(?P<experts>(?P<block>.+)\.[^.]+)\.(?P<number>[0-9]+)$")
"""The path of one of several modules in a list of a block: `root.layers.0.mlp.experts.3`."""


@dataclass(frozen=True, slots=True)
class _List:
    """A list of experts in a block: the number of rows of each, on both sides."""

    block: str
    golden: Mapping[int, int]
    mine: Mapping[int, int]

    @property
    def count(self) -> int:
        """Number of experts."""
        return 1 + max((*self.golden, *self.mine))


def with_implied_choices(plan: Plan, golden: Dump, mine: Dump) -> Plan:
    """The plan of two torch dumps with a pair for each choice of experts that follows from logits."""
    if not (golden.has_modules and mine.has_modules):
        return plan
    choices: dict[int, Pair] = {}
    for common in common_steps(golden, mine):
        for number, ranks in enumerate(zip(golden.ranks, mine.ranks)):
            golden_rows = _experts(golden, common.golden, ranks[0])
            mine_rows = _experts(mine, common.mine, ranks[1])
            lists = [
                _List(path.rpartition(".")[0], rows, mine_rows[path])
                for path, rows in golden_rows.items()
                if path in mine_rows
            ]
            if lists:
                choices |= _choices(plan, lists, common.label, number)
    return _inserted(plan, choices) if choices else plan


def _experts(dump: Dump, step: Step, rank: Rank) -> dict[str, dict[int, int]]:
    """For each list of modules the number of rows of each module, by its number."""
    row_counts: dict[str, dict[int, int]] = defaultdict(dict)
    for node in step.tree.walk():
        expert = _EXPERT.match(node.path)
        if expert is None:
            continue
        outputs = [ref for slot, ref in dump.tensors(step, rank, node).items() if slot.kind == "output"]
        header = readable(outputs[0]) if outputs else None
        if header is not None and header.shape:
            row_counts[expert["experts"]][int(expert["number"])] = math.prod(header.shape[:-1])
    return row_counts


def _choices(plan: Plan, lists: Sequence[_List], step: StepLabel, rank: int) -> dict[int, Pair]:
    """The choice of each list that no tensor holds, by the number of the pair of its logits: the narrowest
    pair that may be these."""
    by_block: dict[str, list[int]] = defaultdict(list)
    blocks_with_choice: set[str] = set()
    for number, pair in enumerate(plan.pairs):
        if pair.step == step and pair.rank in (None, rank) and pair.mine.slot.startswith("output"):
            block = pair.mine.node.rpartition(".")[0]
            by_block[block].append(number)
            if is_choice(pair):
                blocks_with_choice.add(block)
    choices = {}
    for experts in lists:
        numbers = by_block[experts.block] if experts.block not in blocks_with_choice else []
        candidates = {n: choice for n in numbers if (choice := _choice(plan.pairs[n], experts))}
        if candidates:
            logits = min(candidates, key=lambda n: plan.pairs[n].golden.refs[0].header().shape[-1])
            choices[logits] = candidates[logits]
    return choices


def _choice(pair: Pair, experts: _List) -> Pair | None:
    """The choice among `experts` by the tensors of a pair, if they may be their logits."""
    golden = _chosen(pair.golden, experts, experts.golden)
    mine = _chosen(pair.mine, experts, experts.mine)
    if golden is None or mine is None or _count(golden) != _count(mine):
        return None
    reason = "the largest of the logits: as many as experts ran for each token"
    return replace(pair, id=f"{pair.id}[{SLOT}]", reason=reason, golden=golden, mine=mine)


def _chosen(logits: Operand, experts: _List, rows: Mapping[int, int]) -> Operand | None:
    header = readable(logits.refs[0]) if len(logits.refs) == 1 and logits.view == Whole() else None
    if header is None or header.dtype.format is None or not header.shape:
        return None
    tokens, total = math.prod(header.shape[:-1]), sum(rows.values())
    count = total // max(1, tokens)
    if not tokens or total % tokens or not count < experts.count <= header.shape[-1]:
        return None
    view = TopPlaces(count, tuple(rows.get(number, 0) for number in range(header.shape[-1])))
    if set(rows.values()) == {tokens} and not _is_implied(logits, view):
        return None  # a list of layers, some of which were not dumped, has as many rows in each as well
    return replace(logits, node=experts.block, slot=SLOT, view=view, chosen_from=logits.refs)


def _is_implied(logits: Operand, view: TopPlaces) -> bool:
    try:
        largest(logits.refs[0].open(), view)
    except (AccError, OSError):
        return False
    return True


def _count(choice: Operand) -> int:
    return choice.view.count if isinstance(choice.view, TopPlaces) else 0


def _inserted(plan: Plan, choices: Mapping[int, Pair]) -> Plan:
    """The plan with each choice behind its logits, and above the tensors that the code of its block made."""
    pairs: list[Pair] = []
    place: dict[int, int] = {}
    for number, pair in enumerate(plan.pairs):
        place[number] = len(pairs)
        pairs += [pair, choices[number]] if number in choices else [pair]
    parents: list[tuple[int, ...]] = [()] * len(pairs)
    for number, sources in enumerate(plan.parents):
        block = plan.pairs[number].mine.node
        chosen = [
            place[source] + 1
            for source in sources
            if source in choices and f"{block}.".startswith(f"{choices[source].mine.node}.")
        ]
        parents[place[number]] = (*(place[source] for source in sources), *chosen)
    gaps = {place[number]: gap for number, gap in plan.gaps.items()}
    for number, choice in choices.items():
        parents[place[number] + 1] = (place[number],)
        gaps[place[number] + 1] = Gap(choice.mine.node, (plan.pairs[number].mine.node,))
    return replace(
        plan,
        pairs=tuple(replace(pair, order=order) for order, pair in enumerate(pairs)),
        parents=tuple(parents),
        by_order=frozenset(place[number] for number in plan.by_order),
        between={place[number]: names for number, names in plan.between.items()},
        unseen={place[number]: names for number, names in plan.unseen.items()},
        gaps=gaps,
    )


# The choice of a router, from its logits, where the other side's dump holds the choice itself.


_ALIKE = 0.98
"""Share of the other side's tokens whose choice must be the largest of its logits; equal ones may swap."""


def largest(logits: torch.Tensor, view: Largest | TopPlaces) -> torch.Tensor:
    """The places of the largest logits of each row.

    Raises `Incomparable` for logits of fewer places, `NoPayload` where the router is known to choose
    otherwise (by groups of experts, or after a correction): the other side's, or that of these logits.
    """
    if not logits.dim() or logits.shape[-1] < view.count:
        raise Incomparable(f"logits of shape {list(logits.shape)} are not of {view.count} experts or more")
    if logits.device.type == "meta":
        return logits.new_empty((*logits.shape[:-1], view.count), dtype=torch.int64)
    if isinstance(view, TopPlaces):
        return _as_often(_largest_places(logits, view.count), view)
    values, chosen = view.values.open(), view.chosen.open().long()
    places = _largest_places(values, view.count)
    if places.shape != chosen.shape or float((places == chosen).all(-1).float().mean()) < _ALIKE:
        raise NoPayload("the other side's router does not choose the largest of its logits")
    return _largest_places(logits, view.count)


def _as_often(places: torch.Tensor, view: TopPlaces) -> torch.Tensor:
    counts = places.flatten().bincount(minlength=len(view.taken))
    if int((counts - torch.tensor(view.taken)).clamp_min(0).sum()) > (1 - _ALIKE) * places.numel():
        raise NoPayload("the experts did not run on the largest of these values")
    return places


def values_beside(view: View, refs: tuple[TensorRef, ...]) -> tuple[TensorRef, ...]:
    """The tensors of the other side that are of the same kind: what a router chose from, for its choice."""
    return (view.values,) if isinstance(view, Largest) else refs


def with_router_choices(golden: Operand, mine: Operand) -> tuple[Operand, Operand]:
    """The operands of a router's choice with the logits that either side chose from."""
    for view, golden_values, mine_values in (
        (mine.view, None, mine.refs[:1]),
        (golden.view, golden.refs[:1], None),
    ):
        if isinstance(view, Largest):
            values = (view.values,)
            return (
                replace(golden, chosen_from=golden_values or values),
                replace(mine, chosen_from=mine_values or values),
            )
    return golden, mine


def _largest_places(logits: torch.Tensor, count: int) -> torch.Tensor:
    return logits.float().topk(min(count, logits.shape[-1]), -1).indices


# Choices of modules of torch: whole numbers that a module hands out or is handed (a router's experts), and
# the tensors of floats that they may have been chosen from.


MOST = 64
"""Tensors that one choice may have been made from; the nearest of more."""
_Module = tuple[StepLabel, Union[int, None], str]
"""An execution of a module of mine: step, rank and path."""
_KINDS = {"int": ("int", "uint"), "float": ("float", "bfloat")}


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of one step that hold whole numbers, or floats, in both dumps."""

    integers: frozenset[tuple[str, str]]
    floats: frozenset[tuple[str, str]]


def with_module_choices(plan: Plan, golden: Dump, mine: Dump) -> Plan:
    """The plan of two torch dumps whose pairs of whole numbers know what they may have been chosen from.

    That is what their module hands out beside them, and what they are computed from. Whether they are the
    largest of any of these is asked where the pair is compared.
    """
    if not (golden.has_modules and mine.has_modules):
        return plan
    steps = {met.label: _places(golden, mine, met) for met in common_steps(golden, mine)}
    numbers = [
        number for number, pair in enumerate(plan.pairs) if _is_choice(pair) and _kind(pair, steps) == "int"
    ]
    if not numbers:
        return plan
    handed_out = _handed_out(plan.pairs)
    pairs = list(plan.pairs)
    for number in numbers:
        pair = pairs[number]
        near = handed_out[_module(pair)] if _is_output(pair) else ()
        values = list(_values(plan.pairs, near, steps))
        # A module that hands out nothing but whole numbers counts, or converts.
        if values or not near:
            values += _values(plan.pairs, plan.parents[number], steps)
        if values:
            ends = [(value.golden.refs[0], value.mine.refs[0]) for value in dict.fromkeys(values[:MOST])]
            pairs[number] = chosen(pair, *zip(*ends))
    return replace(plan, pairs=tuple(pairs))


def _handed_out(pairs: Sequence[Pair]) -> Mapping[_Module, Sequence[int]]:
    """The numbers of the pairs that are outputs, by the execution of a module that handed them out."""
    outputs: dict[_Module, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        if _is_output(pair):
            outputs[_module(pair)].append(number)
    return outputs


def _module(pair: Pair) -> _Module:
    return pair.step, pair.rank, pair.mine.node


def _is_output(pair: Pair) -> bool:
    return pair.mine.slot.startswith("output")


def _is_choice(pair: Pair) -> bool:
    """Whether a pair of integers may be choices, and nothing else says from what."""
    sides = (pair.golden, pair.mine)
    return not pair.fed and all(side.view == Whole() and not side.chosen_from for side in sides)


def _values(pairs: Sequence[Pair], numbers: Sequence[int], steps: dict[StepLabel, _Places]) -> Iterator[Pair]:
    """The pairs of floats among these, each of one whole tensor on either side."""
    for number in numbers:
        pair = pairs[number]
        uncut = len(pair.golden.refs) == len(pair.mine.refs) == 1 and pair.mine.view == Whole()
        if uncut and _kind(pair, steps) == "float":
            yield pair


def _kind(pair: Pair, steps: dict[StepLabel, _Places]) -> str:
    places = steps.get(pair.step)
    place = pair.mine.node, pair.mine.slot
    if places is None:
        return ""
    return "int" if place in places.integers else "float" if place in places.floats else ""


def _places(golden: Dump, mine: Dump, met: StepPair) -> _Places:
    sides = golden.calls(met.golden).dtypes, mine.calls(met.mine).dtypes
    by_kind = {
        kind: [
            {(place.path, str(place.slot)) for place, dtype in side.items() if dtype.startswith(starts)}
            for side in sides
        ]
        for kind, starts in _KINDS.items()
    }
    return _Places(*(frozenset(first & second) for first, second in by_kind.values()))
