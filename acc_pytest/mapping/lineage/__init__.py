"""The parents of each pair: `trace(golden, mine, pairs)`, made with the plan and without any tensor.

The parents of a pair are the nearest pairs above it in the dataflow of mine: tensor names of an ATB topology,
edges of a GE graph, copies of results in FX (of golden, where mine is a captured graph), tensors that two
torch dumps saw at the same places. The first pair above a layer's output is that of the operator inside that
wrote it. Without a dataflow, the parents are earlier pairs in the order of execution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...base.reason import Reason
from ...base.vocabulary import ORDERS_OF_NAMES
from ...dumps.base import Dump, StepLabel
from ..pair import SELF_CHECK, Gap, Pair
from ..policies import BESIDE, sums_of
from ..tables import Tables
from ..weights import POLICY as WEIGHTS
from .flows import FlowOf, atb_flows, captured_flows, fx_flows, ge_flows, torch_flows
from .parents import (
    Block,
    EarlierSteps,
    Flow,
    by_order,
    forward_parents,
    from_the_step_before,
    parents_in_step,
    place_of,
    signature,
    weights_read,
)

ORDER = "execution order"
Numbered = list[tuple[int, Pair]]
Noted = TypeVar("Noted")


@dataclass(frozen=True, slots=True)
class Lineage:
    """The parents of each pair.

    `parents` are, for each pair, the numbers of its parents in the plan: those of its own step first, the
    earliest first. `basis` names their source in words; for the pairs `by_order` only the order of execution
    is known. `between` names the operators of mine between a pair and its parents that are not
    compared, the nearest first. `unseen` and `gaps` are those of `Plan`.
    """

    parents: tuple[tuple[int, ...], ...] = ()
    basis: str = ""
    by_order: frozenset[int] = frozenset()
    between: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    unseen: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    gaps: Mapping[int, Gap] = field(default_factory=dict)


def trace(golden: Dump, mine: Dump, pairs: Sequence[Pair], tables: Tables) -> Lineage:
    """The lineage of `pairs`, which are in execution order; where there is no dataflow it is that order."""
    flow_of, basis = _flows(golden, mine, pairs, tables)
    tracing = _Tracing(len(pairs))
    results = [(number, pair) for number, pair in enumerate(pairs) if pair.policy not in {WEIGHTS, *BESIDE}]
    for (graph, step, rank), (numbers, group) in _steps(results, mine.of_graphs).items():
        flow = flow_of(step, graph, rank, frozenset(map(place_of, group)))
        if flow is None:
            tracing.by_order(numbers, group, ())
            continue
        tracing.by_order(numbers, group, tracing.by_flow(numbers, group, flow))
        if isinstance(step, int):
            tracing.from_before((graph, rank), Block(numbers, group, flow))
    tracing.add(weights_read(pairs, tracing.gaps, mine))
    tracing.add(sums_of(pairs))
    tracing.add(forward_parents(pairs, tracing.parents))
    return tracing.lineage(basis)


class _Tracing:
    """The lineage of pairs, by number, gathered step by step."""

    def __init__(self, count: int) -> None:
        self.gaps: dict[int, Gap] = {}
        self._parents: list[tuple[int, ...]] = [()] * count
        self._guessed: set[int] = set()
        self._between: dict[int, tuple[str, ...]] = {}
        self._unseen: dict[int, tuple[str, ...]] = {}
        self._before: dict[tuple[str, int | None], Block] = {}
        self._earlier = EarlierSteps()
        self._by_signature: dict[object, dict[int, tuple[int, ...]]] = {}

    def by_flow(self, numbers: Sequence[int], group: Sequence[Pair], flow: Flow) -> Collection[int]:
        """Note the parents of a step's pairs in the dataflow; return the positions of the pairs in it."""
        # Most decode steps compare the same places with the same, and need to be looked at once.
        key = flow, signature(group)
        if key not in self._by_signature:
            self._by_signature[key] = parents_in_step(group, flow)
        inside = self._by_signature[key]
        for position, parents in inside.items():
            number, place = numbers[position], place_of(group[position])
            self._parents[number] = tuple([numbers[parent] for parent in parents])
            self._between |= _noted(number, flow.upstream[place].between)
            self._unseen |= _noted(number, flow.upstream[place].unseen)
            self.gaps |= _noted(number, flow.gaps.get(place))
        return inside

    def by_order(self, numbers: Sequence[int], group: Sequence[Pair], traced: Collection[int]) -> None:
        """Note the parents of a step's pairs by the order of execution, but for the positions `traced`."""
        if len(traced) == len(group):
            return
        unknown = {
            number
            for position, number in enumerate(numbers)
            if position not in traced and group[position].policy != SELF_CHECK
        }
        self._guessed |= unknown
        for number, parents in _by_order(numbers, group).items():
            if number in unknown:
                self._parents[number] = parents

    def from_before(self, run: tuple[str, int | None], block: Block) -> None:
        """Note the parents of a step of one graph and rank in earlier steps, and in other graphs."""
        if (earlier := self._before.get(run)) is not None:
            self.add(from_the_step_before(block, earlier))
        self._before[run] = block
        if run[0]:
            self.add(self._earlier.sources(block))

    def add(self, parents: Mapping[int, Iterable[int]]) -> None:
        """Append further parents of pairs."""
        for number, numbers in parents.items():
            self._parents[number] = (*self._parents[number], *numbers)

    @property
    def parents(self) -> Sequence[tuple[int, ...]]:
        """The parents of all pairs so far."""
        return self._parents

    def lineage(self, flow_basis: str) -> Lineage:
        """The lineage; `flow_basis` names the source of the dataflow."""
        basis = _basis(flow_basis, len(self._guessed), len(self._parents))
        return Lineage(
            tuple(self._parents), basis, frozenset(self._guessed), self._between, self._unseen, self.gaps
        )


def _noted(number: int, value: Noted | None) -> dict[int, Noted]:
    return {number: value} if value else {}


def _flows(golden: Dump, mine: Dump, pairs: Sequence[Pair], tables: Tables) -> tuple[FlowOf, str]:
    """The function that gives the dataflow of a step, and its basis in words."""
    if mine.kind == "atb" and golden.kind != "manual":
        return atb_flows(golden, mine, tables), "tensor names in the topology"
    if mine.kind == "ge":
        return ge_flows(mine), "edges of the graph"
    if mine.kind == "fx":
        return fx_flows(mine), "copies of results among the arguments of calls"
    if golden.kind == "fx" and mine.of_graphs:
        return captured_flows(golden, pairs), "copies of results among the arguments of golden's calls"
    if golden.has_modules and mine.has_modules:
        unlike = any((pair.golden.node, pair.golden.slot) != place_of(pair) for pair in pairs)
        basis = "tensors that mine saw before" if unlike else "tensors that both dumps saw at the same places"
        return torch_flows(golden, mine, unlike), mine.order or basis
    by_names = mine.order if len(pairs) > 1 and not mine.has_modules else ""
    return lambda *_: None, by_names or ORDER


def _basis(flow_basis: str, guessed: int, total: int) -> str:
    if guessed == total and flow_basis not in ORDERS_OF_NAMES:
        return ORDER
    if not 0 < guessed < total:
        return flow_basis
    return Reason("{}; {} of {} pairs by {}", flow_basis, guessed, total, ORDER)


def _steps(
    pairs: Iterable[tuple[int, Pair]], ranks_apart: bool
) -> dict[tuple[str, StepLabel, int | None], tuple[list[int], list[Pair]]]:
    """Numbers and pairs of each graph and step (and rank), in the order of the plan."""
    steps: dict[tuple[str, StepLabel, int | None], tuple[list[int], list[Pair]]] = {}
    for number, pair in pairs:
        numbers, group = steps.setdefault(
            (pair.graph, pair.step, pair.rank if ranks_apart else None), ([], [])
        )
        numbers.append(number)
        group.append(pair)
    return steps


def _by_order(numbers: Sequence[int], group: Sequence[Pair]) -> dict[int, tuple[int, ...]]:
    """Parents by order, each rank on its own."""
    by_rank: dict[int | None, Numbered] = {}
    for number, pair in zip(numbers, group):
        by_rank.setdefault(pair.rank, []).append((number, pair))
    return {number: parents for ranked in by_rank.values() for number, parents in by_order(ranked).items()}
