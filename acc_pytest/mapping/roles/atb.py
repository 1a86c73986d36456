"""Say what every tensor of an ATB layer is, from the operators that write and read it.

The attention operator is the anchor. What reaches its three inputs is q, k and v (through rope, split
and the cache); what comes out goes through the output linear, the residual add, the norm and the MLP.
No operator name is asked for more than its kind, so layers composed in other ways get the same roles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...dumps.base import Slot
from ...topology.tree import Node, Tree
from ..match import Export
from .atb_graph import (
    NEEDS_OTHERS,
    PASSED_ON,
    AtbGraph,
    Dataflow,
    Role,
    Roles,
    Value,
    passed_on,
    reader_kinds,
)


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


# Roles of what reaches an attention operator: walk back from its q, k and v.


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


# Roles from an attention operator's output to the end of the layer: walk forward.
#
# The MLP is read off its shape: which linears read the norm, and what is done with them. One gate makes
# it a dense MLP, several a mixture of experts, whose tensors are `expert.0.gate`, `expert.0.up`, ...;
# an expert whose result no router weight multiplies is shared (`shared.gate`).


_ACTIVATION_SWIGLU = 6  # ActivationOperation's activationType of the fused gate
_NORM_AFTER = {"attn_residual": "post_norm", "o": "attn_post_norm", "down": "mlp_post_norm"}
_ROUTING = {
    ("softmax", "router"): ("routing",),
    ("sort", "router"): ("chosen", "router_index"),
    ("sort", "routing"): ("chosen", "router_index"),
    ("div", "chosen"): ("router_weight",),
}
"""Roles of the results of operators that work on the logits of a router, or on their results."""
_MIXED = "mixed"


class AfterAttention:
    """The walk through one layer; `roles` is filled in as it goes."""

    def __init__(self, graph: AtbGraph, roles: Roles) -> None:
        self._graph = graph
        self._roles = roles
        self._experts: dict[Node, str] = {}

    def walk(self, leaves: list[Node]) -> None:
        """`leaves` are the layer's operators in order, the attention first."""
        outputs, inputs = self._graph.flow.outputs, self._graph.flow.inputs
        core = self._graph.first_output(leaves[0])
        if core is not None:
            self._roles[core] = ("attn_core", "plain")
        for leaf in leaves[1:]:
            results = outputs[leaf]
            if not results or not inputs[leaf] or any(value in self._roles for value in results):
                continue
            sources = [self._role(value) for value in inputs[leaf]]
            for value, role in zip(results, self._output_roles(leaf, sources)):
                self._roles[value] = (role, "internal" if role == _MIXED else "plain")
            if results[0] not in self._roles and sources[0] and self._graph.kinds[leaf] in PASSED_ON:
                passed = passed_on(leaf, self._graph.kinds[leaf], (sources[0], ""), self._graph, self._roles)
                if passed:
                    self._roles[results[0]] = passed
        self._name_shared()

    def _role(self, value: Value) -> str:
        return self._roles.get(value, ("", ""))[0]

    def _output_roles(self, leaf: Node, sources: list[str]) -> tuple[str, ...]:
        """The roles of a leaf's outputs given those of its inputs; empty when they say nothing."""
        kind, source = self._graph.kinds[leaf], sources[0]
        prefix, base = _split(source)
        if kind == "linear":
            return self._linear(leaf, source, prefix, base)
        if kind == "norm":
            return (_NORM_AFTER[source],) if source in _NORM_AFTER else ()
        if kind == "split" and base == "mlp_in":
            return tuple(prefix + half for half in _split_halves(leaf, self._graph))
        if kind == "activation" and base in ("gate", "mlp_in"):
            fused = leaf.param.get("activationType") == _ACTIVATION_SWIGLU
            return (prefix + ("gated" if fused else "act"),)
        if (kind, base) in _ROUTING:
            return _ROUTING[kind, base]
        activated = [expert for expert, role in map(_split, sources) if role == "act"]
        if kind == "mul" and activated:
            return (activated[0] + "gated",)
        bias = self._graph.is_bias_add(leaf)
        mixed = [
            position for position, role in enumerate(sources) if (role == _MIXED or _is_expert_result(role))
        ]
        residual_add = kind in ("add", "elewise") and len(sources) == 2 and not bias
        if residual_add and {"o", "attn_post_norm"} & set(sources):
            return ("attn_residual",)
        if residual_add and (
            {"down", "mlp_post_norm"} & set(sources) or (mixed and "attn_residual" in sources)
        ):
            for position in mixed:
                self._roles[self._graph.flow.inputs[leaf][position]] = ("down", "plain")
            return ("mlp_residual",)
        return (_MIXED,) if mixed and not bias and kind not in ("passing", "reduce") else ()

    def _linear(self, leaf: Node, source: str, prefix: str, base: str) -> tuple[str, ...]:
        if source == "attn_core":
            return ("o",)
        if base in ("act", "gated"):
            return (f"{prefix}down",)
        if source in ("post_norm", "input_norm"):
            if leaf not in self._experts:
                self._find_experts(self._graph.flow.inputs[leaf][0])
            role = _mlp_linear(leaf, self._graph)
            return (self._experts.get(leaf, "") + role,) if role else ()
        return ()

    def _find_experts(self, norm: Value) -> None:
        """Give every linear that reads the norm the name of its expert; nothing for a dense MLP."""
        linears = [leaf for leaf, _ in norm.read_by if self._graph.kinds.get(leaf) == "linear"]
        gates = [leaf for leaf in linears if _mlp_linear(leaf, self._graph) in ("gate", "mlp_in")]
        if len(gates) < 2:
            return
        multiplied = {self._gate_product(gate): f"expert.{number}." for number, gate in enumerate(gates)}
        for number, gate in enumerate(gates):
            self._experts[gate] = f"expert.{number}."
        for leaf in linears:
            readers = {reader for value in self._graph.flow.outputs[leaf] for reader, _ in value.read_by}
            expert = next((multiplied[reader] for reader in readers if reader in multiplied), "")
            self._experts.setdefault(leaf, expert)

    def _gate_product(self, gate: Node) -> Node | None:
        """The multiplication that an activated gate goes into."""
        for value in self._graph.flow.outputs[gate]:
            for activation, _ in value.read_by:
                for activated in self._graph.flow.outputs[activation]:
                    for reader, _ in activated.read_by:
                        if self._graph.kinds.get(reader) == "mul":
                            return reader
        return None

    def _name_shared(self) -> None:
        """Rename experts whose result goes into the sum unweighed, and close the gap in the numbers."""
        results = {
            _split(role)[0]: value for value, (role, _) in self._roles.items() if _is_expert_result(role)
        }
        weighed = {expert: "mul" in reader_kinds(value, self._graph) for expert, value in results.items()}
        if not any(weighed.values()) or all(weighed.values()):
            return
        routed = iter(range(len(weighed)))
        names = {
            old: f"expert.{next(routed)}." if by_router else "shared." for old, by_router in weighed.items()
        }
        for value, (role, form) in list(self._roles.items()):
            prefix, base = _split(role)
            if prefix in names:
                self._roles[value] = (names[prefix] + base, form)


def _split(role: str) -> tuple[str, str]:
    """`expert.0.gate` as (`expert.0.`, `gate`)."""
    prefix, dot, base = role.rpartition(".")
    return prefix + dot, base


def _is_expert_result(role: str) -> bool:
    return role.startswith("expert.") and role.endswith(".down")


def _mlp_linear(leaf: Node, graph: AtbGraph) -> str:
    """`gate`, `up`, `router` or `mlp_in` (one linear for all), by the readers of the output."""
    value = graph.first_output(leaf)
    read_by = value.read_by if value is not None else []
    passing = next((reader for reader, _ in read_by if graph.kinds.get(reader) in PASSED_ON), None)
    if passing is not None:
        value = graph.first_output(passing)
    readers = reader_kinds(value, graph)
    if value is None:
        return ""
    if "split" in readers:
        return "mlp_in"
    if "mul" in readers:
        return "up"
    if "activation" in readers:
        activation = next(reader for reader, _ in value.read_by if graph.kinds.get(reader) == "activation")
        multiplied = "mul" in reader_kinds(graph.first_output(activation), graph)
        return "gate" if multiplied else "mlp_in"
    return "router" if readers and "linear" not in readers else ""


def _split_halves(leaf: Node, graph: AtbGraph) -> tuple[str, ...]:
    """The roles of the halves of a packed gate-up: the one that is activated is the gate."""
    halves = graph.flow.outputs[leaf]
    if len(halves) != 2:
        return ()
    activated = ["activation" in reader_kinds(value, graph) for value in halves]
    return ("up", "gate") if activated == [False, True] else ("gate", "up")
