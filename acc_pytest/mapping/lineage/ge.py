"""Operators of a GE graph as `nearest` wants them, from the edges of its text."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence

from ...dumps.atb import COMMUNICATION
from ...topology.ge_graph import Edge, GeNode
from ..torchair.graph import NO_KERNEL, GraphIndex
from ..torchair.moves import move_of
from ..torchair.operators import DumpedOperator
from ..torchair.outputs import output_edges
from ..torchair.reach import given_to
from .nearest import FlowOperator, SlotName, nearest
from .steps import Flow

_KEEPS = re.compile("Attention|Scatter|IndexPut|Cache")
Shown = Mapping[Hashable, Sequence[tuple[int, SlotName]]]
"""At which places an output of the graph is compared."""
_LOOKS_UP = re.compile("Gather|Embedding")


def ge_flow(graph: GraphIndex, operators: Sequence[DumpedOperator], places: Iterable[SlotName]) -> Flow:
    """Follow the edges of `graph` between places of the operators that were dumped.

    Places of an operator that is in no part of the graph are in nothing of the result. An input of the graph
    is compared where it is read first, and whatever else reads it comes from there.
    """
    compared = _ComparedEdges(
        graph, frozenset(places), frozenset(name for op in operators for name in op.parts.names)
    )
    for operator in operators:
        if operator.parts.nodes:
            compared.outputs(operator)
            compared.inputs(operator)
    for listed in compared.shown.values():
        listed.sort()
    nodes = (_operation(node, graph, node.name in compared.compared) for node in graph.graph.nodes)
    above = nearest(nodes, compared.shown, compared.arriving)
    # Positions are looked up as well; what is looked up first is the tokens.
    fed = [place for _, place in sorted(compared.looked_up) if not above[place].places][:1]
    return Flow(
        above,
        frozenset(fed),
        results=_shown_by(
            (node for node in graph.graph.nodes if node.op_type == "NetOutput"), graph, compared.shown
        ),
        stored=_shown_by(filter(graph.stores, graph.graph.nodes), graph, compared.shown),
    )


class _ComparedEdges:
    """Where in the graph dumped operators are compared: at which outputs, and arriving at which inputs."""

    def __init__(self, graph: GraphIndex, wanted: frozenset[SlotName], ran: frozenset[str]) -> None:
        self.shown: dict[Hashable, list[tuple[int, SlotName]]] = {}
        self.arriving: dict[tuple[str, int], SlotName] = {}
        self.looked_up: list[tuple[int, SlotName]] = []
        self.compared: set[str] = set()
        self._graph = graph
        self._wanted = wanted
        self._ran = ran

    def outputs(self, operator: DumpedOperator) -> None:
        kinds = " ".join(part.op_type for part in operator.parts.nodes)
        for end, (edge, _, _) in zip(operator.outputs, output_edges(operator, operator.outputs, self._graph)):
            place = (operator.node.path, str(end.slot))
            if edge is None or place not in self._wanted:
                continue
            order = self._graph.position[edge.producer]
            self.shown.setdefault(edge, []).append((order, place))
            self.compared |= operator.parts.names
            if _LOOKS_UP.search(kinds):
                self.looked_up.append((order, place))

    def inputs(self, operator: DumpedOperator) -> None:
        edges = self._graph.arriving(operator.parts.nodes)
        if len(edges) != len(operator.inputs):
            return
        for end, (part, number, edge) in zip(operator.inputs, edges):
            place = (operator.node.path, str(end.slot))
            if place not in self._wanted:
                continue
            given = given_to(self._graph, edge, self._ran)
            origin = Edge(given.name, 0) if given is not None else None
            if given is None or origin is None or origin in self.shown:
                self.arriving[part, number] = place
            else:
                self.shown[origin] = [(self._graph.position[given.name], place)]


def _shown_by(nodes: Iterable[GeNode], graph: GraphIndex, shown: Shown) -> frozenset[SlotName]:
    """The places of what some operators make, or of what they read where nothing of that is compared."""
    shown_at: set[SlotName] = set()
    for node in nodes:
        made = [[Edge(node.name, index)] for index in range(node.output_count)]
        for ways in (made, [_moved(graph, edge) for edge in node.data_inputs]):
            places = [next((shown[way] for way in edges if way in shown), ()) for edges in ways]
            shown_at.update(place for listed in places for _, place in listed)
            if any(places):
                break
    return frozenset(shown_at)


def _moved(graph: GraphIndex, edge: Edge) -> list[Edge]:
    """An output of the graph, and the one that an operator which only moves values made it from."""
    node = graph.node(edge.producer)
    moved = node is not None and move_of(node, graph.graph) is not None
    return [edge, node.data_inputs[0]] if node is not None and moved else [edge]


def _operation(node: GeNode, graph: GraphIndex, compared: bool) -> FlowOperator:
    edges = node.data_inputs
    return FlowOperator(
        node.name,
        graph.position[node.name],
        edges,
        [Edge(node.name, index) for index in range(node.output_count)],
        lambda _: range(len(edges)),
        crosses=bool(COMMUNICATION.search(node.op_type)),
        keeps=bool(_KEEPS.search(node.op_type)),
        silent=compared or node.op_type in NO_KERNEL,
        unseen=_unread(node, graph) if graph.is_given(node) else "",
    )


def _unread(node: GeNode, graph: GraphIndex) -> str:
    """Words for an input of the graph that nothing stands for: the input of the first that reads it."""
    edge = Edge(node.name, 0)
    for reader in graph.graph.consumers.get(edge, ()):
        if reader.op_type not in NO_KERNEL:
            names = [desc.name for read, desc in zip(reader.inputs, reader.input_descs) if read == edge]
            return f"{reader.name}'s input {names[0] if names else 0} ({node.name})"
    return node.name
