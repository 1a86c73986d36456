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
from ..pair import Operand, Pair, Plan, Unmapped
from ..views import Permuted, Whole
from .by_order import by_order
from .calls import FxWithFx
from .fed import FedKinds, marked
from .fx_side import FxSide
from .graph import GraphIndex, GraphIndexes
from .operators import operators
from .outcome import Matched, Outcome, SlotTensor, Unmatched
from .step_pairs import GraphStepPair, step_pairs
from .with_fx import GeWithFx
from .with_ge import GeWithGe, common_graph

_NOT_SELECTABLE = re.compile(r"[^\w+\-.\[\]/\\]", re.ASCII)
_KINDS = frozenset({"ge", "fx"})
_SideStep = tuple[TorchairDump[Any], Step, Rank]


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
    return _GraphPlanner(golden, mine, level).plan()


class _GraphPlanner:
    def __init__(self, golden: TorchairDump[Any], mine: TorchairDump[Any], level: str) -> None:
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
            self._notes.append(f"--acc-level {self._level}: graphs of GE and FX have operators only")
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
        golden, mine = self._golden, self._mine
        if isinstance(golden, FxDump) and isinstance(mine, FxDump):
            golden_calls = FxSide(golden, steps.golden, steps.golden_rank)
            return FxWithFx(golden_calls, FxSide(mine, steps.mine, steps.mine_rank)).outcomes()
        if isinstance(golden, GeDump) and isinstance(mine, GeDump):
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
        usual = isinstance(self._mine, GeDump)
        ge = cast(GeDump, self._mine if usual else self._golden)
        fx = cast(FxDump, self._golden if usual else self._mine)
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
            graph = self._indexes.of(dump, step, rank) if isinstance(dump, GeDump) else None
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
    return Pair(
        id=_id(match, used),
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


def _id(match: Matched, used: set[str]) -> str:
    """`Add_2` for its first output, `TopKV2[1]`, `Add_2[in0]`, `trans_Cast_1[self]` for a self-check, and
    `arg5_1` for an input of the graph."""
    label = f"{match.mine.node.path}[self]" if match.self_check else match.mine.label
    text = match.source if match.fed else label
    plain = selectable(text, _NOT_SELECTABLE)
    candidate, number = plain, 2
    while candidate in used:
        candidate, number = f"{plain}.{number}", number + 1
    used.add(candidate)
    return candidate


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
