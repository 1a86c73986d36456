"""From what each pair computes: `trace(golden, mine, pairs)`, made with the plan and without any tensor.

The parents of a pair are the nearest pairs above it in the dataflow of mine: tensor names of an ATB
topology, edges of a GE graph. Above a layer's output is first what the operator inside it wrote. Where
nothing is known of the dataflow, the order of execution says what came before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...dumps.base import Dump, StepLabel
from ...dumps.fx import FxDump
from ...dumps.ge import GeDump
from ...dumps.torch import TorchDump
from ...dumps.torchair import TorchairDump
from ..pair import Gap, Pair
from ..tables import Tables
from ..torchair.self_checks import POLICY as SELF_CHECK
from ..weights import POLICY as WEIGHTS
from .flows import FlowOf, atb_flows, fx_flows, ge_flows, torch_flows
from .given import GivenBefore
from .order import by_order
from .read_weights import weights_read
from .steps import Block, from_the_step_before, parents_in_step, place_of, signature

ORDER = "execution order"
ON_THEIR_OWN = frozenset({SELF_CHECK})
"""Policies of pairs that are two tensors of one operator, so that nothing above can be the reason."""
Numbered = list[tuple[int, Pair]]
Noted = TypeVar("Noted")


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where each pair comes from.

    `parents` are, for each pair, the places of its parents in the plan: those of its own step first, the
    earliest first. `basis` says in words how that is known. `by_order` are the pairs of which only the order
    of execution is. `between` names the operators of mine between a pair and its parents of which
    nothing is compared, the nearest first. `unseen` and `gaps` are those of `Plan`.
    """

    parents: tuple[tuple[int, ...], ...] = ()
    basis: str = ""
    by_order: frozenset[int] = frozenset()
    between: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    unseen: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    gaps: Mapping[int, Gap] = field(default_factory=dict)


def trace(golden: Dump, mine: Dump, pairs: Sequence[Pair], tables: Tables) -> Lineage:
    """The lineage of `pairs`, which are in execution order; where there is no dataflow it is that order."""
    flow_of, words = _flows(golden, mine, tables)
    parents: list[tuple[int, ...]] = [()] * len(pairs)
    guessed: set[int] = set()
    between: dict[int, tuple[str, ...]] = {}
    unseen: dict[int, tuple[str, ...]] = {}
    gaps: dict[int, Gap] = {}
    before: dict[tuple[str, int | None], Block] = {}
    given = GivenBefore()
    known: dict[object, dict[int, tuple[int, ...]]] = {}
    results = [(number, pair) for number, pair in enumerate(pairs) if pair.policy != WEIGHTS]
    for (graph, step, rank), (numbers, group) in _steps(results, isinstance(mine, TorchairDump)).items():
        flow = flow_of(step, graph, rank, frozenset(map(place_of, group)))
        inside: dict[int, tuple[int, ...]] = {}
        if flow is not None:
            # Most decode steps compare the same places with the same, and need to be looked at once.
            key = flow, signature(group)
            if key not in known:
                known[key] = parents_in_step(group, flow)
            inside = known[key]
            for position, others in inside.items():
                parents[numbers[position]] = tuple([numbers[other] for other in others])
                place = place_of(group[position])
                between |= _noted(numbers[position], flow.above[place].between)
                unseen |= _noted(numbers[position], flow.unseen.get(place))
                gaps |= _noted(numbers[position], flow.gaps.get(place))
        if len(inside) < len(group):
            unknown = {
                number
                for position, number in enumerate(numbers)
                if position not in inside and group[position].policy not in ON_THEIR_OWN
            }
            guessed |= unknown
            for number, others in _by_order(numbers, group).items():
                if number in unknown:
                    parents[number] = others
        if flow is not None and isinstance(step, int):
            block = Block(numbers, group, flow)
            if (earlier := before.get((graph, rank))) is not None:
                for number, taken in from_the_step_before(block, earlier).items():
                    parents[number] = (*parents[number], *taken)
            before[graph, rank] = block
            if graph:
                for number, taken in given.taken(block).items():
                    parents[number] = (*parents[number], *taken)
    for number, listed in weights_read(pairs, gaps, mine).items():
        parents[number] = (*parents[number], *listed)
    basis = _basis(words, len(guessed), len(pairs))
    return Lineage(tuple(parents), basis, frozenset(guessed), between, unseen, gaps)


def _noted(number: int, found: Noted | None) -> dict[int, Noted]:
    return {number: found} if found else {}


def _flows(golden: Dump, mine: Dump, tables: Tables) -> tuple[FlowOf, str]:
    """What gives the dataflow of a step, and how it is known, in words."""
    if mine.kind == "atb" and golden.kind != "manual":
        return atb_flows(golden, mine, tables), "tensor names of mine's topology"
    if isinstance(mine, GeDump):
        return ge_flows(mine), "edges of mine's graph"
    if isinstance(mine, FxDump):
        return fx_flows(mine), "copies of results among the arguments of mine's calls"
    if isinstance(golden, TorchDump) and isinstance(mine, TorchDump):
        return torch_flows(golden, mine), "tensors that both dumps saw at the same places"
    return lambda *_: None, ORDER


def _basis(words: str, guessed: int, total: int) -> str:
    if guessed == total:
        return ORDER
    return f"{words}; {guessed} of {total} pairs by {ORDER}" if guessed else words


def _steps(
    pairs: Iterable[tuple[int, Pair]], ranks_apart: bool
) -> dict[tuple[str, StepLabel, int | None], tuple[list[int], list[Pair]]]:
    """Numbers and pairs of each graph and step (and rank), in the order of the plan."""
    found: dict[tuple[str, StepLabel, int | None], tuple[list[int], list[Pair]]] = {}
    for number, pair in pairs:
        numbers, group = found.setdefault(
            (pair.graph, pair.step, pair.rank if ranks_apart else None), ([], [])
        )
        numbers.append(number)
        group.append(pair)
    return found


def _by_order(numbers: Sequence[int], group: Sequence[Pair]) -> dict[int, tuple[int, ...]]:
    """Parents by order, each rank on its own."""
    by_rank: dict[int | None, Numbered] = {}
    for number, pair in zip(numbers, group):
        by_rank.setdefault(pair.rank, []).append((number, pair))
    return {number: got for one in by_rank.values() for number, got in by_order(one).items()}
