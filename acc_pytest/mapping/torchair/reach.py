"""Outputs of a GE graph that hold the values of another one: what lies between moves them at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ...topology.ge_graph import Edge, GeNode
from .graph import GraphIndex
from .moves import Move, composed, inverse, move_of


@dataclass(frozen=True, slots=True)
class Reached:
    """An output of the graph with the values of another one, turned round by `order`; `keeps` says that
    nothing on the way regrouped them, `through` are the operators passed."""

    edge: Edge
    order: tuple[int, ...] = ()
    keeps: bool = True
    through: tuple[str, ...] = ()


def reached(graph: GraphIndex, edge: Edge) -> Iterator[Reached]:
    """What has the values of `edge`, itself first, up and down the graph; the nearest first."""
    waiting, seen = deque([Reached(edge)]), {edge}
    while waiting:
        one = waiting.popleft()
        yield one
        for step in (*_up(graph, one), *_down(graph, one)):
            if step.edge not in seen:
                seen.add(step.edge)
                waiting.append(step)


def given_to(graph: GraphIndex, edge: Edge, ran: Collection[str] = ()) -> GeNode | None:
    """The input of the graph whose values an operator finds at `edge`: none but operators that did not run
    (their reader does their work) are in between."""
    node = graph.node(edge.producer)
    while node is not None and node.name not in ran and move_of(node, graph.graph) is not None:
        node = graph.node(node.data_inputs[0].producer)
    return node if node is not None and graph.is_given(node) else None


def _up(graph: GraphIndex, one: Reached) -> Iterator[Reached]:
    node = graph.node(one.edge.producer)
    move = move_of(node, graph.graph) if node is not None else None
    if node is not None and move is not None and graph.is_unwritten(node.data_inputs[0], node.name):
        yield from _stepped(one, node.data_inputs[0], Move(move.keeps, inverse(move.order)), node)


def _down(graph: GraphIndex, one: Reached) -> Iterator[Reached]:
    for node in graph.graph.consumers.get(one.edge, ()):
        move = move_of(node, graph.graph)
        if move is not None and node.data_inputs[0] == one.edge and graph.is_unwritten(one.edge, node.name):
            yield from _stepped(one, Edge(node.name, 0), move, node)


def _stepped(one: Reached, edge: Edge, move: Move, node: GeNode) -> Iterator[Reached]:
    """One operator further. What is regrouped cannot be turned, nor the other way round."""
    regroups = not move.keeps and not move.order
    if (regroups and one.order) or (move.order and not one.keeps):
        return
    order = composed(one.order, move.order)
    yield Reached(edge, order, one.keeps and not regroups, (*one.through, f"{node.op_type} {node.name}"))
