"""Places become pairs: within a step, over ranks, and from one step to the next."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...base.vocabulary import GRADIENTS
from ...dumps.base import Dump, StepLabel
from ..pair import Gap, Operand, Pair
from ..views import HeadPart, OwnPart, Part, SlotRows, TableRows
from ..weights import POLICY, readers

PIECES = (Part, OwnPart, HeadPart)
"""Views of one tensor among several in one place."""


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The dataflow of a step as far as places of it are compared: the places `upstream` of them, and the
    places (`fed`) that may look up the token that the step before chose. `gaps` are those of `pair.Plan`.
    `results` are places of results of a graph, `stored` of tensors that it writes into its own inputs."""

    upstream: Mapping[SlotName, Upstream]
    fed: frozenset[SlotName]
    gaps: Mapping[SlotName, Gap] = field(default_factory=dict)
    results: frozenset[SlotName] = frozenset()
    stored: frozenset[SlotName] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The pairs of one step and their numbers in the plan."""

    numbers: Sequence[int]
    pairs: Sequence[Pair]
    flow: Flow


def place_of(pair: Pair) -> SlotName:
    """The place of the tensor of mine."""
    return pair.mine.node, pair.mine.slot


def _golden_place(pair: Pair) -> SlotName:
    return pair.golden.node, pair.golden.slot


def signature(pairs: Iterable[Pair]) -> tuple[tuple[SlotName, SlotName, int | None], ...]:
    """The arguments of `parents_in_step` beside the flow: steps of one signature have the same lineage."""
    return tuple([(place_of(pair), _golden_place(pair), pair.rank) for pair in pairs])


def parents_in_step(pairs: Sequence[Pair], flow: Flow) -> dict[int, tuple[int, ...]]:
    """The parents of the pairs of one step, on all ranks, by position in `pairs`, the earliest first.

    Pairs that `flow` does not know are left out.
    """
    positions_of: dict[SlotName, list[int]] = defaultdict(list)
    for position, pair in enumerate(pairs):
        positions_of[place_of(pair)].append(position)
    parents_of: dict[int, tuple[int, ...]] = {}
    for position, pair in enumerate(pairs):
        upstream = flow.upstream.get(place_of(pair))
        if upstream is None:
            continue
        parents: set[int] = set()
        for place, crossed in upstream.places.items():
            candidates = positions_of[place]
            if not crossed and pair.rank is not None:
                candidates = [parent for parent in candidates if pairs[parent].rank in (pair.rank, None)]
            parents.update(_of_same_tensor(pair, candidates, pairs, positions_of))
        parents_of[position] = tuple(sorted(parent for parent in parents if parent < position))
    return parents_of


def _of_same_tensor(
    pair: Pair,
    candidates: Sequence[int],
    pairs: Sequence[Pair],
    positions_of: Mapping[SlotName, Sequence[int]],
) -> Sequence[int]:
    """The `candidates` that are compared with the same tensor of golden as the pair, else all of them.

    A packed tensor is compared piece by piece, and a piece is made from its own piece alone. For a tensor
    that is no piece, all golden tensors at its place count (a value, and its cache).
    """
    if len(candidates) == 1:
        return candidates
    golden_places = {_golden_place(pair)}
    positions = [position for position in candidates if _golden_place(pairs[position]) in golden_places]
    if not positions and not isinstance(pair.mine.view, PIECES):
        golden_places = {_golden_place(pairs[position]) for position in positions_of[place_of(pair)]}
        positions = [position for position in candidates if _golden_place(pairs[position]) in golden_places]
    return positions or candidates


def from_the_step_before(block: Block, earlier: Block) -> dict[int, list[int]]:
    """The parents of pairs of a decode step in the step before it, by the numbers of both.

    Attention reads keys and values of earlier tokens, which the same layer's operators stored. The rows
    that a step stores itself do not depend on those of earlier steps. The token looked up first was chosen
    from the last output, where the dataflow does not say otherwise.
    """
    stored: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    last: dict[int | None, int] = {}
    for number, pair in zip(earlier.numbers, earlier.pairs):
        last[pair.rank] = number
        if _keeps(pair, earlier.flow):
            stored[pair.layer, pair.rank].append(number)
    flow = block.flow
    sources: dict[int, list[int]] = {}
    for number, pair in zip(block.numbers, block.pairs):
        if _keeps(pair, flow) and not isinstance(pair.mine.view, SlotRows):
            sources[number] = stored[pair.layer, pair.rank][::-1]
        elif pair.rank in last and _reads_tokens(pair, flow):
            sources[number] = [last[pair.rank]]
    return sources


def _keeps(pair: Pair, flow: Flow) -> bool:
    upstream = flow.upstream.get(place_of(pair))
    return upstream is not None and upstream.keeps


def _reads_tokens(pair: Pair, flow: Flow) -> bool:
    """Whether the pair looks up tokens, and no positions."""
    place = place_of(pair)
    tables = isinstance(pair.mine.view, TableRows) or pair.policy == "rope"
    return place in flow.fed and not tables and not flow.upstream[place].places


# The nearest compared tensors above each tensor, by the reads and writes of operators.
#
# A tensor that is compared is called a place here: a slot of a node of mine. Operators are walked once in
# execution order, so that no chain of operators without a place is too long.


SlotName = tuple[str, str]
"""Path of a node of mine, and the slot in words (`output[0]`)."""

MOST_BETWEEN = 128
"""Operators between a place and those above it that are named; the nearest of more. A mixture of experts has
about eight for each of its experts, and golden often has no tensor of them."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowOperator:
    """An operator: its place in execution order, and the values it reads and writes.

    `needs(i)` are the indices in `reads` that output `i` is computed from. `crosses` says that it computes
    from the tensors of all ranks, `keeps` that it reads or writes a state of the next step, `silent` that it
    is never named between two places. `unseen` names the input of the run that it hands on, where that is not
    compared.
    """

    path: str
    order: int
    reads: Sequence[Hashable]
    writes: Sequence[Hashable]
    needs: Callable[[int], Iterable[int]]
    crosses: bool = False
    keeps: bool = False
    silent: bool = False
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The nearest places above a tensor, and whether a sum over ranks lies in between.

    `between` are the operators on the way that are not compared, the nearest first. `keeps` says that one of
    them, or the operator itself, reads or writes a state of the next step. `unseen` are the names of inputs
    that are read there and not compared.
    """

    places: Mapping[SlotName, bool] = field(default_factory=dict)
    between: tuple[str, ...] = ()
    keeps: bool = False
    unseen: tuple[str, ...] = ()


NOTHING = Upstream()


def nearest(
    operations: Iterable[FlowOperator],
    places_of: Mapping[Hashable, Sequence[tuple[int, SlotName]]],
    arriving: Mapping[tuple[str, int], SlotName],
) -> dict[SlotName, Upstream]:
    """The nearest places above every place.

    `operations` come in execution order. `places_of` says at which places a value is compared, each with the
    order of its node, ascending: the operator that wrote it first, then the nodes around it. `arriving`
    are places that are inputs of an operator, by its path and the number of the input.
    """
    by_place: dict[SlotName, Upstream] = {}
    by_value: dict[Hashable, Upstream] = {}
    for operation in operations:
        read = [
            _upstream_of_input(operation, number, value, places_of, arriving, by_value, by_place)
            for number, value in enumerate(operation.reads)
        ]
        for index, value in enumerate(operation.writes):
            upstream = _joined([read[number] for number in operation.needs(index)], operation)
            places = places_of.get(value, ())
            names = () if operation.silent else (operation.path,)
            unseen = (operation.unseen,) if operation.unseen else upstream.unseen
            by_value[value] = Upstream(
                upstream.places, (*names, *upstream.between)[:MOST_BETWEEN], upstream.keeps, unseen
            )
            ancestry = upstream
            for _, place in places:
                by_place[place] = ancestry
                ancestry = Upstream({place: False})
    return by_place


def _upstream_of_input(
    operation: FlowOperator,
    number: int,
    value: Hashable,
    places_of: Mapping[Hashable, Sequence[tuple[int, SlotName]]],
    arriving: Mapping[tuple[str, int], SlotName],
    by_value: Mapping[Hashable, Upstream],
    by_place: dict[SlotName, Upstream],
) -> Upstream:
    """The nearest places to an operator's input: itself where it is compared, else the places of its
    value."""
    earlier = [place for order, place in places_of.get(value, ()) if order < operation.order]
    upstream = Upstream({earlier[-1]: False}) if earlier else by_value.get(value, NOTHING)
    place = arriving.get((operation.path, number))
    if place is None:
        return upstream
    by_place[place] = upstream
    return Upstream({place: False})


def _joined(upstreams: Sequence[Upstream], operation: FlowOperator) -> Upstream:
    places: dict[SlotName, bool] = {}
    between: dict[str, None] = {}
    unseen: dict[str, None] = {}
    for upstream in upstreams:
        for place, crossed in upstream.places.items():
            places[place] = places.get(place, False) or crossed or operation.crosses
        between.update(dict.fromkeys(upstream.between))
        unseen.update(dict.fromkeys(upstream.unseen))
    keeps = operation.keeps or any(upstream.keeps for upstream in upstreams)
    return Upstream(places, tuple(between)[:MOST_BETWEEN], keeps, tuple(unseen)[:MOST_BETWEEN])


# Inputs of a compiled graph at a step: results of the step before, or inputs that stay.
#
# A weight is one tensor at every step, whichever graph reads it. A cache is the one that the step before
# wrote, and a prompt may be a result of that step.


_STORED = "cache"


class EarlierSteps:
    """The steps that ran so far, on all ranks and of all graphs."""

    def __init__(self) -> None:
        self._by_key: dict[object, int] = {}
        self._stored: dict[int | None, list[int]] = {}
        self._results: dict[int | None, list[int]] = {}

    def sources(self, block: Block) -> dict[int, list[int]]:
        """The numbers of the sources of each pair that stands for an input of the graph."""
        sources: dict[int, list[int]] = {}
        for number, pair in zip(block.numbers, block.pairs):
            if pair.fed:
                earlier = self._stored if pair.fed == _STORED else self._results
                repeated = {self._by_key[key] for key in _keys(pair) if key in self._by_key}
                sources[number] = sorted(repeated | set(() if _lasts(pair) else earlier.get(pair.rank, ())))
        self._note(block)
        return {number: numbers for number, numbers in sources.items() if numbers}

    def _note(self, block: Block) -> None:
        ranks = {pair.rank for pair in block.pairs}
        for latest, places in ((self._stored, block.flow.stored), (self._results, block.flow.results)):
            for rank in ranks:
                latest[rank] = [
                    number
                    for number, pair in zip(block.numbers, block.pairs)
                    if pair.rank == rank and place_of(pair) in places
                ]
        for number, pair in zip(block.numbers, block.pairs):
            if pair.fed:
                self._by_key.update(dict.fromkeys(_keys(pair), number))


def _keys(pair: Pair) -> tuple[object, ...]:
    """The keys of an input: over steps its name, over graphs the call that reads it."""
    reader = pair.golden.node, pair.golden.slot, pair.fed
    return (pair.rank, pair.graph, pair.id), (pair.rank, *reader)


def _lasts(pair: Pair) -> bool:
    return pair.fed in ("weight", "buffer")


# Parents of gradients. They are computed from incoming gradients, which a dump lists, and from tensors of
# the forward call, which no dump lists: they inherit from that call and from its parents.


def forward_parents(pairs: Sequence[Pair], parents: Sequence[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """The numbers of the pairs of the forward call, and of their parents, for each pair of a gradient."""
    forward_of = {
        number: forward for number, pair in enumerate(pairs) if (forward := _forward(pair.mine.node))
    }
    if not forward_of:
        return {}
    forward_pairs: dict[tuple[str, StepLabel, int | None], list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        if number not in forward_of:
            forward_pairs[pair.mine.node, pair.step, pair.rank].append(number)
    inherited: dict[int, tuple[int, ...]] = {}
    for number, node in forward_of.items():
        calls = forward_pairs.get((node, pairs[number].step, pairs[number].rank), [])
        sources = dict.fromkeys([*calls, *(parent for call in calls for parent in parents[call])])
        inherited[number] = tuple(source for source in sorted(sources) if source not in parents[number])
    return inherited


def _forward(node: str) -> str:
    """The node of the forward call of a gradient: `mlp.call1` for `mlp.backward.call1`; empty for others."""
    for word in GRADIENTS:
        path, separator, call = node.rpartition(f".{word}")
        if separator and (not call or call.startswith(".call")):
            return path + call
    return ""


# Parents by execution order, where nothing says which tensors an operator reads.
#
# Each tensor of a decoder is downstream of all earlier ones, but for branches inside a layer. So a pair's
# parents are the pairs before it in its layer, and the last pair before that layer began.


IN_A_LAYER = 24
"""Number of earlier pairs in a layer that count; pairs further up are parents of these."""


def by_order(pairs: Sequence[tuple[int, Pair]]) -> dict[int, tuple[int, ...]]:
    """The parents of numbered pairs of one step, rank and graph, in execution order; the earliest first."""
    parents: dict[int, tuple[int, ...]] = {}
    layer: str | None = None
    layer_pairs: list[int] = []
    ancestors: tuple[int, ...] = ()
    for number, pair in pairs:
        if pair.layer != layer:
            ancestors = tuple(layer_pairs[-1:])
            layer, layer_pairs = pair.layer, []
        parents[number] = (*ancestors, *layer_pairs[-IN_A_LAYER:])
        layer_pairs.append(number)
    return parents


# The weights that pairs are computed from: those of the module whose code made the tensor.


_SUFFIXES = re.compile(r"(\.backward)?(\.call\d+)?$")
_NUMBER = re.compile(r"\.\d+$")


def weights_read(pairs: Sequence[Pair], gaps: Mapping[int, Gap], mine: Dump) -> dict[int, tuple[int, ...]]:
    """The numbers of the weights of a pair's module itself, of its own rank, or of all where its tensor is
    put together of theirs, for each pair that has any."""
    numbers: dict[str, list[tuple[int | None, int]]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        if pair.policy == POLICY:
            numbers[pair.mine.name].append((pair.rank, number))
    if not numbers:
        return {}
    names_of = readers(mine)
    weights: dict[int, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        gap = gaps.get(number)
        if pair.fed or (gap is None and pair.mine.slot.startswith("input")):
            continue
        for name in names_of.get(gap.module if gap is not None else _module(pair.mine), ()):
            of_ranks = numbers.get(name, ())
            weights[number] += [n for rank, n in of_ranks if pair.rank is None or rank in (None, pair.rank)]
    return {number: tuple(weight_numbers) for number, weight_numbers in weights.items()}


def _module(operand: Operand) -> str:
    """The module whose weights an operation reads: itself, in whichever call; that of a gradient; for a
    function, which is named after its operation, the module around it."""
    node = _SUFFIXES.sub("", operand.node)
    module, _, function = _NUMBER.sub("", node).rpartition(".")
    kind = operand.op_type.partition(".")[0]
    return module if function.rstrip("_") == kind.rstrip("_") else node
