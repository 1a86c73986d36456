"""`torchair_plan`: two dumps of GE or FX in, pairs in the order of the graph and all that is alone out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from ...base.reason import Reason, joined
from ...base.vocabulary import selectable
from ...dumps.base import Dump, Rank, Slot, Step
from ...dumps.ge import GeDump
from ...dumps.torchair import AnyDump, TorchairGraph
from ...errors import AccError, MappingError
from ...tensors.ref import TensorRef
from ..pair import Operand, Pair, Plan, Unmapped
from ..views import Permuted, Whole
from .calls import FxWithFx
from .fx import FxSide
from .graph import GraphIndex, GraphIndexes
from .lowering import FedKinds, marked
from .operators import operators
from .outcome import Matched, Outcome, SlotTensor, Unmatched
from .with_fx import GeWithFx, by_order
from .with_ge import GeWithGe, common_graph

_NOT_SELECTABLE = re.compile(r"[^\w+\-.\[\]/\\]", re.ASCII)
_KINDS = frozenset({"ge", "fx"})
_SideStep = tuple[AnyDump, Step, Rank]


def is_torchair(golden: Dump, mine: Dump) -> bool:
    """Whether both dumps are of GE or FX. Raises `MappingError` where only one of them is."""
    kinds = (golden.kind in _KINDS, mine.kind in _KINDS)
    if any(kinds) and not all(kinds):
        raise MappingError(
            f"golden {golden.root} is a dump of {golden.kind}, mine {mine.root} one of {mine.kind}; "
            "a GE or FX dump can only be compared with a GE or FX dump"
        )
    return all(kinds)


def torchair_plan(golden: Dump, mine: Dump, level: str = "all") -> Plan:
    """Map two dumps of GE or FX. A graph has operators only: of `level`, `layer` and `module` keep nothing.

    Raises `MappingError` when no rank, graph and step of one meets one of the other.
    """
    return _GraphPlanner(cast(AnyDump, golden), cast(AnyDump, mine), level).plan()


class _GraphPlanner:
    def __init__(self, golden: AnyDump, mine: AnyDump, level: str) -> None:
        self._golden = golden
        self._mine = mine
        self._level = level
        self._indexes = GraphIndexes()
        self._fed: dict[int, FedKinds] = {}
        self._notes: list[str] = []
        self._counts: Counter[str] = Counter()

    def plan(self) -> Plan:
        grouping = step_pairs(self._golden, self._mine)
        self._notes += grouping.notes
        if self._level in ("layer", "module"):
            self._notes.append(Reason("--acc-level {}: graphs of GE and FX have operators only", self._level))
        pairs: list[Pair] = []
        unmapped: list[Unmapped] = []
        for steps in grouping.pairs:
            outcomes = list(self._outcomes(steps))
            matched = self._in_order(steps, [outcome for outcome in outcomes if isinstance(outcome, Matched)])
            self._count(steps, matched)
            used: set[str] = set()
            for match in self._of_level(matched):
                pairs.append(_pair(match, steps, len(pairs), used))
            refs = _Refs(
                (self._golden, steps.golden, steps.golden_rank), (self._mine, steps.mine, steps.mine_rank)
            )
            unmapped += [
                _unmapped(outcome, steps, refs) for outcome in outcomes if isinstance(outcome, Unmatched)
            ]
        unmapped += grouping.alone
        return Plan.of_dumps(self._golden, self._mine, pairs, unmapped, self._counts, self._notes)

    def _outcomes(self, steps: GraphStepPair) -> Iterable[Outcome]:
        if self._golden.kind == self._mine.kind == "fx":
            golden_calls = FxSide(self._golden, steps.golden, steps.golden_rank)
            return FxWithFx(golden_calls, FxSide(self._mine, steps.mine, steps.mine_rank)).outcomes()
        if self._golden.kind == self._mine.kind:
            golden, mine = cast(GeDump, self._golden), cast(GeDump, self._mine)
            indexes = (
                self._indexes.of(golden, steps.golden, steps.golden_rank),
                self._indexes.of(mine, steps.mine, steps.mine_rank),
            )
            graph, note = common_graph(*indexes)
            self._notes += [f"{steps.mine.graph}: {note}"] if note else []
            golden_operators = operators(golden, steps.golden, steps.golden_rank, graph)
            return GeWithGe(graph, golden_operators).outcomes(
                operators(mine, steps.mine, steps.mine_rank, graph)
            )
        return self._ge_and_fx(steps)

    def _ge_and_fx(self, steps: GraphStepPair) -> Iterator[Outcome]:
        """GE under test against FX as golden, or the other way round."""
        usual = self._mine.kind == "ge"
        ge = cast(GeDump, self._mine if usual else self._golden)
        fx = self._golden if usual else self._mine
        ge_step, ge_rank = (steps.mine, steps.mine_rank) if usual else (steps.golden, steps.golden_rank)
        fx_step, fx_rank = (steps.golden, steps.golden_rank) if usual else (steps.mine, steps.mine_rank)
        sides = ("mine", "golden") if usual else ("golden", "mine")
        graph = self._indexes.of(ge, ge_step, ge_rank)
        ran = operators(ge, ge_step, ge_rank, graph)
        calls = FxSide(fx, fx_step, fx_rank)
        if graph is None:
            outcomes = by_order(ran, calls, *sides)
        else:
            outcomes = GeWithFx(graph, self._kinds_of(graph).arguments, calls, *sides).outcomes(ran)
        for outcome in outcomes:
            if not (usual or isinstance(outcome, Unmatched) or outcome.self_check):
                outcome = _swapped(outcome)
            yield outcome

    def _in_order(self, steps: GraphStepPair, matched: Sequence[Matched]) -> Sequence[Matched]:
        """The matches of a group as they are compared: what it was fed, then in the order of the graph."""
        sides = ((self._mine, steps.mine, steps.mine_rank), (self._golden, steps.golden, steps.golden_rank))
        for dump, step, rank in sides:
            graph = self._indexes.of(dump, step, rank)
            if graph is not None:
                return marked(matched, self._kinds_of(graph))
        return sorted(matched, key=lambda match: match.place)

    def _kinds_of(self, graph: GraphIndex) -> FedKinds:
        """The kinds of the inputs of a graph, computed once."""
        if id(graph) not in self._fed:
            self._fed[id(graph)] = FedKinds(graph)
        return self._fed[id(graph)]

    def _of_level(self, matched: Sequence[Matched]) -> Sequence[Matched]:
        if self._level in ("layer", "module"):
            return ()
        if self._level == "logits":
            outputs = [match for match in matched if match.mine.slot.kind == "output"]
            return [match for match in outputs if not match.self_check][-1:]
        return matched

    def _count(self, steps: GraphStepPair, matched: Sequence[Matched]) -> None:
        """Coverage counts nodes: those that were dumped, and those with a tensor that is compared."""
        sides = (
            ("golden", self._golden, steps.golden, steps.golden_rank, [match.golden for match in matched]),
            ("mine", self._mine, steps.mine, steps.mine_rank, [match.mine for match in matched]),
        )
        self_checked = {match.mine.node.path for match in matched if match.self_check}
        for name, dump, step, rank, ends in sides:
            paths = {node.path for node in dump.nodes(step, rank)}
            self._counts[f"{name}_total"] += len(paths)
            met = {end.node.path for end in ends}
            self._counts[f"{name}_mapped"] += len(paths & (met if name == "mine" else met - self_checked))


def _swapped(match: Matched) -> Matched:
    return replace(match, golden=match.mine, mine=match.golden)


def _pair(match: Matched, steps: GraphStepPair, order: int, used: set[str]) -> Pair:
    mine = _operand(match.mine)
    label = f"{match.mine.node.path}[self]" if match.self_check else match.mine.label
    text = match.source if match.fed else label
    plain = selectable(text, _NOT_SELECTABLE)
    candidate, number = plain, 2
    while candidate in used:
        candidate, number = f"{plain}.{number}", number + 1
    used.add(candidate)
    return Pair(
        id=candidate,
        step=steps.mine.label,
        rank=steps.rank,
        level="op",
        layer=steps.mine.graph,
        depth=match.depth,
        order=order,
        policy=match.policy,
        reason=match.reason,
        golden=_operand(match.golden),
        mine=replace(mine, name=match.source) if match.fed else mine,
        graph=steps.mine.graph,
        fed=match.fed,
    )


def _operand(end: SlotTensor) -> Operand:
    view = Permuted(end.order) if end.order else Whole()
    return Operand(end.node.path, end.node.name, end.node.op_type, str(end.slot), (end.ref,), view)


class _Refs:
    """References of the tensors of a group; each node is looked up once."""

    def __init__(self, golden: _SideStep, mine: _SideStep) -> None:
        self._places = {"golden": golden, "mine": mine}
        self._slots: dict[tuple[str, str], Mapping[Slot, TensorRef]] = {}

    def of(self, unmatched: Unmatched) -> TensorRef | None:
        if unmatched.slot is None:
            return None
        key = (unmatched.side, unmatched.node.path)
        if key not in self._slots:
            dump, step, rank = self._places[unmatched.side]
            try:
                self._slots[key] = dump.tensors(step, rank, unmatched.node)
            except (AccError, OSError):
                self._slots[key] = {}
        return self._slots[key].get(unmatched.slot)


def _unmapped(unmatched: Unmatched, steps: GraphStepPair, refs: _Refs) -> Unmapped:
    node, slot = unmatched.node, "" if unmatched.slot is None else str(unmatched.slot)
    return Unmapped(
        unmatched.side,
        steps.mine.label,
        node.path,
        node.name,
        node.op_type,
        unmatched.reason,
        slot=slot,
        rank=steps.rank,
        graph=steps.mine.graph,
        ref=refs.of(unmatched),
    )


# Ranks, graphs and steps of golden and mine that meet, and those of one side only.


@dataclass(frozen=True, slots=True)
class GraphStepPair:
    """One rank, graph and step that both sides dumped. `rank` is `None` where none is named."""

    golden_rank: Rank
    mine_rank: Rank
    golden: Step
    mine: Step
    rank: int | None


@dataclass(slots=True)
class GraphStepPairs:
    """The groups in the order of their tests, and in words and rows what has no partner."""

    pairs: list[GraphStepPair] = field(default_factory=list)
    alone: list[Unmapped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def step_pairs(golden: AnyDump, mine: AnyDump) -> GraphStepPairs:
    """Pair ranks by number, graphs by number (else by order), steps by label; a lone one meets a lone one.

    Raises `MappingError` when nothing of golden meets anything of mine.
    """
    result = GraphStepPairs()
    ranks = _ranks(golden, mine, result)
    graphs = _graphs(golden, mine, result)
    for golden_graph, mine_graph in graphs:
        for golden_rank, mine_rank in ranks:
            steps = _steps(golden, mine, (golden_graph, mine_graph), (golden_rank, mine_rank), result)
            rank = mine_rank.index if mine.ranked or len(ranks) > 1 else None
            result.pairs += [
                GraphStepPair(golden_rank, mine_rank, golden_step, mine_step, rank)
                for golden_step, mine_step in steps
            ]
    if not result.pairs:
        raise MappingError(
            f"nothing in common: golden {golden.root} has {_contents(golden)}; mine {mine.root} has "
            f"{_contents(mine)}; give one step's directory on each side to force a pair"
        )
    return result


def _ranks(golden: AnyDump, mine: AnyDump, result: GraphStepPairs) -> list[tuple[Rank, Rank]]:
    if len(golden.ranks) == len(mine.ranks) == 1:
        golden_rank, mine_rank = golden.ranks[0], mine.ranks[0]
        if golden_rank.index != mine_rank.index:
            result.notes.append(
                Reason(
                    "ranks: rank {} of golden and rank {} of mine are paired: each side has only one",
                    *(golden_rank.index, mine_rank.index),
                )
            )
        return [(golden_rank, mine_rank)]
    by_number = {rank.index: rank for rank in mine.ranks}
    common = [(rank, by_number[rank.index]) for rank in golden.ranks if rank.index in by_number]
    if not common:
        raise MappingError(
            f"no rank in common: golden {golden.root} has {_numbers(golden.ranks)}, "
            f"mine {mine.root} has {_numbers(mine.ranks)}"
        )
    ids = {golden_rank.index for golden_rank, _ in common}
    result.alone += [*_lone_ranks("golden", golden, ids), *_lone_ranks("mine", mine, ids)]
    worlds = [{rank.name.partition("_")[0] for rank in dump.ranks} - {""} for dump in (golden, mine)]
    if all(worlds) and worlds[0] != worlds[1]:
        result.notes.append(
            Reason(
                "ranks: golden ran in {}, mine in {}; tensors that are split over ranks then differ in shape",
                ", ".join(sorted(worlds[0])),
                ", ".join(sorted(worlds[1])),
            )
        )
    result.notes.append(
        Reason("ranks: {} on both sides ({}), compared rank by rank", len(common), _list(sorted(ids)))
    )
    return common


def _lone_ranks(side: str, dump: AnyDump, ids: Collection[int]) -> Iterator[Unmapped]:
    """Dumped steps of the ranks of one side that the other does not have."""
    for rank in dump.ranks:
        if rank.index not in ids:
            reason = Reason("rank {} was dumped by {} only", rank.index, side)
            yield from (_only(side, step, reason, rank) for step in dump.steps if dump.has(step, rank))


def _graphs(
    golden: AnyDump, mine: AnyDump, result: GraphStepPairs
) -> list[tuple[TorchairGraph, TorchairGraph]]:
    golden_graphs, mine_graphs = golden.graphs, mine.graphs
    if len(golden_graphs) == len(mine_graphs) == 1:
        if golden_graphs[0].name != mine_graphs[0].name:
            result.notes.append(
                Reason(
                    "graphs: {} of golden and {} of mine are paired: each side has only one",
                    golden_graphs[0].name,
                    mine_graphs[0].name,
                )
            )
        return [(golden_graphs[0], mine_graphs[0])]
    if all(graph.number is not None for graph in (*golden_graphs, *mine_graphs)):
        by_number = {graph.number: graph for graph in mine_graphs}
        pairs = [(graph, by_number[graph.number]) for graph in golden_graphs if graph.number in by_number]
    else:
        pairs = list(zip(golden_graphs, mine_graphs))
        result.notes.append(
            Reason(
                "graphs: not all directories say the number of their graph, "
                "so graphs meet in their order: {}",
                joined(", ", (Reason("{} and {}", ours.name, theirs.name) for ours, theirs in pairs)),
            )
        )
    used = ({golden_graph for golden_graph, _ in pairs}, {mine_graph for _, mine_graph in pairs})
    for side, dump, met in (("golden", golden, used[0]), ("mine", mine, used[1])):
        result.alone += [
            _only(side, step, Reason("{} was dumped by {} only", step.graph, side))
            for step in dump.steps
            if step.graph not in {graph.name for graph in met}
        ]
    return pairs


def _steps(
    golden: AnyDump,
    mine: AnyDump,
    graphs: tuple[TorchairGraph, TorchairGraph],
    ranks: tuple[Rank, Rank],
    result: GraphStepPairs,
) -> list[tuple[Step, Step]]:
    golden_steps = _dumped(golden, graphs[0], ranks[0])
    mine_steps = _dumped(mine, graphs[1], ranks[1])
    by_label = {step.label: step for step in mine_steps}
    common = [(step, by_label[step.label]) for step in golden_steps if step.label in by_label]
    if not common and golden.forced and mine.forced and golden_steps and mine_steps:
        result.notes.append(
            Reason(
                "steps: {} of golden and {} of mine are paired: both were named",
                golden_steps[0].label,
                mine_steps[0].label,
            )
        )
        return [(golden_steps[0], mine_steps[0])]
    labels = {golden_step.label for golden_step, _ in common}
    for side, steps in (("golden", golden_steps), ("mine", mine_steps)):
        result.alone += [
            _only(side, step, Reason("step {} of {} was dumped by {} only", step.label, step.graph, side))
            for step in steps
            if step.label not in labels
        ]
    return common


def _dumped(dump: AnyDump, graph: TorchairGraph, rank: Rank) -> list[Step]:
    """The steps of a graph that a rank dumped."""
    return [step for step in dump.steps if step.graph == graph.name and dump.has(step, rank)]


def _only(side: str, step: Step, reason: str, rank: Rank | None = None) -> Unmapped:
    number = rank.index if rank is not None else None
    name = step.graph
    return Unmapped(side, step.label, name, name, "TorchairGraph", reason, rank=number, graph=name)


def _contents(dump: AnyDump) -> str:
    names = [f"{step.graph} step {step.label}" for step in dump.steps]
    return ", ".join(_first(names)) or "no step"


def _first(names: Sequence[str], limit: int = 8) -> Iterator[str]:
    yield from names[:limit]
    if len(names) > limit:
        yield Reason("and {} more", len(names) - limit)


def _numbers(ranks: Sequence[Rank]) -> str:
    return _list([rank.index for rank in ranks])


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
