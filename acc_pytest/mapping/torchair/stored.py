"""Which FX call transposes the matrix that a Transpose of the GE graph transposes: a weight as it is stored.

The text has no name for it and FX dumps no edges. A call that reads the transposed matrix got it from one of
the earlier calls that transpose a matrix of its shape. A call is found only where all the
others are known to transpose another input of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...dumps.base import Slot
from ...topology.ge_graph import Edge, GeNode
from ...topology.tree import Node
from .fx_side import FxSide
from .graph import GraphIndex
from .lowering import Arguments, target_of
from .moves import move_of
from .outcome import SlotTensor

_TURNING = frozenset({"aten.t", "aten.transpose", "aten.permute", "aten.numpy_T"})
_GIVEN, _MADE = Slot("input", (0,)), Slot("output", (0,))


@dataclass(frozen=True, slots=True)
class Stored:
    """A call that transposes a matrix, and the Transpose of the graph that does the same."""

    call: Node
    operator: GeNode


def stored(graph: GraphIndex, fx: FxSide, known: Arguments) -> Mapping[Edge, Stored]:
    """The FX call that transposes an output of the graph, by that output, before and after."""
    place = {node.path: number for number, node in enumerate(fx.nodes)}
    turning = [node for node in fx.nodes if target_of(node.op_type) in _TURNING]
    taken: dict[Node, Edge] = {}
    turned_by: dict[Edge, Stored] = {}
    for number, shape, operator in sorted(_turned(graph, fx, known, place), key=lambda read: read[0]):
        source = operator.data_inputs[0]
        fitting = [node for node in turning if place[node.path] < number and _turns_to(shape, fx, node)]
        own = [node for node in fitting if taken.get(node) == source]
        free = [node for node in fitting if node not in taken]
        if own or len(free) == 1:
            call = own[0] if own else free[0]
            taken[call] = source
            turned_by.setdefault(source, Stored(call, operator))
            turned_by[Edge(operator.name, 0)] = Stored(call, operator)
    return turned_by


def _turned(
    graph: GraphIndex, fx: FxSide, known: Arguments, place: Mapping[str, int]
) -> Iterator[tuple[int, tuple[int, ...], GeNode]]:
    """Every Transpose of a matrix that a known call reads: the place of the call, and the shape it reads."""
    for operator in graph.graph.nodes:
        move = move_of(operator, graph.graph)
        for argument in known.get(Edge(operator.name, 0), ())[:1] if move and move.order == (1, 0) else ():
            call, _ = fx.call(argument.call)
            shape = _shape(fx, call, Slot("input", argument.number)) if call is not None else None
            if call is not None and shape is not None:
                yield place[call.path], shape, operator


def _turns_to(shape: tuple[int, ...], fx: FxSide, node: Node) -> bool:
    return _shape(fx, node, _MADE) == shape and _shape(fx, node, _GIVEN) == shape[::-1]


def _shape(fx: FxSide, node: Node, slot: Slot) -> tuple[int, ...] | None:
    ref = fx.slots[node].get(slot)
    header = SlotTensor(node, slot, ref).header if ref is not None else None
    return header.shape if header is not None else None
