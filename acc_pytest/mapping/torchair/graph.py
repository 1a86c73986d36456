"""The tensors of the text of a GE graph: the FX tensor that each is, and the operator that made it.

TorchAir writes the name of an FX tensor on the last of the operators that it builds for an FX node. A Cast or
Reshape at the end of these may be deleted by GE, so its name also stands for what it is computed from.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...dumps.base import Rank, Step
from ...dumps.torchair import AnyDump
from ...dumps.torchair_files import sanitized
from ...topology.ge_graph import Edge, FxName, GeConstant, GeGraph, GeNode

_GIVEN = frozenset({"Data", "RefData", "Variable"})
_CONSTANT = frozenset({"Const", "Constant", "ConstPlaceHolder"})
NO_KERNEL = _GIVEN | _CONSTANT | {"NetOutput", "NoOp"}
"""Types of operators that compute nothing."""
_MOVERS = ("Transpose", "Permute")
_CONTRACTION = ("MatMul", "Matmul", "Conv", "Attention", "Gemm", "LSTM", "GRU", "FullyConnection")
_PER_LAYER = 6
"""Contractions in a row along one layer of a transformer: query, scores, context, output, up, down."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of an output of the graph: an FX tensor (`fx`), with the operators that say so (`through`).

    Without an FX tensor `kind` says what it is instead: `given` (an input of the graph), `constant`, or
    `inner` (a value on the way to the result of an FX node, which FX computes in one go).
    """

    kind: str
    fx: FxName | None = None
    through: str = ""


class GraphIndex:
    """A graph, looked up by what dumps know of it."""

    def __init__(self, graph: GeGraph) -> None:
        self.graph = graph
        self.position = {node.name: number for number, node in enumerate(graph.nodes)}
        self.by_file_name: Mapping[str, tuple[GeNode, ...]] = _by_file_name(graph.nodes)
        self.file_names = {name for name, group in self.by_file_name.items() if len(group) == 1}
        self._direct = {
            Edge(node.name, index): name
            for node in graph.nodes
            for index, name in enumerate(node.fx_names)
            if name is not None
        }

    def node(self, name: str) -> GeNode | None:
        """The operator of this very name."""
        return self.graph.by_name.get(name)

    def meaning(self, edge: Edge) -> Meaning:
        """The meaning of the output `edge` of the graph."""
        visited: set[Edge] = set()
        through: list[str] = []
        while edge not in visited:
            visited.add(edge)
            name = self._direct.get(edge)
            if name is None and edge in self._handed_on:
                name, last = self._handed_on[edge]
                through.append(last)
            if name is not None:
                return Meaning("fx", name, ", ".join(through))
            node = self.node(edge.producer)
            if node is None:
                return Meaning("unknown")
            if node.op_type in _GIVEN:
                return Meaning("given")
            if node.op_type in _CONSTANT:
                return Meaning("constant")
            before = _passed_on(node)
            if before is None:
                break
            through.append(f"{node.op_type} {node.name}")
            edge = before
        return Meaning("inner")

    def source(self, edge: Edge, stop: Collection[str] = ()) -> Edge:
        """The edge that the values of an edge come from, past casts and reshapes that GE may have taken out.

        It is not looked for beyond the operators named in `stop`.
        """
        visited = set()
        while edge not in visited and edge.producer not in stop:
            visited.add(edge)
            node = self.node(edge.producer)
            before = _passed_on(node) if node is not None else None
            edge = before or edge
        return edge

    def owner(self, node: GeNode) -> str:
        """The FX node that an operator was built for: that of the next operator that has a name of FX."""
        return self._owners.get(node.name, "")

    def is_given(self, node: GeNode) -> bool:
        """Whether an operator stands for something that the run was given, weights kept as constants too."""
        return node.op_type in _GIVEN or node.op_type == "ConstPlaceHolder"

    def computes(self, node: GeNode) -> bool:
        """Whether an operator is more than an input, a constant or an end of the graph."""
        return node.op_type not in NO_KERNEL

    def is_unwritten(self, edge: Edge, reader: str) -> bool:
        """Whether `reader` finds at an output what was there first: no operator before it wrote over that."""
        first_write = self._first_writes.get(edge.producer)
        return first_write is None or self.position[reader] <= first_write

    def stores(self, node: GeNode) -> bool:
        """Whether an operator writes into an input of the graph, where the next run finds it."""
        return any(edge.producer in self._first_writes for edge in _overwritten(node))

    def named(self, edge: Edge) -> FxName | None:
        """The FX tensor whose name the text gives to an output itself."""
        return self._direct.get(edge)

    def built(self, fx_node: str) -> tuple[GeNode, ...]:
        """The operators built for an FX node, those that only hand on among them, constants left out."""
        return self._built.get(fx_node, ())

    def kernels(self, fx_node: str) -> tuple[GeNode, ...]:
        """The operators built for an FX node that compute something: no constants, none that hands on."""
        return tuple(node for node in self.built(fx_node) if node.op_type not in SAME_VALUES)

    def arriving(self, nodes: Sequence[GeNode]) -> list[tuple[str, int, Edge]]:
        """Inputs of operators that were fused into one: those that none of them makes, in their order.

        Each with the part that reads it and the place of the input there. What a part makes and a deleted
        Cast hands on to another part never leaves the fused operator.
        """
        names = {node.name for node in nodes}
        return [
            (node.name, place, edge)
            for node in nodes
            for place, edge in enumerate(node.data_inputs)
            if self.source(edge, names).producer not in names
        ]

    def results(self, nodes: Iterable[GeNode]) -> list[Edge]:
        """Outputs of fused operators that anything outside of them reads, in their order."""
        inside = {node.name for node in nodes}
        return [
            edge
            for node in nodes
            for edge in (Edge(node.name, index) for index in range(node.output_count))
            if any(reader.name not in inside for reader in self.graph.consumers.get(edge, ()))
        ]

    def between(self, first: str, last: str) -> tuple[GeNode, ...]:
        """The operators on the ways from `first` to `last`, both included, in the order of the graph."""
        if first not in self.position or last not in self.position:
            return ()
        reached = {first}
        for node in self.graph.nodes[self.position[first] + 1 : self.position[last] + 1]:
            if any(edge.producer in reached for edge in node.data_inputs):
                reached.add(node.name)
        if last not in reached:
            return ()
        included = {last}
        for node in reversed(self.graph.nodes[self.position[first] : self.position[last] + 1]):
            if node.name in included:
                included.update(edge.producer for edge in node.data_inputs if edge.producer in reached)
        return tuple(node for node in self.graph.nodes if node.name in included)

    def may_be_folded(self, edge: Edge, shape: Sequence[int]) -> bool:
        """Whether the output `edge` is a transposition that its reader may do itself, unseen in the shape.

        GE folds a Transpose into the product that reads it, which then reads what was not transposed.
        """
        node = self.node(edge.producer)
        sizes = [size for size in shape if size > 1]
        return node is not None and node.op_type.startswith(_MOVERS) and len(set(sizes)) < len(sizes)

    def depth(self, name: str) -> int:
        """The number of layers of a transformer before an operator, judged by the products in a row."""
        return self._products.get(name, 0) // _PER_LAYER

    @cached_property
    def fx_calls(self) -> Mapping[str, FxName]:
        """A name of each FX node that operators were built for."""
        return {name.node: name for node in self.graph.nodes for name in node.fx_names if name is not None}

    @cached_property
    def _handed_on(self) -> Mapping[Edge, tuple[FxName, str]]:
        """Outputs without a name that an operator with one hands on: the name and that operator."""
        handed_on: dict[Edge, tuple[FxName, str]] = {}
        for node in reversed(self.graph.nodes):
            before = _passed_on(node)
            if before is None or before in self._direct:
                continue
            name = self._direct.get(Edge(node.name, 0)) or handed_on.get(Edge(node.name, 0), (None,))[0]
            producer = self.node(before.producer)
            if name is not None and producer is not None and producer.op_type not in NO_KERNEL:
                handed_on.setdefault(before, (name, f"{node.op_type} {node.name}"))
        return handed_on

    @cached_property
    def _owners(self) -> Mapping[str, str]:
        owners: dict[str, str] = {}
        owner = ""
        for node in reversed(self.graph.nodes):
            names = [name for name in node.fx_names if name is not None]
            owner = names[0].node if names else owner
            if node.op_type not in _GIVEN and node.op_type != "NetOutput":
                owners[node.name] = owner
        return owners

    @cached_property
    def _first_writes(self) -> Mapping[str, int]:
        """Inputs of the graph that an operator writes, with the place of the first that does."""
        first_writes: dict[str, int] = {}
        for node in self.graph.nodes:
            for edge in _overwritten(node):
                producer = self.node(edge.producer)
                if producer is not None and self.is_given(producer):
                    first_writes.setdefault(producer.name, self.position[node.name])
        return first_writes

    @cached_property
    def _built(self) -> Mapping[str, tuple[GeNode, ...]]:
        built: dict[str, list[GeNode]] = defaultdict(list)
        for node in self.graph.nodes:
            if self.computes(node):
                built[self._owners[node.name]].append(node)
        return {owner: tuple(nodes) for owner, nodes in built.items()}

    @cached_property
    def _products(self) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for node in self.graph.nodes:
            before = max((counts.get(edge.producer, 0) for edge in node.data_inputs), default=0)
            counts[node.name] = before + any(word in node.op_type for word in _CONTRACTION)
        return counts


class GraphIndexes:
    """The indexes of the graphs of dumps, each made once."""

    def __init__(self) -> None:
        self._by_id: dict[int, GraphIndex] = {}

    def of(self, dump: AnyDump, step: Step, rank: Rank) -> GraphIndex | None:
        """The index of the graph that ran; `None` where its text is missing or broken."""
        graph = dump.graph(step, rank)
        if graph is None:
            return None
        if id(graph) not in self._by_id:
            self._by_id[id(graph)] = GraphIndex(graph)
        return self._by_id[id(graph)]


def _by_file_name(nodes: Iterable[GeNode]) -> Mapping[str, tuple[GeNode, ...]]:
    by_name: dict[str, list[GeNode]] = defaultdict(list)
    for node in nodes:
        by_name[sanitized(node.name)].append(node)
    return {name: tuple(group) for name, group in by_name.items()}


def _overwritten(node: GeNode) -> list[Edge]:
    """Inputs that an operator writes in place: those that have the name of an output."""
    names = {desc.name for desc in node.output_descs}
    read = zip(node.inputs, node.input_descs)
    return [edge for edge, desc in read if edge and not edge.is_control and desc.name in names]


def _passed_on(node: GeNode) -> Edge | None:
    """The input whose values an operator hands on, if it does nothing else."""
    if node.op_type not in SAME_VALUES or not node.data_inputs:
        return None
    return node.data_inputs[0]


# Operators of GE that compute nothing: their output holds the values of their first input, perhaps moved.


KEEPING = frozenset({"Cast", "Identity", "TensorMove"})
"""Operators whose output has the shape of their first input too, rounding of a Cast aside."""
SAME_VALUES = KEEPING | {
    *("Reshape", "Flatten", "FlattenV2", "ExpandDims"),
    *("Squeeze", "SqueezeV2", "SqueezeV3", "Unsqueeze", "UnsqueezeV2", "UnsqueezeV3"),
}
"""Operators whose output holds the values of their first input in their order."""
_CODES = {"DT_INT64": "q", "DT_INT32": "i"}


@dataclass(frozen=True, slots=True)
class Move:
    """The effect of an operator on its first input: `keeps` its shape, or not; `order` are the places of the
    dimensions where it turns them round, empty where it does not."""

    keeps: bool
    order: tuple[int, ...] = ()


def move_of(node: GeNode, graph: GeGraph) -> Move | None:
    """The move of values by an operator of the graph; `None` for one that computes, or permutes somehow."""
    if not node.data_inputs:
        return None
    if node.op_type in SAME_VALUES:
        return Move(node.op_type in KEEPING)
    if node.op_type != "Transpose" or len(node.data_inputs) != 2:
        return None
    order = _constant(graph.by_name.get(node.data_inputs[1].producer))
    return Move(False, order) if order and sorted(order) == list(range(len(order))) else None


def composed(first: Sequence[int], then: Sequence[int]) -> tuple[int, ...]:
    """One order for permuting by `first` and then by `then`; empty where that changes nothing."""
    if not first or not then:
        return tuple(first or then)
    order = tuple(first[place] for place in then)
    return () if order == tuple(range(len(order))) else order


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The order that undoes `order`."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _constant(node: GeNode | None) -> tuple[int, ...]:
    """The integers that a Const holds; empty where it is none or does not say them."""
    value = node.attrs.get("value") if node is not None else None
    code = _CODES.get(value.desc.dtype) if isinstance(value, GeConstant) else None
    if not isinstance(value, GeConstant) or code is None:
        return ()
    count = len(value.data) // struct.calcsize(code)
    return struct.unpack(f"<{count}{code}", value.data[: count * struct.calcsize(code)])


# Outputs of a GE graph that hold the same values: only operators that move values lie between them.


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
