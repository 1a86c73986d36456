"""Operators of a GE graph as `nearest` wants them, from the edges of its text."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence

from ...base.reason import Reason
from ...dumps.atb import COMMUNICATION
from ...topology.ge_graph import Edge, GeNode
from ..torchair.graph import NO_KERNEL, GraphIndex, given_to, move_of
from ..torchair.operators import DumpedOperator, output_edges
from .parents import Flow, FlowOperator, SlotName, nearest

_KEEPS = re.compile("Attention|Scatter|IndexPut|Cache")
PlacesOf = Mapping[Hashable, Sequence[tuple[int, SlotName]]]
"""At which places an output of the graph is compared."""
_LOOKS_UP = re.compile("Gather|Embedding")


def ge_flow(graph: GraphIndex, operators: Sequence[DumpedOperator], places: Iterable[SlotName]) -> Flow:
    """Follow the edges of `graph` between places of the operators that were dumped.

    The result omits places of an operator that is not in the graph. An input of the graph is compared where
    it is read first, and all its other readers come from there.
    """
    compared = _ComparedEdges(
        graph, frozenset(places), frozenset(name for op in operators for name in op.parts.names)
    )
    for operator in operators:
        if operator.parts.nodes:
            compared.outputs(operator)
            compared.inputs(operator)
    for ordered in compared.places_of.values():
        ordered.sort()
    nodes = (_operation(node, graph, node.name in compared.compared) for node in graph.graph.nodes)
    upstream = nearest(nodes, compared.places_of, compared.arriving)
    # Positions are looked up as well; the tokens are looked up first.
    token_places = [place for _, place in sorted(compared.lookups) if not upstream[place].places][:1]
    return Flow(
        upstream,
        frozenset(token_places),
        results=_compared_places(
            (node for node in graph.graph.nodes if node.op_type == "NetOutput"), graph, compared.places_of
        ),
        stored=_compared_places(filter(graph.stores, graph.graph.nodes), graph, compared.places_of),
    )


class _ComparedEdges:
    """The outputs of the graph at which dumped operators are compared, and the inputs at which they
    arrive."""

    def __init__(self, graph: GraphIndex, places: frozenset[SlotName], dumped: frozenset[str]) -> None:
        self.places_of: dict[Hashable, list[tuple[int, SlotName]]] = {}
        self.arriving: dict[tuple[str, int], SlotName] = {}
        self.lookups: list[tuple[int, SlotName]] = []
        self.compared: set[str] = set()
        self._graph = graph
        self._places = places
        self._dumped = dumped

    def outputs(self, operator: DumpedOperator) -> None:
        kinds = " ".join(node.op_type for node in operator.parts.nodes)
        for end, (edge, _, _) in zip(operator.outputs, output_edges(operator, operator.outputs, self._graph)):
            place = (operator.node.path, str(end.slot))
            if edge is None or place not in self._places:
                continue
            order = self._graph.position[edge.producer]
            self.places_of.setdefault(edge, []).append((order, place))
            self.compared |= operator.parts.names
            if _LOOKS_UP.search(kinds):
                self.lookups.append((order, place))

    def inputs(self, operator: DumpedOperator) -> None:
        edges = self._graph.arriving(operator.parts.nodes)
        if len(edges) != len(operator.inputs):
            return
        for end, (name, number, edge) in zip(operator.inputs, edges):
            place = (operator.node.path, str(end.slot))
            if place not in self._places:
                continue
            graph_input = given_to(self._graph, edge, self._dumped)
            origin = Edge(graph_input.name, 0) if graph_input is not None else None
            if graph_input is None or origin is None or origin in self.places_of:
                self.arriving[name, number] = place
            else:
                self.places_of[origin] = [(self._graph.position[graph_input.name], place)]


def _compared_places(nodes: Iterable[GeNode], graph: GraphIndex, places_of: PlacesOf) -> frozenset[SlotName]:
    """The places of the outputs of some operators, or of their inputs where no output is compared."""
    result_places: set[SlotName] = set()
    for node in nodes:
        outputs = [[Edge(node.name, index)] for index in range(node.output_count)]
        for edge_lists in (outputs, [_edge_and_source(graph, edge) for edge in node.data_inputs]):
            places = [next(filter(None, map(places_of.get, edges)), ()) for edges in edge_lists]
            result_places.update(place for ordered in places for _, place in ordered)
            if any(places):
                break
    return frozenset(result_places)


def _edge_and_source(graph: GraphIndex, edge: Edge) -> list[Edge]:
    """An output of the graph, and its source where its operator only moves values."""
    node = graph.node(edge.producer)
    is_move = node is not None and move_of(node, graph.graph) is not None
    return [edge, node.data_inputs[0]] if node is not None and is_move else [edge]


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
    """The name of an input of the graph that is not compared: the input of its first reader."""
    edge = Edge(node.name, 0)
    for reader in graph.graph.consumers.get(edge, ()):
        if reader.op_type not in NO_KERNEL:
            names = [desc.name for read, desc in zip(reader.inputs, reader.input_descs) if read == edge]
            return Reason("{}'s input {} ({})", reader.name, names[0] if names else 0, node.name)
    return node.name
