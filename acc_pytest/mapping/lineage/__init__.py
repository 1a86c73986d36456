"""From what each pair computes: `trace(golden, mine, pairs)`, made with the plan and without any tensor.

The parents of a pair are the nearest pairs above it in the dataflow of mine: tensor names of an ATB topology,
edges of a GE graph, copies of results in FX (of golden, where mine is a captured graph), what two torch dumps
saw at the same places. Above a layer's output is first what the operator inside it wrote. Where nothing is
known of the dataflow, the order of execution says what came before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...dumps.base import Dump, StepLabel
from ...dumps.fx import FxDump
from ...dumps.ge import GeDump
from ...dumps.graph_capture import GraphCaptureDump
from ...dumps.modules import ModuleDump
from ...dumps.torchair import TorchairDump
from ..before_reduction import POLICY as SUMMANDS
from ..before_reduction import sums_of
from ..pair import Gap, Pair
from ..tables import Tables
from ..torchair.self_checks import POLICY as SELF_CHECK
from ..weights import POLICY as WEIGHTS
from .flows import FlowOf, atb_flows, captured_flows, fx_flows, ge_flows, torch_flows
from .given import GivenBefore
from .gradients import forward_held
from .order import by_order
from .read_weights import weights_read
from .steps import Block, Flow, from_the_step_before, parents_in_step, place_of, signature

ORDER = "execution order"
_RANKS_APART = (TorchairDump, GraphCaptureDump)
"""Dumps whose ranks are never put together."""
ON_THEIR_OWN = frozenset({SELF_CHECK})
"""Policies of pairs that are two tensors of one operator, so that nothing above can be the reason."""
Numbered = list[tuple[int, Pair]]
Noted = TypeVar("Noted")


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where each pair comes from.

    `parents` are, for each pair, the places of its parents in the plan: those of its own step first, the
    earliest first. `basis` says in words how that is known; for the pairs `by_order` only the order of
    execution is known. `between` names the operators of mine between a pair and its parents that are not
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
    flow_of, words = _flows(golden, mine, pairs, tables)
    tracing = _Tracing(len(pairs))
    results = [(number, pair) for number, pair in enumerate(pairs) if pair.policy not in (WEIGHTS, SUMMANDS)]
    for (graph, step, rank), (numbers, group) in _steps(results, isinstance(mine, _RANKS_APART)).items():
        flow = flow_of(step, graph, rank, frozenset(map(place_of, group)))
        if flow is None:
            tracing.by_order(numbers, group, ())
            continue
        tracing.by_order(numbers, group, tracing.by_flow(numbers, group, flow))
        if isinstance(step, int):
            tracing.from_before((graph, rank), Block(numbers, group, flow))
    tracing.add(weights_read(pairs, tracing.gaps, mine))
    tracing.add(sums_of(pairs))
    tracing.add(forward_held(pairs, tracing.parents))
    return tracing.lineage(words)


class _Tracing:
    """What is known of pairs, by number, while steps are gone through one after the other."""

    def __init__(self, count: int) -> None:
        self.gaps: dict[int, Gap] = {}
        self._parents: list[tuple[int, ...]] = [()] * count
        self._guessed: set[int] = set()
        self._between: dict[int, tuple[str, ...]] = {}
        self._unseen: dict[int, tuple[str, ...]] = {}
        self._before: dict[tuple[str, int | None], Block] = {}
        self._given = GivenBefore()
        self._known: dict[object, dict[int, tuple[int, ...]]] = {}

    def by_flow(self, numbers: Sequence[int], group: Sequence[Pair], flow: Flow) -> Collection[int]:
        """The parents of a step's pairs in the dataflow; the positions of those that it knows."""
        # Most decode steps compare the same places with the same, and need to be looked at once.
        key = flow, signature(group)
        if key not in self._known:
            self._known[key] = parents_in_step(group, flow)
        inside = self._known[key]
        for position, others in inside.items():
            number, place = numbers[position], place_of(group[position])
            self._parents[number] = tuple([numbers[other] for other in others])
            self._between |= _noted(number, flow.above[place].between)
            self._unseen |= _noted(number, flow.above[place].unseen)
            self.gaps |= _noted(number, flow.gaps.get(place))
        return inside

    def by_order(self, numbers: Sequence[int], group: Sequence[Pair], known: Collection[int]) -> None:
        """The parents of a step's pairs by the order of execution, but for those at the positions `known`."""
        if len(known) == len(group):
            return
        unknown = {
            number
            for position, number in enumerate(numbers)
            if position not in known and group[position].policy not in ON_THEIR_OWN
        }
        self._guessed |= unknown
        for number, others in _by_order(numbers, group).items():
            if number in unknown:
                self._parents[number] = others

    def from_before(self, run: tuple[str, int | None], block: Block) -> None:
        """What the pairs of a step of one graph and rank take from earlier steps, and from other graphs."""
        if (earlier := self._before.get(run)) is not None:
            self.add(from_the_step_before(block, earlier))
        self._before[run] = block
        if run[0]:
            self.add(self._given.taken(block))

    def add(self, more: Mapping[int, Iterable[int]]) -> None:
        """Further parents of pairs, behind those that are known."""
        for number, others in more.items():
            self._parents[number] = (*self._parents[number], *others)

    @property
    def parents(self) -> Sequence[tuple[int, ...]]:
        """The parents of all pairs that are known so far."""
        return self._parents

    def lineage(self, words: str) -> Lineage:
        """What was found; `words` say how the dataflow is known."""
        basis = _basis(words, len(self._guessed), len(self._parents))
        return Lineage(
            tuple(self._parents), basis, frozenset(self._guessed), self._between, self._unseen, self.gaps
        )


def _noted(number: int, value: Noted | None) -> dict[int, Noted]:
    return {number: value} if value else {}


def _flows(golden: Dump, mine: Dump, pairs: Sequence[Pair], tables: Tables) -> tuple[FlowOf, str]:
    """What gives the dataflow of a step, and how it is known, in words."""
    if mine.kind == "atb" and golden.kind != "manual":
        return atb_flows(golden, mine, tables), "tensor names in the topology"
    if isinstance(mine, GeDump):
        return ge_flows(mine), "edges of the graph"
    if isinstance(mine, FxDump):
        return fx_flows(mine), "copies of results among the arguments of calls"
    if isinstance(golden, FxDump) and isinstance(mine, GraphCaptureDump):
        return captured_flows(golden, pairs), "copies of results among the arguments of golden's calls"
    if isinstance(golden, ModuleDump) and isinstance(mine, ModuleDump):
        unlike = any((pair.golden.node, pair.golden.slot) != place_of(pair) for pair in pairs)
        seen = "tensors that mine saw before" if unlike else "tensors that both dumps saw at the same places"
        return torch_flows(golden, mine, unlike), seen
    return lambda *_: None, ORDER


def _basis(words: str, guessed: int, total: int) -> str:
    if guessed == total:
        return ORDER
    return f"{words}; {guessed} of {total} pairs by {ORDER}" if guessed else words


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
