"""Which rank, graph and step of golden meets which of mine, and what only one side has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...dumps.base import Rank, Step
from ...dumps.torchair import Graph, TorchairDump
from ...errors import MappingError
from ..pair import Unmapped

AnyDump = TorchairDump[object]


@dataclass(frozen=True, slots=True)
class Group:
    """One rank, graph and step that both sides dumped. `rank` is `None` where none is named."""

    golden_rank: Rank
    mine_rank: Rank
    golden: Step
    mine: Step
    rank: int | None


@dataclass(slots=True)
class Grouping:
    """The groups in the order of their tests, and in words and rows what has no partner."""

    groups: list[Group] = field(default_factory=list)
    alone: list[Unmapped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def grouped(golden: AnyDump, mine: AnyDump) -> Grouping:
    """Pair ranks by number, graphs by number (else by order), steps by label; a lone one meets a lone one.

    Raises `MappingError` when nothing of golden meets anything of mine.
    """
    found = Grouping()
    ranks = _ranks(golden, mine, found)
    graphs = _graphs(golden, mine, found)
    for one_graph, other_graph in graphs:
        for one_rank, other_rank in ranks:
            steps = _steps(golden, mine, (one_graph, other_graph), (one_rank, other_rank), found)
            rank = other_rank.index if mine.ranked or len(ranks) > 1 else None
            found.groups += [Group(one_rank, other_rank, one, other, rank) for one, other in steps]
    if not found.groups:
        raise MappingError(
            f"nothing in common: golden {golden.root} has {_contents(golden)}; mine {mine.root} has "
            f"{_contents(mine)}; give one step's directory on each side to force a pair"
        )
    return found


def _ranks(golden: AnyDump, mine: AnyDump, found: Grouping) -> list[tuple[Rank, Rank]]:
    if len(golden.ranks) == len(mine.ranks) == 1:
        one, other = golden.ranks[0], mine.ranks[0]
        if one.index != other.index:
            found.notes.append(f"ranks: golden's only rank {one.index} meets mine's only rank {other.index}")
        return [(one, other)]
    by_number = {rank.index: rank for rank in mine.ranks}
    common = [(rank, by_number[rank.index]) for rank in golden.ranks if rank.index in by_number]
    if not common:
        raise MappingError(
            f"no rank in common: golden {golden.root} has {_numbers(golden.ranks)}, "
            f"mine {mine.root} has {_numbers(mine.ranks)}"
        )
    both = {one.index for one, _ in common}
    for side, dump in (("golden", golden), ("mine", mine)):
        for rank in dump.ranks:
            if rank.index not in both:
                reason = f"rank {rank.index} was dumped by {side} only"
                found.alone += [
                    _only(side, step, reason, rank) for step in dump.steps if dump.has(step, rank)
                ]
    worlds = [{rank.name.partition("_")[0] for rank in dump.ranks} - {""} for dump in (golden, mine)]
    if all(worlds) and worlds[0] != worlds[1]:
        found.notes.append(
            f"ranks: golden ran in {', '.join(sorted(worlds[0]))}, mine in {', '.join(sorted(worlds[1]))}; "
            "tensors that are split over ranks then differ in shape"
        )
    found.notes.append(f"ranks: {len(common)} on both sides ({_list(sorted(both))}), compared rank by rank")
    return common


def _graphs(golden: AnyDump, mine: AnyDump, found: Grouping) -> list[tuple[Graph, Graph]]:
    ones, others = golden.graphs, mine.graphs
    if len(ones) == len(others) == 1:
        if ones[0].name != others[0].name:
            found.notes.append(f"graphs: golden's only {ones[0].name} meets mine's only {others[0].name}")
        return [(ones[0], others[0])]
    if all(graph.number is not None for graph in (*ones, *others)):
        by_number = {graph.number: graph for graph in others}
        pairs = [(graph, by_number[graph.number]) for graph in ones if graph.number in by_number]
    else:
        pairs = list(zip(ones, others))
        found.notes.append(
            "graphs: not all directories say the number of their graph, so graphs meet in their order: "
            + ", ".join(f"{one.name} and {other.name}" for one, other in pairs)
        )
    used = ({one for one, _ in pairs}, {other for _, other in pairs})
    for side, dump, met in (("golden", golden, used[0]), ("mine", mine, used[1])):
        found.alone += [
            _only(side, step, f"{step.graph} was dumped by {side} only")
            for step in dump.steps
            if step.graph not in {graph.name for graph in met}
        ]
    return pairs


def _steps(
    golden: AnyDump,
    mine: AnyDump,
    graphs: tuple[Graph, Graph],
    ranks: tuple[Rank, Rank],
    found: Grouping,
) -> list[tuple[Step, Step]]:
    ones = [s for s in golden.steps if s.graph == graphs[0].name and golden.has(s, ranks[0])]
    others = [s for s in mine.steps if s.graph == graphs[1].name and mine.has(s, ranks[1])]
    by_label = {step.label: step for step in others}
    common = [(step, by_label[step.label]) for step in ones if step.label in by_label]
    if not common and golden.forced and mine.forced and ones and others:
        found.notes.append(
            f"steps: golden's {ones[0].label} meets mine's {others[0].label}, as both were named"
        )
        return [(ones[0], others[0])]
    labels = {one.label for one, _ in common}
    for side, steps in (("golden", ones), ("mine", others)):
        found.alone += [
            _only(side, step, f"step {step.label} of {step.graph} was dumped by {side} only")
            for step in steps
            if step.label not in labels
        ]
    return common


def _only(side: str, step: Step, reason: str, rank: Rank | None = None) -> Unmapped:
    number = rank.index if rank is not None else None
    name = step.graph
    return Unmapped(side, step.label, name, name, "Graph", reason, rank=number, graph=name)


def _contents(dump: AnyDump) -> str:
    words = [f"{step.graph} step {step.label}" for step in dump.steps]
    return ", ".join(_first(words)) or "no step"


def _first(words: Sequence[str], most: int = 8) -> Iterator[str]:
    yield from words[:most]
    if len(words) > most:
        yield f"and {len(words) - most} more"


def _numbers(ranks: Sequence[Rank]) -> str:
    return _list([rank.index for rank in ranks])


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
