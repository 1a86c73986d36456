"""All tensors of FX that hold the values of an output of a GE graph: results of calls, and their arguments.

Weights and prompts have no name in the text, and FX dumps no placeholders. A call that reads one dumps it, though, and
what lies between is moved at most: a Transpose of a weight, a Reshape of a prompt, a Cast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...dumps.base import Slot
from ...topology.ge_graph import Edge, GeNode
from .fx_side import FxSide, not_a_tensor
from .graph import GraphIndex
from .lowering import Argument, arguments
from .moves import Move, composed, inverse, move_of
from .outcome import End


@dataclass(frozen=True, slots=True)
class Reached:
    """An output of the graph with the values of another one, turned round by `order`; `keeps` says that nothing on
    the way regrouped them, `through` are the operators passed."""

    edge: Edge
    order: tuple[int, ...] = ()
    keeps: bool = True
    through: tuple[str, ...] = ()


class FxTensors:
    """The tensors of one group's calls, looked up by outputs of the graph."""

    def __init__(self, graph: GraphIndex, fx: FxSide) -> None:
        self._graph = graph
        self._fx = fx

    def of(self, edge: Edge, reader: str = "") -> Iterator[tuple[End, str]]:
        """FX tensors with the values that `reader` finds at an output, the nearest first, with how that is known.

        Nothing is known of what a later operator reads where one before it has written (a cache in place).
        """
        written = self._written.get(edge.producer)
        if written is not None and reader and self._graph.position[reader] > written:
            return
        for reached in self._reached(edge):
            until = self._written.get(reached.edge.producer)
            for end, said in self._at(reached, until):
                yield end, said

    def _at(self, reached: Reached, until: int | None) -> Iterator[tuple[End, str]]:
        words = f" through {', '.join(reached.through)}" if reached.through else ""
        name = self._graph.named(reached.edge)
        if name is not None and reached.through:
            end = self._fx.output(name)[0]
            if end is not None:
                yield self._turned(end, reached), f"known{words} as output {name.index} of {name.node}"
        for argument in self._arguments.get(reached.edge, ()):
            if until is not None and self._graph.position[argument.reader] > until:
                continue
            end = self._argument(argument)
            if end is not None:
                slot = ".".join(map(str, argument.number))
                yield (
                    self._turned(end, reached),
                    f"argument {slot} of {argument.call.node}, read{words} by {argument.reader}",
                )

    @staticmethod
    def _turned(end: End, reached: Reached) -> End:
        return End(end.node, end.slot, end.ref, inverse(reached.order)) if reached.order else end

    def _argument(self, argument: Argument) -> End | None:
        node, _ = self._fx.call(argument.call)
        slot = Slot("input", argument.number)
        ref = self._fx.slots[node].get(slot) if node is not None else None
        if node is None or ref is None or not_a_tensor(ref):
            return None
        end = End(node, slot, ref)
        return end if end.header is None or end.header.shape else None

    def _reached(self, edge: Edge) -> Iterator[Reached]:
        """Outputs with the same values, by the operators that only move, up and down the graph; the nearest first."""
        waiting, seen = deque([Reached(edge)]), {edge}
        while waiting:
            one = waiting.popleft()
            yield one
            for step in (*self._up(one), *self._down(one)):
                if step.edge not in seen:
                    seen.add(step.edge)
                    waiting.append(step)

    def _up(self, one: Reached) -> Iterator[Reached]:
        node = self._graph.node(one.edge.producer)
        move = move_of(node, self._graph.graph) if node is not None else None
        if node is not None and move is not None and one.edge.index == 0:
            yield from _stepped(one, node.data_inputs[0], Move(move.keeps, inverse(move.order)), node)

    def _down(self, one: Reached) -> Iterator[Reached]:
        for node in self._graph.graph.consumers.get(one.edge, ()):
            move = move_of(node, self._graph.graph)
            if move is not None and node.data_inputs[0] == one.edge:
                yield from _stepped(one, Edge(node.name, 0), move, node)

    @cached_property
    def _arguments(self) -> Mapping[Edge, tuple[Argument, ...]]:
        return arguments(self._graph)

    @cached_property
    def _written(self) -> Mapping[str, int]:
        """Inputs of the graph that an operator writes, with the place of the first that does.

        An operator that has an output of the name of an input writes that input.
        """
        found: dict[str, int] = {}
        for node in self._graph.graph.nodes:
            names = {desc.name for desc in node.output_descs}
            for edge, desc in zip(node.inputs, node.input_descs):
                if edge is not None and not edge.is_control and desc.name in names:
                    producer = self._graph.node(edge.producer)
                    if producer is not None and self._graph.is_given(producer):
                        found.setdefault(edge.producer, self._graph.position[node.name])
        return found


def _stepped(one: Reached, edge: Edge, move: Move, node: GeNode) -> Iterator[Reached]:
    """One operator further. What is regrouped cannot be turned, nor the other way round."""
    regroups = not move.keeps and not move.order
    if (regroups and one.order) or (move.order and not one.keeps):
        return
    order = composed(one.order, move.order)
    yield Reached(edge, order, one.keeps and not regroups, (*one.through, f"{node.op_type} {node.name}"))
