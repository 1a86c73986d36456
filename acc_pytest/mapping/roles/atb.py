"""Say what every tensor of an ATB layer is, from the operators that write and read it.

The attention operator is the anchor. What reaches its three inputs is q, k and v (through rope, split
and the cache); what comes out goes through the output linear, the residual add, the norm and the MLP.
No operator name is asked for more than its kind, so layers composed in other ways get the same roles.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...dumps.base import Slot
from ...topology.tree import Node, Tree
from .after_attention import AfterAttention
from .atb_graph import NEEDS_OTHERS, AtbGraph, Role, Roles, passed_on
from .before_attention import before_attention
from .dataflow import Value
from .export import Export


def layer_exports(layer: Node, graph: AtbGraph) -> list[Export]:
    """Every export of a layer whose role is known, in completion order; none without an attention."""
    leaves = [node for node in layer.walk() if node in graph.kinds]
    anchor = next((leaf for leaf in leaves if graph.kinds[leaf] == "attention"), None)
    if anchor is None:
        return []
    roles = before_attention(leaves, graph)
    AfterAttention(graph, roles).walk(leaves[leaves.index(anchor) :])
    rope = next((leaf for leaf in leaves if graph.kinds[leaf] == "rope"), None)
    exports = _exports(roles, set(layer.walk()), graph)
    return exports + (_table_inputs(rope) if rope is not None else [])


def model_exports(tree: Tree, layers: list[Node], graph: AtbGraph) -> list[Export]:
    """Roles of what runs before the first layer and after the last one, in completion order."""
    inside = {node for layer in layers for node in layer.walk()}
    roles: Roles = {}
    first = layers[0].order if layers else -1
    for leaf in graph.flow.leaves:
        if leaf in inside:
            continue
        for value, role in zip(
            graph.flow.outputs[leaf], _model_roles(leaf, graph, roles, leaf.order < first)
        ):
            roles[value] = role
    return _exports(roles, set(tree.walk()) - inside, graph)


def _model_roles(leaf: Node, graph: AtbGraph, roles: Roles, before: bool) -> list[Role]:
    kind, inputs = graph.kinds[leaf], graph.flow.inputs[leaf]
    source = roles.get(inputs[0]) if inputs else None
    if kind == "embedding" and before:
        return [("embed", "plain") if _looks_up_weights(leaf, inputs) else (_next_table(roles), "table")]
    if kind == "norm":
        return [("embed_norm" if before else "final_norm", "plain")]
    if kind == "linear" and not before:
        return [("lm_head", "plain")]
    if kind in ("passing", "reduce", "embedding") and source:
        kind = "passing" if kind == "embedding" else kind
        passed = passed_on(leaf, kind, source, graph, roles)
        return [passed] if passed else []
    return []


def _next_table(roles: Roles) -> str:
    """The position table that is looked up next: `cos`, then `sin`."""
    return "sin" if ("cos", "table") in roles.values() else "cos"


def _looks_up_weights(leaf: Node, inputs: list[Value]) -> bool:
    """An embedding reads rows of a weight; a position table is an input of the model."""
    named = any("Embedding" in node.op_type and "Position" not in node.op_type for node in _upwards(leaf))
    return named or (bool(inputs) and "weight" in inputs[0].name.lower())


def _upwards(node: Node | None) -> Iterable[Node]:
    while node is not None:
        yield node
        node = node.parent


def _exports(roles: Roles, inside: set[Node], graph: AtbGraph) -> list[Export]:
    exports = []
    for value, (role, form) in roles.items():
        component, companions = graph.companions(value, form)
        if form == "internal" or (form in NEEDS_OTHERS and not companions):
            continue
        for node, index in value.places:
            if node in inside:
                exports.append(Export(node, Slot("output", (index,)), role, form, component, companions))
    return exports


def _table_inputs(rope: Node) -> list[Export]:
    return [Export(rope, Slot("input", (2 + i,)), role, "table") for i, role in enumerate(("cos", "sin"))]
