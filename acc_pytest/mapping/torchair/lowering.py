"""Arguments of FX calls that inputs of GE's operators are, by the table of TorchAir's converters.

A call may be several operators (a product, a scaled product, a sum). What one of them hands to another is
inside of the call and is no argument; what a Transpose, a Reshape or a Cast before them hands on is one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ...toml_text import packaged_toml
from ...topology.ge_graph import Edge, FxName, GeNode
from .graph import GraphIndex
from .moves import move_of

_HANDING_ON = frozenset(
    {
        "view",
        "unsafe_view",
        "reshape",
        "expand",
        "clone",
        "alias",
        "detach",
        "to_copy",
        "copy",
        "t",
        "transpose",
    }
    | {"permute", "squeeze", "unsqueeze", "flatten", "contiguous", "lift_fresh_copy"}
)
_ARITHMETIC = frozenset({"aten.add", "aten.sub", "aten.mul", "aten.div"})
_VERSION = re.compile(r"V\d+$")


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument `number` of an FX call, which the operator `reader` of GE reads as its input."""

    call: FxName
    number: tuple[int, ...]
    reader: str


Arguments = Mapping[Edge, tuple[Argument, ...]]
"""Arguments of FX calls by the outputs of a graph that they are, in the order of their readers."""


@dataclass(frozen=True, slots=True)
class _Row:
    """Inputs of one type of operator as arguments of a call; `None` for an input that is none."""

    op_type: str
    several: bool
    numbers: tuple[int | None, ...]
    listed: bool

    def number(self, place: int) -> tuple[int, ...] | None:
        if self.listed:
            return (0, place)
        number = self.numbers[place] if place < len(self.numbers) else None
        return None if number is None else (number,)


def arguments(graph: GraphIndex) -> Arguments:
    """The arguments that the calls of a graph read, as far as the table has their conversion."""
    by_edge: dict[Edge, list[Argument]] = defaultdict(list)
    for call in graph.fx_calls.values():
        rows = _tables()[0].get(target_of(call.target), ())
        built = graph.built(call.node) if rows else ()
        for row in rows:
            readers = [
                node for node in built if type_of(node) == row.op_type and _leads_to(node, call.node, graph)
            ]
            if len(readers) == 1 or row.several:
                for reader in readers:
                    for edge, number in _read(reader, row):
                        if graph.node(edge.producer) and not _is_inside(edge, call.node, graph):
                            by_edge[edge].append(Argument(call, number, reader.name))
    return {
        edge: tuple(sorted(several, key=lambda argument: graph.position[argument.reader]))
        for edge, several in by_edge.items()
    }


def fed_word(target: str, number: int, dimensions: int | None, is_integer: bool) -> str:
    """The kind of an input of the graph that a call reads as argument `number`; empty where nothing says.

    `dimensions` is how many it has, `None` where that is not known, `is_integer` that it holds integers.
    """
    name = target_of(target)
    if name in _ARITHMETIC:
        return "positions" if is_integer else "weight" if dimensions == 1 else "input"
    kinds = _tables()[1].get(name, ())
    return kinds[number] if number < len(kinds) else ""


def target_of(target: str) -> str:
    """An aten operator without its overload: `aten.add` of `aten.add.Tensor`."""
    return target.rpartition(".")[0] or target


def hands_on(target: str) -> bool:
    """Whether a call computes nothing, so that TorchAir may put its name on what another call computed."""
    return target_of(target).rpartition(".")[2].lstrip("_") in _HANDING_ON


def type_of(node: GeNode) -> str:
    """The type of an operator without its version."""
    return _VERSION.sub("", node.op_type)


def _read(reader: GeNode, row: _Row) -> Iterator[tuple[Edge, tuple[int, ...]]]:
    for place, edge in enumerate(reader.inputs):
        number = row.number(place)
        if edge is not None and not edge.is_control and number is not None:
            yield edge, number


def _leads_to(node: GeNode, fx_node: str, graph: GraphIndex) -> bool:
    """Whether an operator computes the result of an FX node, or something nameless on the way to it."""
    waiting, visited = [node], {node.name}
    while waiting:
        waiting_node = waiting.pop()
        names = {name.node for name in waiting_node.fx_names if name is not None}
        if fx_node in names:
            return True
        if names:
            continue
        for index in range(waiting_node.output_count):
            for reader in graph.graph.consumers.get(Edge(waiting_node.name, index), ()):
                if reader.name not in visited and graph.owner(reader) == fx_node:
                    visited.add(reader.name)
                    waiting.append(reader)
    return False


def _is_inside(edge: Edge, fx_node: str, graph: GraphIndex) -> bool:
    """Whether a tensor was computed for the FX node itself, so that it is none of its arguments."""
    node = graph.node(edge.producer)
    while node is not None and graph.owner(node) == fx_node and not any(node.fx_names):
        if move_of(node, graph.graph) is None:
            return graph.computes(node)
        node = graph.node(node.data_inputs[0].producer)
    return node is not None and any(name is not None and name.node == fx_node for name in node.fx_names)


@cache
def _tables() -> tuple[Mapping[str, tuple[_Row, ...]], Mapping[str, Sequence[str]]]:
    """The conversions of the calls of each target, and the kinds of their arguments."""
    raw = packaged_toml(__package__, "lowering.toml")
    return {target: tuple(map(_row, rows)) for target, rows in raw["arguments"].items()}, raw["fed"]


def _row(text: str) -> _Row:
    op_type, *numbers = text.split()
    listed = numbers == ["0.*"]
    places = () if listed else tuple(None if number == "-" else int(number) for number in numbers)
    return _Row(op_type.removesuffix("*"), op_type.endswith("*"), places, listed)
