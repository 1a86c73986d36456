"""`LayeredTree`: one side's tree with its layers, its dataflow and its exports, as the policies need them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..dumps.base import Slot
from ..tensors.ref import readable
from ..topology.tree import Node
from .dump_step import DumpStep
from .layers import Layer, find_layers
from .roles import atb as atb_roles
from .roles import torch as torch_roles
from .roles.atb_graph import AtbGraph, graph_of
from .roles.dataflow import Value
from .roles.export import Export
from .tables import Tables


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
            exports = atb_roles.layer_exports(layer.node, self.graph)
        else:
            exports = torch_roles.layer_exports(layer, self.tables, self.slots, self.shape)
        return [export for export in exports if self.has(export.node, export.slot)]

    def model_exports(self) -> list[Export]:
        """Exports outside the layers whose tensors were dumped."""
        if self.graph is not None:
            nodes = [layer.node for layer in self.layers]
            exports = atb_roles.model_exports(self.side.tree, nodes, self.graph)
        else:
            exports = torch_roles.model_exports(
                self.side.tree, self.layers, self.tables, self.slots, self.shape
            )
        return [export for export in exports if self.has(export.node, export.slot)]

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
