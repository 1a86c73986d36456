"""Outputs of a GE graph that hold the same values: only operators that move values lie between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ...topology.ge_graph import Edge, GeNode
from .graph import GraphIndex
from .moves import Move, composed, inverse, move_of


@dataclass(frozen=True, slots=True)
class Reached:
    """An output of the graph with the values of another one, permuted by `order`. `keeps` says that no
    operator on the way regrouped them, and `through` names the operators on the way."""

    edge: Edge
    order: tuple[int, ...] = ()
    keeps: bool = True
    through: tuple[str, ...] = ()


def reached(graph: GraphIndex, edge: Edge) -> Iterator[Reached]:
    """Edges with the values of `edge`, itself first, up and down the graph; the nearest first."""
    waiting, visited = deque([Reached(edge)]), {edge}
    while waiting:
        reach = waiting.popleft()
        yield reach
        for step in (*_up(graph, reach), *_down(graph, reach)):
            if step.edge not in visited:
                visited.add(step.edge)
                waiting.append(step)


def given_to(graph: GraphIndex, edge: Edge, ran: Collection[str] = ()) -> GeNode | None:
    """The input of the graph whose values an operator finds at `edge`. Only operators that did not run lie
    between: their reader does their work."""
    node = graph.node(edge.producer)
    while node is not None and node.name not in ran and move_of(node, graph.graph) is not None:
        node = graph.node(node.data_inputs[0].producer)
    return node if node is not None and graph.is_given(node) else None


def _up(graph: GraphIndex, reach: Reached) -> Iterator[Reached]:
    node = graph.node(reach.edge.producer)
    move = move_of(node, graph.graph) if node is not None else None
    if node is not None and move is not None and graph.is_unwritten(node.data_inputs[0], node.name):
        yield from _stepped(reach, node.data_inputs[0], Move(move.keeps, inverse(move.order)), node)


def _down(graph: GraphIndex, reach: Reached) -> Iterator[Reached]:
    for node in graph.graph.consumers.get(reach.edge, ()):
        move = move_of(node, graph.graph)
        if (
            move is not None
            and node.data_inputs[0] == reach.edge
            and graph.is_unwritten(reach.edge, node.name)
        ):
            yield from _stepped(reach, Edge(node.name, 0), move, node)


def _stepped(reach: Reached, edge: Edge, move: Move, node: GeNode) -> Iterator[Reached]:
    """One operator further. Values that were regrouped cannot be permuted, nor the other way round."""
    regroups = not move.keeps and not move.order
    if (regroups and reach.order) or (move.order and not reach.keeps):
        return
    order = composed(reach.order, move.order)
    yield Reached(edge, order, reach.keeps and not regroups, (*reach.through, f"{node.op_type} {node.name}"))
