"""A graph compiled by another backend (inductor, ...), its intermediate tensors handed out and dumped.

A compiler keeps no intermediate tensors, so the graph is given outputs for them: every tensor that a dumped
node takes or gives. Names and files are those of the graph before that compiler rewrote it; what it fuses
between two of them is its own affair, and what it computes is what is dumped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx.node import Node, map_arg

from ...errors import CaptureError
from .files import is_dumped, written_arguments
from .interpreted import Opened


class CompiledGraph:
    """A graph whose runs are compiled by `inner`, at the first run and whenever sizes demand it."""

    def __init__(self, module: GraphModule, inner: Callable[..., Any]) -> None:
        self._module = module
        self._inner = inner
        self._compiled: Callable[..., Any] | None = None
        self._graphs = 0
        nodes = list(module.graph.nodes)
        self._nodes = [node for node in nodes if is_dumped(node)]
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        self._constants = {node: getattr(module, str(node.target)) for node in nodes if node.op == "get_attr"}
        self._changed = {argument for node in nodes for argument in written_arguments(node)}
        self._needed = _needed(self._nodes)

    def run(self, args: Sequence[Any], opened: Opened, *, dumps: bool) -> Any:
        """Run the graph and, if it `dumps`, write the files of its nodes: inputs as they came in."""
        values: dict[Node, Any] = dict(self._constants)
        if dumps:
            for node, value in zip(self._placeholders, args):
                values[node] = value.clone() if node in self._changed else value
        if self._compiled is None:
            # Not earlier: what is made while the graph around is compiled, torch takes for its own and skips.
            self._compiled = torch.compile(self._instrumented(), backend=self._counted, fullgraph=True)
        result, captured = self._compiled(*args)
        if not self._graphs:
            raise CaptureError(f"FX dump: torch did not hand the graph to {self._inner!r}, it ran uncompiled")
        if dumps:
            values.update(zip(self._needed, captured))
            for node in self._nodes:
                files = opened(node)
                if files is not None:
                    arguments, keywords = map_arg((node.args, node.kwargs), values.__getitem__)
                    files.write_inputs(arguments, keywords)
                    files.write_outputs(values[node])
        return result

    def _counted(self, module: GraphModule, example_inputs: Sequence[Any]) -> Any:
        self._graphs += 1
        return self._inner(module, example_inputs)

    def _instrumented(self) -> GraphModule:
        """A copy of the graph that also gives the wanted values."""
        graph = Graph()
        copies: dict[Node, Node] = {}
        handed_out: dict[Node, Any] = {}
        result: Any = None
        for node in self._module.graph.nodes:
            if node.op == "output":
                result = map_arg(node.args[0], copies.__getitem__)
                continue
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node in self._needed:
                # A view of what is written to later would show what it is then.
                handed_out[node] = _cloned(graph, node, copies[node]) if self._changed else copies[node]
        graph.output((result, tuple(handed_out[node] for node in self._needed)))
        for node in graph.nodes:
            node.meta = {}  # the sizes of this trace, which are not those of every run
        return GraphModule(self._module, graph)


def _needed(nodes: Sequence[Node]) -> dict[Node, None]:
    """Calls whose values dumped nodes take or give, in their order."""
    calls: dict[Node, None] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source.op == "call_function":
                calls.setdefault(source)
        calls.setdefault(node)
    return calls


def _cloned(graph: Graph, traced: Node, node: Node) -> Any:
    """Copies of the tensors that a node gives."""
    value = traced.meta.get("val")
    if isinstance(value, torch.Tensor):
        return graph.call_function(torch.ops.aten.clone.default, (node,))
    if isinstance(value, (list, tuple)) and all(isinstance(item, torch.Tensor) for item in value):
        items = [graph.call_function(operator.getitem, (node, index)) for index in range(len(value))]
        return tuple(graph.call_function(torch.ops.aten.clone.default, (item,)) for item in items)
    return node
