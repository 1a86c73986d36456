"""A dump at a step: the slots of its nodes, and the tensors in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..dumps.base import Dump, Rank, Slot, Step
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node
from .layers import Layer, find_layers
from .match import Export
from .roles import torch as torch_roles
from .tables import Tables

if TYPE_CHECKING:
    from .roles.atb_graph import AtbGraph, Value


class DumpStep:
    """A dump at a step: slots and references of its nodes, cached."""

    def __init__(self, dump: Dump, step: Step) -> None:
        self.dump = dump
        self.step = step
        self.tree = step.tree
        self._omitted: frozenset[str] = frozenset()
        self._slots: dict[tuple[int, Node], Mapping[Slot, TensorRef]] = {}
        self._holds: dict[int, bool] = {}

    def slots(self, node: Node, rank: Rank | None = None) -> Mapping[Slot, TensorRef]:
        """The dumped tensors of a node on a rank (by default the first that dumped any)."""
        if rank is None:
            return next(filter(None, (self.slots(node, candidate) for candidate in self.dump.ranks)), {})
        key = (rank.index, node)
        if key not in self._slots:
            included = node.path not in self._omitted
            self._slots[key] = self.dump.tensors(self.step, rank, node) if included else {}
        return self._slots[key]

    def choices(self) -> frozenset[str]:
        """The paths of calls of functions that were dumped unasked, for what they chose."""
        return self.dump.choices(self.dump.ranks[0])

    def omit(self, paths: frozenset[str]) -> None:
        """Leave nodes out, as if nothing had been dumped of them."""
        self._omitted = paths
        self._slots.clear()

    def inventory(self) -> tuple[tuple[Slot, ...], ...]:
        """The dumped slots, node by node: steps with equal inventories are matched alike."""
        return tuple(tuple(self.slots(node)) for node in self.tree.walk())

    def holds(self, rank: Rank) -> bool:
        """Whether anything at all was dumped on a rank."""
        if rank.index not in self._holds:
            dumped = (self.dump.tensors(self.step, rank, node) for node in self.tree.walk())
            self._holds[rank.index] = any(dumped)
        return self._holds[rank.index]

    def missing(self, export: Export, ranks: Sequence[Rank]) -> list[str]:
        """The names of the ranks among `ranks` that did not dump an export."""
        return [rank.name for rank in ranks if export.slot not in self.slots(export.node, rank)]

    def partial(self, export: Export, ranks: Sequence[Rank]) -> bool:
        """Whether the dump says that the tensors of several ranks are summands of an export."""
        return len(ranks) > 1 and self.dump.is_partial(self.step, ranks[0], export.node, export.slot)

    def refs(self, export: Export, ranks: Sequence[Rank]) -> tuple[TensorRef, ...]:
        """The references of an export on each of the `ranks`; empty when one of them is missing."""
        refs = [self.slots(export.node, rank).get(export.slot) for rank in ranks]
        return tuple(ref for ref in refs if ref is not None) if all(refs) else ()


OnRanks = tuple[DumpStep, Sequence[Rank]]
"""A side, and ranks of it."""


def width_of(export: Export, side: OnRanks) -> int:
    """The last dimension of an export on the first of the ranks; 0 where it is not known."""
    refs = side[0].refs(export, side[1][:1])
    header = readable(refs[0]) if refs else None
    return header.shape[-1] if header is not None and header.shape else 0


# `LayeredTree`: one side's tree with its layers, its dataflow and its exports, as the policies need them.


@dataclass(slots=True, eq=False)
class LayeredTree:
    """One side's tree with its layers and its dataflow."""

    side: DumpStep
    tables: Tables
    layers: list[Layer] = field(init=False)
    graph: AtbGraph | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.layers = find_layers(self.side.tree, self.tables)
        if self.side.dump.kind == "atb":
            from .roles.atb_graph import graph_of

            self.graph = graph_of(self.side.tree, self.tables, self._is_bias)

    def slots(self, node: Node) -> Iterable[Slot]:
        return self.side.slots(node)

    def has(self, node: Node, slot: Slot) -> bool:
        return slot in self.side.slots(node)

    def shape(self, node: Node, slot: Slot) -> tuple[int, ...] | None:
        """The shape of a tensor by its header; `None` where it was not dumped or is not known."""
        header = readable(self.side.slots(node).get(slot))
        return header.shape if header is not None and header.counted else None

    def layer_exports(self, layer: Layer) -> list[Export]:
        """Exports of one layer whose tensors were dumped."""
        if self.graph is not None:
            from .roles import atb

            exports = atb.layer_exports(layer.node, self.graph)
        else:
            exports = torch_roles.layer_exports(layer, self.tables, self.slots, self.shape)
        return [export for export in exports if self.has(export.node, export.slot)]

    def model_exports(self) -> list[Export]:
        """Exports outside the layers whose tensors were dumped."""
        if self.graph is not None:
            from .roles import atb

            nodes = [layer.node for layer in self.layers]
            exports = atb.model_exports(self.side.tree, nodes, self.graph)
        else:
            exports = torch_roles.model_exports(
                self.side.tree, self.layers, self.tables, self.slots, self.shape
            )
        return [export for export in exports if self.has(export.node, export.slot)]

    def embedding(self) -> Export | None:
        """The first module outside of layers that is handed whole numbers and gives a row for each of them,
        whatever it is called."""
        first = Slot("output", (0,))
        for node in self.outside():
            ids, rows = readable(self.side.slots(node).get(Slot("input", (0,)))), self.shape(node, first)
            if ids is None or rows is None or not node.is_leaf or rows[:-1] != ids.shape:
                continue
            if ids.dtype.name.startswith(("int", "uint")):
                return Export(node, first, "embed")
        return None

    def outside(self) -> list[Node]:
        """Nodes in no layer, in execution order."""
        inside = {node for layer in self.layers for node in layer.node.walk()}
        nodes = [node for node in self.side.tree.walk() if node not in inside]
        return sorted(nodes, key=lambda node: node.order)

    def bias_of(self, node: Node) -> Node:
        """The add that completes a linear without bias; the node itself for all other nodes."""
        if self.graph is None or self.graph.kinds.get(node) != "linear":
            return node
        readers = [reader for value in self.graph.flow.outputs[node] for reader, _ in value.read_by]
        added = [
            r for r in readers if self.graph.kinds[r] in ("add", "elewise") and self.graph.is_bias_add(r)
        ]
        return added[0] if added else node

    def _is_bias(self, leaf: Node, operand: Value) -> bool:
        """An operand as wide as the output and without rows of its own; by its name if not dumped."""
        named = "weight" in operand.name.lower() or "bias" in operand.name.lower()
        slots = self.side.slots(leaf)
        second, result = readable(slots.get(Slot("input", (1,)))), readable(slots.get(Slot("output", (0,))))
        if second is None or result is None:
            return named
        shape, result_shape = second.shape, result.shape
        if not shape or not result_shape:
            return False
        wide = math.prod(shape) == result_shape[-1]
        return wide and (len(shape) == 1 or named or math.prod(result_shape) > result_shape[-1])
