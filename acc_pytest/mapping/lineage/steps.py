"""Places become pairs: within a step, over ranks, and from one step to the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..pair import Gap, Pair
from ..views import HeadPart, OwnPart, Part, SlotRows, TableRows
from .nearest import SlotName, Upstream

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
