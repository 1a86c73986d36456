"""Roles from an attention operator's output to the end of the layer: walk forward.

The MLP is read off its shape: which linears read the norm, and what is done with them. One gate makes
it a dense MLP, several a mixture of experts, whose tensors are `expert.0.gate`, `expert.0.up`, ...;
an expert whose result no router weight multiplies is shared (`shared.gate`).
"""

from __future__ import annotations

from ...topology.tree import Node
from .atb_graph import PASSED_ON, AtbGraph, Roles, passed_on, reader_kinds
from .dataflow import Value

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
        return self._combined(leaf, kind, sources)

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
            if leaf not in self._experts and expert:
                self._experts[leaf] = expert

    def _gate_product(self, gate: Node) -> Node | None:
        """The multiplication that an activated gate goes into."""
        for value in self._graph.flow.outputs[gate]:
            for activation, _ in value.read_by:
                for activated in self._graph.flow.outputs[activation]:
                    for reader, _ in activated.read_by:
                        if self._graph.kinds.get(reader) == "mul":
                            return reader
        return None

    def _combined(self, leaf: Node, kind: str, sources: list[str]) -> tuple[str, ...]:
        """Residual adds, and whatever weighs and sums the experts' results."""
        bias = self._graph.is_bias_add(leaf)
        mixed = [position for position, role in enumerate(sources) if _is_of_experts(role)]
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


def _is_of_experts(role: str) -> bool:
    """Whether it is the result of one expert, or of several."""
    return role == _MIXED or _is_expert_result(role)


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
