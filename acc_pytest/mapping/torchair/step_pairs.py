"""Ranks, graphs and steps of golden and mine that meet, and those of one side only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ...dumps.base import Rank, Step
from ...dumps.torchair import TorchairDump, TorchairGraph
from ...errors import MappingError
from ..pair import Unmapped

AnyDump = TorchairDump[object]


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
                f"ranks: rank {golden_rank.index} of golden and rank {mine_rank.index} of mine are paired: "
                "each side has only one"
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
            f"ranks: golden ran in {', '.join(sorted(worlds[0]))}, mine in {', '.join(sorted(worlds[1]))}; "
            "tensors that are split over ranks then differ in shape"
        )
    result.notes.append(f"ranks: {len(common)} on both sides ({_list(sorted(ids))}), compared rank by rank")
    return common


def _lone_ranks(side: str, dump: AnyDump, ids: Collection[int]) -> Iterator[Unmapped]:
    """Dumped steps of the ranks of one side that the other does not have."""
    for rank in dump.ranks:
        if rank.index not in ids:
            reason = f"rank {rank.index} was dumped by {side} only"
            yield from (_only(side, step, reason, rank) for step in dump.steps if dump.has(step, rank))


def _graphs(
    golden: AnyDump, mine: AnyDump, result: GraphStepPairs
) -> list[tuple[TorchairGraph, TorchairGraph]]:
    golden_graphs, mine_graphs = golden.graphs, mine.graphs
    if len(golden_graphs) == len(mine_graphs) == 1:
        if golden_graphs[0].name != mine_graphs[0].name:
            result.notes.append(
                f"graphs: {golden_graphs[0].name} of golden and {mine_graphs[0].name} of mine are paired: "
                "each side has only one"
            )
        return [(golden_graphs[0], mine_graphs[0])]
    if all(graph.number is not None for graph in (*golden_graphs, *mine_graphs)):
        by_number = {graph.number: graph for graph in mine_graphs}
        pairs = [(graph, by_number[graph.number]) for graph in golden_graphs if graph.number in by_number]
    else:
        pairs = list(zip(golden_graphs, mine_graphs))
        result.notes.append(
            "graphs: not all directories say the number of their graph, so graphs meet in their order: "
            + ", ".join(f"{golden_graph.name} and {mine_graph.name}" for golden_graph, mine_graph in pairs)
        )
    used = ({golden_graph for golden_graph, _ in pairs}, {mine_graph for _, mine_graph in pairs})
    for side, dump, met in (("golden", golden, used[0]), ("mine", mine, used[1])):
        result.alone += [
            _only(side, step, f"{step.graph} was dumped by {side} only")
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
            f"steps: {golden_steps[0].label} of golden and {mine_steps[0].label} of mine are paired: "
            "both were named"
        )
        return [(golden_steps[0], mine_steps[0])]
    labels = {golden_step.label for golden_step, _ in common}
    for side, steps in (("golden", golden_steps), ("mine", mine_steps)):
        result.alone += [
            _only(side, step, f"step {step.label} of {step.graph} was dumped by {side} only")
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
        yield f"and {len(names) - limit} more"


def _numbers(ranks: Sequence[Rank]) -> str:
    return _list([rank.index for rank in ranks])


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
