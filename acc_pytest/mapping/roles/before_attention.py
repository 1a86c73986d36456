"""Roles of what reaches an attention operator: walk back from its q, k and v."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...topology.tree import Node
from .atb_graph import PASSED_ON, AtbGraph, Role, Roles, passed_on
from .dataflow import Dataflow, Value

_SINKS = {"attention": ("q", "k", "v"), "cache": ("k", "v")}
"""Inputs of operators by letter. A paged attention reads the cache, so the cache counts too."""
_PROJECTED = ("q", "k", "q_a", "kv_a")
"""Roles of results of linears that a norm may follow, in front of the attention."""
_NOTHING = ("", "")


def before_attention(leaves: list[Node], graph: AtbGraph) -> Roles:
    """Roles of what reaches the attention's inputs, found by walking back from them."""
    walk = BeforeAttention(graph, _reach(leaves, graph))
    for leaf in leaves:
        walk.name_outputs(leaf)
    return walk.roles


def _reach(leaves: list[Node], graph: AtbGraph) -> dict[Value, set[str]]:
    """The letters of q, k and v that each value reaches."""
    kinds, flow = graph.kinds, graph.flow
    inside = set(leaves)
    reach: dict[Value, set[str]] = {}

    def back(value: Value, sink: str) -> None:
        if value.producer not in inside or sink in reach.setdefault(value, set()):
            return
        reach[value].add(sink)
        leaf = value.producer
        position = value.index if kinds[leaf] == "rope" else 0
        sources = flow.inputs[leaf]
        if kinds[leaf] not in _SINKS:
            for source in sources if kinds[leaf] == "concat" else sources[position : position + 1]:
                back(source, sink)

    for leaf in leaves:
        for value, sink in zip(flow.inputs[leaf], _SINKS.get(kinds[leaf], ())):
            back(value, sink)
    return reach


class BeforeAttention:
    """The walk through one layer, forward; `reach` says where values go, `roles` is filled in as it goes."""

    def __init__(self, graph: AtbGraph, reach: Mapping[Value, set[str]]) -> None:
        self._graph = graph
        self._reach = reach
        self.roles: Roles = {}

    def name_outputs(self, leaf: Node) -> None:
        """Give what an operator writes its roles, as far as they are known."""
        inputs, outputs = self._graph.flow.inputs[leaf], self._graph.flow.outputs[leaf]
        for value in outputs:
            role = self._role(leaf, value) if self._reach.get(value) else None
            if role:
                self.roles[value] = role
        if self._graph.kinds[leaf] == "cache":
            # A cache holds, of this step, what was written into it: first the key, then the value.
            for value, source in zip(outputs, inputs):
                if source in self.roles:
                    self.roles[value] = (self.roles[source][0], "paged")

    def _role(self, leaf: Node, value: Value) -> Role | None:
        kind, inputs = self._graph.kinds[leaf], self._graph.flow.inputs[leaf]
        sinks = "".join(sink for sink in "qkv" if sink in self._reach[value])
        source = self.roles.get(inputs[0]) if inputs else None
        if kind == "norm":
            return _normed(sinks, source)
        if kind == "linear":
            return (f"{sinks}_a" if self._is_projected_again(value) else sinks, "plain")
        if kind == "rope":
            return self._rotated(sinks, value)
        if kind == "concat":
            is_turned = any(self._of(operand)[0] == f"{sinks}_rope" for operand in inputs)
            return (f"{sinks}_rope", "plain") if is_turned else None
        if kind == "split":
            return _cut(sinks, source)
        if kind in PASSED_ON and source:
            return passed_on(leaf, kind, source, self._graph, self.roles)
        return None

    def _of(self, value: Value | None) -> Role:
        return self.roles.get(value, _NOTHING) if value is not None else _NOTHING

    def _rotated(self, sinks: str, value: Value) -> Role:
        """A rotated piece of every head is still a piece."""
        _, form = self._of(self._graph.rotated(value))
        return f"{sinks}_rope", "head_part" if form == "head_part" else "plain"

    def _is_projected_again(self, value: Value) -> bool:
        """Whether another linear follows on the way to the same inputs: this one gives the low rank."""
        flow, kinds = self._graph.flow, self._graph.kinds
        return any(
            kinds[leaf] == "linear" and self._reach.get(result, set()) & self._reach[value]
            for leaf in _downstream(value, flow)
            for result in flow.outputs[leaf]
        )


def _normed(sinks: str, source: Role | None) -> Role:
    """A norm of what was projected, or of what the layer is handed."""
    projected = source is not None and source[0] in _PROJECTED
    return f"{sinks}_norm" if projected else "input_norm", "plain"


def _cut(sinks: str, source: Role | None) -> Role | None:
    """A piece of every head of one of q, k and v, or one that was packed with others."""
    packed = source[0] if source is not None else "qkv"
    if sinks == packed and len(sinks) == 1:
        return sinks, "head_part"
    return (sinks, "plain") if len(sinks) == 1 or len(sinks) < len(packed) else None


def _downstream(value: Value, flow: Dataflow) -> Iterable[Node]:
    """Leaves that compute with a value, directly or through others."""
    visited: set[Node] = set()
    queue = [leaf for leaf, _ in value.read_by]
    while queue:
        leaf = queue.pop()
        if leaf not in visited:
            visited.add(leaf)
            yield leaf
            queue.extend(reader for result in flow.outputs[leaf] for reader, _ in result.read_by)
