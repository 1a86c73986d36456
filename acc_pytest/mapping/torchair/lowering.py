"""Arguments of FX calls that inputs of GE's operators are, by the table of TorchAir's converters.

A call may be several operators (a product, a scaled product, a sum). What one of them hands to another is
inside of the call and is no argument; what a Transpose, a Reshape or a Cast before them hands on is one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from ...base.texts import packaged_toml
from ...topology.ge_graph import Edge, FxName, GeDesc, GeNode
from .graph import GraphIndex, given_to, move_of, reached
from .outcome import Matched

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


# Inputs of a GE graph - weights, prompts, caches - and the one pair that stands for each.
#
# A text says `arg5_1` and no more. The arguments of the calls that read it tell what it is. A pair that
# stands for it comes before all others: where it fails, what the run was fed differs, and every other
# reading inherits from it.


_STRONGEST = ("cache", "token ids", "mask", "input", "positions", "buffer", "weight")
"""Kinds of one tensor by several calls: the first of these counts."""
FED_FIRST = -1
"""The first place, of matches that stand for inputs of the run."""


class FedKinds:
    """The kinds of the inputs of one graph."""

    def __init__(self, graph: GraphIndex) -> None:
        self.graph = graph
        self._kinds: dict[str, str] = {}

    @cached_property
    def arguments(self) -> Arguments:
        """The arguments of calls that outputs of the graph are."""
        return arguments(self.graph)

    def of(self, node: GeNode) -> str:
        """`weight`, `input`, ... for an input of the graph."""
        if node.name not in self._kinds:
            kinds = {
                word
                for argument in self._readings(Edge(node.name, 0))
                if (word := self._word(node, argument))
            }
            self._kinds[node.name] = strongest(kinds) or "input"
        return self._kinds[node.name]

    def _readings(self, edge: Edge) -> Iterator[Argument]:
        for reach in reached(self.graph, edge):
            for argument in self.arguments.get(reach.edge, ()):
                if target_of(argument.call.target) == "aten.expand":
                    yield from self._readings(Edge(argument.reader, 0))
                yield argument

    def _word(self, node: GeNode, argument: Argument) -> str:
        target = argument.call.target
        desc = node.output_descs[0] if node.output_descs else GeDesc()
        if target_of(target) == "aten.add" and any(
            type_of(reader) == "Softmax"
            for reach in reached(self.graph, Edge(argument.reader, 0))
            for reader in self.graph.graph.consumers.get(reach.edge, ())
        ):
            return "mask"
        dimensions = None if desc.shape is None else len(desc.shape)
        word = fed_word(target, argument.number[0], dimensions, "INT" in desc.dtype)
        return "input" if word == "token ids" and argument.call.node != self._vocabulary else word

    @cached_property
    def _vocabulary(self) -> str:
        """The FX node that looks up the largest table: tokens, where others look up positions or types."""
        rows: dict[str, int] = {}
        for edge, several in self.arguments.items():
            node = given_to(self.graph, edge)
            shape = node.output_descs[0].shape if node is not None and node.output_descs else None
            for argument in several:
                if shape and argument.number == (0,) and _looks_up(argument.call):
                    rows[argument.call.node] = shape[0]
        return max(rows, key=rows.__getitem__, default="")


def marked(matched: Sequence[Matched], kinds: FedKinds) -> list[Matched]:
    """The matches in their order, first those that stand for inputs of the graph: for each the first read."""
    ordered: list[Matched] = []
    names: set[str] = set()
    for match in sorted(matched, key=lambda match: match.place):
        node = kinds.graph.node(match.source) if match.source not in names and not match.self_check else None
        if node is not None:
            names.add(node.name)
            match = replace(match, place=(FED_FIRST, kinds.graph.position[node.name]), fed=kinds.of(node))
        ordered.append(match)
    return sorted(ordered, key=lambda match: match.place)


def strongest(kinds: Collection[str]) -> str:
    """The kind that counts where calls give several; empty without any."""
    return next((word for word in _STRONGEST if word in kinds), "")


def _looks_up(call: FxName) -> bool:
    return target_of(call.target) == "aten.embedding"
