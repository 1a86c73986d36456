"""Places become pairs: within a step, over ranks, and from one step to the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..pair import Gap, Pair
from ..views import HeadPart, OwnPart, Part, SlotRows, TableRows
from .nearest import Above, SlotName

PIECES = (Part, OwnPart, HeadPart)
"""Views of one tensor among several in one place."""


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The dataflow of a step as far as places of it are compared: what is above them, and which of them
    (`fed`) may be looked up by what the step before chose. `gaps` are those of `pair.Plan`.
    `results` are places of what a graph gives back, `stored` of what it writes into its own inputs."""

    above: Mapping[SlotName, Above]
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
    """Where the tensor of mine is compared."""
    return pair.mine.node, pair.mine.slot


def _golden_place(pair: Pair) -> SlotName:
    return pair.golden.node, pair.golden.slot


def signature(pairs: Iterable[Pair]) -> tuple[tuple[SlotName, SlotName, int | None], ...]:
    """What `parents_in_step` depends on beside the flow: steps of one signature have the same lineage."""
    return tuple([(place_of(pair), _golden_place(pair), pair.rank) for pair in pairs])


def parents_in_step(pairs: Sequence[Pair], flow: Flow) -> dict[int, tuple[int, ...]]:
    """The parents of the pairs of one step, on all ranks, by position in `pairs`, the earliest first.

    Pairs that `flow` does not know are left out.
    """
    at: dict[SlotName, list[int]] = defaultdict(list)
    for position, pair in enumerate(pairs):
        at[place_of(pair)].append(position)
    parents_of: dict[int, tuple[int, ...]] = {}
    for position, pair in enumerate(pairs):
        above = flow.above.get(place_of(pair))
        if above is None:
            continue
        parents: set[int] = set()
        for place, crossed in above.places.items():
            there = at[place]
            if not crossed and pair.rank is not None:
                there = [other for other in there if pairs[other].rank in (pair.rank, None)]
            parents.update(_of_same_tensor(pair, there, pairs, at))
        parents_of[position] = tuple(sorted(other for other in parents if other < position))
    return parents_of


def _of_same_tensor(
    pair: Pair, there: Sequence[int], pairs: Sequence[Pair], at: Mapping[SlotName, Sequence[int]]
) -> Sequence[int]:
    """Of the pairs of a parent's place those that are compared with the same tensor of golden, if any.

    A tensor that packs several is compared piece by piece, and a piece is made from its own piece alone. What
    a tensor that is no piece is compared with elsewhere counts as well (a value, and its cache).
    """
    if len(there) == 1:
        return there
    own = {_golden_place(pair)}
    same = [position for position in there if _golden_place(pairs[position]) in own]
    if not same and not isinstance(pair.mine.view, PIECES):
        own = {_golden_place(pairs[position]) for position in at[place_of(pair)]}
        same = [position for position in there if _golden_place(pairs[position]) in own]
    return same or there


def from_the_step_before(block: Block, earlier: Block) -> dict[int, list[int]]:
    """What pairs of a decode step take from the step before it: the numbers of both.

    Attention reads keys and values of earlier tokens, which the same layer's operators stored. The rows
    that a step stores itself do not depend on those of earlier ones. The token looked up first was chosen
    from the last output, where nothing else is known of it.
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
        elif pair.rank in last and _is_fed(pair, flow):
            sources[number] = [last[pair.rank]]
    return sources


def _keeps(pair: Pair, flow: Flow) -> bool:
    above = flow.above.get(place_of(pair))
    return above is not None and above.keeps


def _is_fed(pair: Pair, flow: Flow) -> bool:
    """Whether it looks up tokens, and no positions."""
    place = place_of(pair)
    tables = isinstance(pair.mine.view, TableRows) or pair.policy == "rope"
    return place in flow.fed and not tables and not flow.above[place].places
