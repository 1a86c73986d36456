"""Tensors saved inside of captured graphs against FX: both are named after the nodes of one graph.

The k-th file of a node is its result in the k-th run of any graph with such a node. `getitem` stands for one
result of several: FX dumps results with their call, so the sequences of both are aligned by their shapes.
Inputs of the graph have names in a captured graph only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from ...base.reason import Reason
from ...base.vocabulary import selectable
from ...dumps.base import Dump, Rank, Slot, Step, natural
from ...dumps.graph_capture import GraphCaptureDump
from ...dumps.torchair import FxDump
from ...errors import MappingError
from ...tensors.header import TensorHeader
from ...tensors.ref import TensorRef, readable
from ...topology.tree import Node
from ..pair import Operand, Pair, Plan, Unmapped
from ..policies import align

_GETITEM = "getitem"
_OUTPUT = "output[0]"


def is_captured(golden: Dump, mine: Dump) -> bool:
    """Whether one dump is of FX and the other was saved inside of captured graphs.

    Raises `MappingError` for a captured graph and a dump of the Graph Engine, which names operators
    otherwise.
    """
    kinds = {golden.kind, mine.kind}
    if kinds == {"ge", GraphCaptureDump.kind}:
        raise MappingError(
            f"golden {golden.root} is a dump of {golden.kind}, mine {mine.root} one of {mine.kind}; "
            "compare both with a dump of FX"
        )
    return kinds == {"fx", GraphCaptureDump.kind}


def captured_plan(golden: Dump, mine: Dump, level: str = "all") -> Plan:
    """The plan of the two dumps. Raises `MappingError` where they have no rank in common."""
    return _Captured(golden, mine, level).plan()


@dataclass(frozen=True, eq=False, slots=True)
class _Result:
    """A result of a call of FX in one execution; `several` where the call has more results."""

    step: Step
    node: Node
    slot: Slot
    ref: TensorRef
    several: bool


class _Captured:
    def __init__(self, golden: Dump, mine: Dump, level: str) -> None:
        fx, captured = (golden, mine) if golden.kind == "fx" else (mine, golden)
        self._golden, self._mine = golden, mine
        self._fx, self._captured = cast(FxDump, fx), cast(GraphCaptureDump, captured)
        self._level = level
        self._pairs: list[Pair] = []
        self._unmapped: list[Unmapped] = []
        self._counts: Counter[str] = Counter()

    def plan(self) -> Plan:
        for fx_rank, rank in self._ranks():
            self._of_rank(fx_rank, rank)
        if self._level in ("layer", "module"):
            self._pairs = []
        elif self._level == "logits":
            self._pairs = self._pairs[-1:]
        return Plan.of_dumps(self._golden, self._mine, self._pairs, self._unmapped, self._counts)

    def _ranks(self) -> list[tuple[Rank, Rank]]:
        if len(self._fx.ranks) == len(self._captured.ranks) == 1:
            return [(self._fx.ranks[0], self._captured.ranks[0])]
        by_index = {rank.index: rank for rank in self._captured.ranks}
        common = [(rank, by_index[rank.index]) for rank in self._fx.ranks if rank.index in by_index]
        if not common:
            raise MappingError(f"no rank in common: {self._golden.root} and {self._mine.root}")
        return common

    def _of_rank(self, fx_rank: Rank, rank: Rank) -> None:
        by_name: dict[str, list[_Result]] = {}
        items: list[_Result] = []
        for result in self._results(fx_rank):
            (items if result.several else by_name.setdefault(result.node.name, [])).append(result)
        matches: list[tuple[_Result, str, TensorRef, str]] = []
        for name in self._captured.names:
            refs = self._captured.calls_of(rank, name)
            if name.partition("_")[0] == _GETITEM:
                continue
            for result, ref in zip(by_name.get(name, ()), refs):
                matches.append((result, name, ref, "the node of this name"))
        matches += self._items(rank, items)
        place = {id(result): number for number, result in enumerate(self._results_of(by_name, items))}
        matches.sort(key=lambda match: place[id(match[0])])
        used: Counter[str] = Counter()
        paired: set[str] = set()
        for result, name, ref, reason in matches:
            if None not in (shapes := (_shape(result.ref), _shape(ref))) and shapes[0] != shapes[1]:
                continue
            paired.add(ref.path)
            self._pairs.append(self._pair(result, name, ref, reason, rank, used))
        self._note_unmapped(rank, {result.node.path for result, *_ in matches}, paired)

    def _results_of(self, by_name: dict[str, list[_Result]], items: list[_Result]) -> list[_Result]:
        all_results = [*(result for results in by_name.values() for result in results), *items]
        order = {step: number for number, step in enumerate(self._executions())}
        return sorted(all_results, key=lambda result: (order[result.step], result.node.order, result.slot))

    def _executions(self) -> list[Step]:
        """Steps of all graphs in the order of time."""
        rank = self._fx.ranks[0]
        times = {}
        for step in self._fx.steps:
            entries = [self._fx.entry(step, rank, node) or {} for node in self._fx.nodes(step, rank)]
            times[step] = min((name.time for entry in entries for name, _ in entry.values()), default=0)
        return sorted(self._fx.steps, key=lambda step: times[step])

    def _results(self, rank: Rank) -> Iterator[_Result]:
        for step in self._executions():
            for node in self._fx.nodes(step, rank):
                outputs = {
                    slot: ref
                    for slot, ref in self._fx.tensors(step, rank, node).items()
                    if slot.kind == "output"
                }
                for slot, ref in outputs.items():
                    yield _Result(step, node, slot, ref, len(outputs) > 1)

    def _items(self, rank: Rank, packed: Sequence[_Result]) -> Iterator[tuple[_Result, str, TensorRef, str]]:
        """The results that `getitem` nodes stand for, in their order, by shape and kind of type."""
        names = sorted((n for n in self._captured.names if n.partition("_")[0] == _GETITEM), key=natural)
        call_counts: Counter[str] = Counter()
        for step in dict.fromkeys(result.step for result in packed):
            items = [
                (name, calls[call_counts[name]])
                for name in names
                if len(calls := self._captured.calls_of(rank, name)) > call_counts[name]
            ]
            results = [result for result in packed if result.step is step]
            for result, (name, ref) in align(results, items, lambda r, item: _alike(r.ref, item[1])):
                call_counts[name] += 1
                yield result, name, ref, "a result of its shape at the same place"

    def _pair(
        self, result: _Result, name: str, ref: TensorRef, reason: str, rank: Rank, used: Counter[str]
    ) -> Pair:
        fx = Operand(result.node.path, result.node.name, result.node.op_type, str(result.slot), (result.ref,))
        captured = Operand(name, name, result.node.op_type, _OUTPUT, (ref,))
        golden, mine = (fx, captured) if self._golden is self._fx else (captured, fx)
        plain = selectable(name)
        key = f"{result.step.directory} {plain}"
        used[key] += 1
        return Pair(
            id=plain if used[key] == 1 else f"{plain}.{used[key]}",
            step=result.step.label,
            rank=rank.index,
            level="op",
            layer=result.step.graph,
            depth=0,
            order=len(self._pairs),
            policy="name" if not result.several else "order",
            reason=reason,
            golden=golden,
            mine=mine,
            graph=result.step.graph,
        )

    def _note_unmapped(self, rank: Rank, paths: set[str], paired: set[str]) -> None:
        """Count nodes, and note why captured tensors have no partner."""
        captured, fx = ("mine", "golden") if self._mine is self._captured else ("golden", "mine")
        nodes = {node.path for step in self._fx.steps for node in self._fx.nodes(step, rank)}
        self._counts[f"{fx}_total"] += len(nodes)
        self._counts[f"{fx}_mapped"] += len(nodes & paths)
        for name in self._captured.names:
            refs = self._captured.calls_of(rank, name)
            self._counts[f"{captured}_total"] += bool(refs)
            self._counts[f"{captured}_mapped"] += any(ref.path in paired for ref in refs)
            for call, ref in enumerate(refs):
                if ref.path not in paired:
                    self._unmapped.append(
                        Unmapped(
                            captured,
                            call,
                            name,
                            name,
                            "Captured",
                            _why(name),
                            _OUTPUT,
                            rank=rank.index,
                            ref=ref,
                        )
                    )


def _why(name: str) -> str:
    return Reason(
        "FX dumped no result of its shape for {}; inputs of a graph have no name in a dump of FX", name
    )


def _shape(ref: TensorRef) -> tuple[int, ...] | None:
    header = readable(ref)
    return header.shape if header is not None else None


def _alike(fx_ref: TensorRef, captured_ref: TensorRef) -> bool:
    headers = readable(fx_ref), readable(captured_ref)
    return headers[0] is not None and headers[1] is not None and _class(headers[0]) == _class(headers[1])


def _class(header: TensorHeader) -> tuple[tuple[int, ...], bool]:
    """The shape, and whether elements are floats: FX writes every float as float32."""
    return header.shape, header.dtype.kind in ("float", "complex")
