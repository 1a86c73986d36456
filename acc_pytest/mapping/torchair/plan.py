"""`torchair_plan`: two dumps of GE or FX in, pairs in the order of the graph and all that is alone out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ...dumps.base import Dump, Rank, Slot, Step
from ...dumps.fx import FxDump
from ...dumps.ge import GeDump
from ...dumps.torchair import TorchairDump
from ...errors import AccError, MappingError
from ...tensors.ref import TensorRef
from ...vocabulary import selectable
from ..pair import Operand, Pair, Plan, Turned, Unmapped, Whole
from .by_order import by_order
from .calls import WithFxCalls
from .fed import FedWords, marked
from .fx_side import FxSide
from .graph import GraphIndex
from .groups import Group, grouped
from .operators import operators
from .outcome import Alone, End, Matched, Outcome
from .with_fx import WithFx
from .with_ge import WithGe, one_graph

_NOT_SELECTABLE = re.compile(r"[^\w+\-.\[\]/\\]", re.ASCII)
_KINDS = frozenset({"ge", "fx"})
_Place = tuple[TorchairDump[Any], Step, Rank]


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
    assert isinstance(golden, TorchairDump)
    assert isinstance(mine, TorchairDump)
    return _Planner(golden, mine, level).plan()


class _Planner:
    def __init__(self, golden: TorchairDump[Any], mine: TorchairDump[Any], level: str) -> None:
        self._golden = golden
        self._mine = mine
        self._level = level
        self._indexes: dict[int, GraphIndex] = {}
        self._known: dict[int, FedWords] = {}
        self._notes: list[str] = []
        self._total: Counter[str] = Counter()
        self._mapped: Counter[str] = Counter()

    def plan(self) -> Plan:
        grouping = grouped(self._golden, self._mine)
        self._notes += grouping.notes
        if self._level in ("layer", "module"):
            self._notes.append(f"--acc-level {self._level}: graphs of GE and FX have operators only")
        pairs: list[Pair] = []
        unmapped: list[Unmapped] = []
        for group in grouping.groups:
            outcomes = list(self._outcomes(group))
            matched = self._in_order(group, [one for one in outcomes if isinstance(one, Matched)])
            self._count(group, matched)
            used: set[str] = set()
            for one in self._of_level(matched):
                pairs.append(_pair(one, group, len(pairs), used))
            alone = [one for one in outcomes if isinstance(one, Alone)]
            refs = _Refs(
                (self._golden, group.golden, group.golden_rank), (self._mine, group.mine, group.mine_rank)
            )
            unmapped += [_unmapped(one, group, refs) for one in alone]
        unmapped += grouping.alone
        return Plan(
            golden_root=str(self._golden.root),
            mine_root=str(self._mine.root),
            golden_kind=self._golden.kind,
            mine_kind=self._mine.kind,
            name=self._mine.name,
            pairs=tuple(pairs),
            unmapped=tuple(unmapped),
            notes=tuple(dict.fromkeys((*self._golden.notes, *self._mine.notes, *self._notes))),
            golden_total=self._total["golden"],
            golden_mapped=self._mapped["golden"],
            mine_total=self._total["mine"],
            mine_mapped=self._mapped["mine"],
        )

    def _outcomes(self, group: Group) -> Iterable[Outcome]:
        golden, mine = self._golden, self._mine
        if isinstance(golden, FxDump) and isinstance(mine, FxDump):
            one = FxSide(golden, group.golden, group.golden_rank)
            return WithFxCalls(one, FxSide(mine, group.mine, group.mine_rank)).outcomes()
        if isinstance(golden, GeDump) and isinstance(mine, GeDump):
            indexes = (
                self._index(golden, group.golden, group.golden_rank),
                self._index(mine, group.mine, group.mine_rank),
            )
            graph, said = one_graph(*indexes)
            self._notes += [f"{group.mine.graph}: {said}"] if said else []
            ones = operators(golden, group.golden, group.golden_rank, graph)
            return WithGe(graph, ones).outcomes(operators(mine, group.mine, group.mine_rank, graph))
        return self._ge_and_fx(group)

    def _ge_and_fx(self, group: Group) -> Iterator[Outcome]:
        """GE under test against FX as golden, or the other way round."""
        usual = isinstance(self._mine, GeDump)
        ge = cast(GeDump, self._mine if usual else self._golden)
        fx = cast(FxDump, self._golden if usual else self._mine)
        ge_step, ge_rank = (group.mine, group.mine_rank) if usual else (group.golden, group.golden_rank)
        fx_step, fx_rank = (group.golden, group.golden_rank) if usual else (group.mine, group.mine_rank)
        sides = ("mine", "golden") if usual else ("golden", "mine")
        graph = self._index(ge, ge_step, ge_rank)
        ran = operators(ge, ge_step, ge_rank, graph)
        calls = FxSide(fx, fx_step, fx_rank)
        if graph is None:
            found = by_order(ran, calls, *sides)
        else:
            found = WithFx(graph, self._words(graph).arguments, calls, *sides).outcomes(ran)
        for one in found:
            yield one if usual or isinstance(one, Alone) or one.own else _turned(one)

    def _in_order(self, group: Group, matched: Sequence[Matched]) -> Sequence[Matched]:
        """The matches of a group as they are compared: what it was fed, then in the order of the graph."""
        sides = ((self._mine, group.mine, group.mine_rank), (self._golden, group.golden, group.golden_rank))
        for dump, step, rank in sides:
            graph = self._index(dump, step, rank) if isinstance(dump, GeDump) else None
            if graph is not None:
                return marked(matched, self._words(graph))
        return sorted(matched, key=lambda one: one.place)

    def _words(self, graph: GraphIndex) -> FedWords:
        """What is known of a graph beyond its text, found out once."""
        if id(graph) not in self._known:
            self._known[id(graph)] = FedWords(graph)
        return self._known[id(graph)]

    def _index(self, dump: GeDump, step: Any, rank: Any) -> GraphIndex | None:
        graph = dump.graph(step, rank)
        if graph is None:
            return None
        if id(graph) not in self._indexes:
            self._indexes[id(graph)] = GraphIndex(graph)
        return self._indexes[id(graph)]

    def _of_level(self, matched: Sequence[Matched]) -> Sequence[Matched]:
        if self._level in ("layer", "module"):
            return ()
        if self._level == "logits":
            return [one for one in matched if one.mine.slot.kind == "output" and not one.own][-1:]
        return matched

    def _count(self, group: Group, matched: Sequence[Matched]) -> None:
        """Coverage counts nodes with outputs: those dumped, and those of which some tensor is compared."""
        sides = (
            ("golden", self._golden, group.golden, group.golden_rank, [one.golden for one in matched]),
            ("mine", self._mine, group.mine, group.mine_rank, [one.mine for one in matched]),
        )
        own = {one.mine.node.path for one in matched if one.own}
        for name, dump, step, rank, ends in sides:
            paths = {node.path for node in dump.nodes(step, rank)}
            self._total[name] += len(paths)
            met = {end.node.path for end in ends}
            self._mapped[name] += len(paths & (met if name == "mine" else met - own))


def _turned(one: Matched) -> Matched:
    return replace(one, golden=one.mine, mine=one.golden)


def _pair(one: Matched, group: Group, order: int, used: set[str]) -> Pair:
    mine = _operand(one.mine)
    return Pair(
        id=_id(one, used),
        step=group.mine.label,
        rank=group.rank,
        level="op",
        layer=group.mine.graph,
        depth=one.depth,
        order=order,
        policy=one.policy,
        reason=one.reason,
        golden=_operand(one.golden),
        mine=replace(mine, name=one.given) if one.fed else mine,
        graph=group.mine.graph,
        fed=one.fed,
    )


def _operand(end: End) -> Operand:
    view = Turned(end.order) if end.order else Whole()
    return Operand(end.node.path, end.node.name, end.node.op_type, str(end.slot), (end.ref,), view)


def _id(one: Matched, used: set[str]) -> str:
    """`Add_2` for its first output, `TopKV2[1]`, `Add_2[in0]`, `trans_Cast_1[self]` for a self-check, and
    `arg5_1` for an input of the graph."""
    text = one.given if one.fed else f"{one.mine.node.path}[self]" if one.own else one.mine.label
    plain = selectable(text, _NOT_SELECTABLE)
    candidate, number = plain, 2
    while candidate in used:
        candidate, number = f"{plain}.{number}", number + 1
    used.add(candidate)
    return candidate


class _Refs:
    """Where the tensors of a group lie; each node is asked for once."""

    def __init__(self, golden: _Place, mine: _Place) -> None:
        self._places = {"golden": golden, "mine": mine}
        self._known: dict[tuple[str, str], Mapping[Slot, TensorRef]] = {}

    def of(self, one: Alone) -> TensorRef | None:
        if one.slot is None:
            return None
        key = (one.side, one.node.path)
        if key not in self._known:
            dump, step, rank = self._places[one.side]
            try:
                self._known[key] = dump.tensors(step, rank, one.node)
            except (AccError, OSError):
                self._known[key] = {}
        return self._known[key].get(one.slot)


def _unmapped(one: Alone, group: Group, refs: _Refs) -> Unmapped:
    node, slot = one.node, "" if one.slot is None else str(one.slot)
    return Unmapped(
        one.side,
        group.mine.label,
        node.path,
        node.name,
        node.op_type,
        one.reason,
        slot=slot,
        rank=group.rank,
        graph=group.mine.graph,
        ref=refs.of(one),
    )
