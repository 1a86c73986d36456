"""Roles of what reaches an attention operator: walk back from its q, k and v."""

from __future__ import annotations

from collections.abc import Iterable

from ...topology.tree import Node
from .atb_graph import PASSED_ON, AtbGraph, Roles, passed_on
from .dataflow import Dataflow, Value

_SINKS = {"attention": ("q", "k", "v"), "cache": ("k", "v")}
"""Which input of an operator is which. A paged attention reads the cache, so the cache counts too."""


def before_attention(leaves: list[Node], graph: AtbGraph) -> Roles:
    """Roles of what reaches the attention's inputs, found by walking back from them."""
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

    roles: Roles = {}
    for leaf in leaves:
        for value in flow.outputs[leaf]:
            if reach.get(value):
                role = _role_before(leaf, value, graph, reach, roles)
                if role:
                    roles[value] = role
        if kinds[leaf] == "cache":
            # A cache holds, of this step, what was written into it: first the key, then the value.
            for value, source in zip(flow.outputs[leaf], flow.inputs[leaf]):
                if source in roles:
                    roles[value] = (roles[source][0], "paged")
    return roles


def _role_before(
    leaf: Node, value: Value, graph: AtbGraph, reach: dict[Value, set[str]], roles: Roles
) -> tuple[str, str] | None:
    kinds, flow = graph.kinds, graph.flow
    kind, sinks = kinds[leaf], "".join(sink for sink in "qkv" if sink in reach[value])
    source = roles.get(flow.inputs[leaf][0]) if flow.inputs[leaf] else None
    if kind == "norm":
        projected = source is not None and source[0] in ("q", "k", "q_a", "kv_a")
        return (f"{sinks}_norm", "plain") if projected else ("input_norm", "plain")
    if kind == "linear":
        later = any(
            kinds[other] == "linear" and set(reach.get(written, ())) & reach[value]
            for other in _downstream(value, flow)
            for written in flow.outputs[other]
        )
        return (f"{sinks}_a" if later else sinks, "plain")
    if kind == "rope":
        rotated = graph.rotated(value)
        turned = roles.get(rotated, ("", "")) if rotated is not None else ("", "")
        return f"{sinks}_rope", "head_part" if turned[1] == "head_part" else "plain"
    if kind == "concat":
        turned_part = any(roles.get(operand, ("", ""))[0] == f"{sinks}_rope" for operand in flow.inputs[leaf])
        return (f"{sinks}_rope", "plain") if turned_part else None
    if kind == "split" and len(sinks) == 1 and source is not None and source[0] == sinks:
        return sinks, "head_part"
    if kind == "split":
        return (
            (sinks, "plain") if len(sinks) < len(source[0] if source else "qkv") or len(sinks) == 1 else None
        )
    if kind in PASSED_ON and source:
        return passed_on(leaf, kind, source, graph, roles)
    return None


def _downstream(value: Value, flow: Dataflow) -> Iterable[Node]:
    """Leaves that compute with a value, directly or through others."""
    seen: set[Node] = set()
    queue = [leaf for leaf, _ in value.read_by]
    while queue:
        leaf = queue.pop()
        if leaf not in seen:
            seen.add(leaf)
            yield leaf
            queue.extend(reader for written in flow.outputs[leaf] for reader, _ in written.read_by)
