"""An ATB tree as the roles see it: dataflow, what each operator does, and what only passes a tensor on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...dumps.base import Slot
from ...topology.tree import Node, Tree
from ..match import Export
from ..tables import Tables

# Values of an ATB tree: one `Value` per write, and every node that shows it.
#
# Operators name their tensors, but a name is written more than once (the residual stream and the
# rotary embedding work in place), so a tensor is a name *after a given operator*. A composite shows the
# tensors that its last writers left behind: `Attention` has the output of its last linear, and whatever
# is known of one is known of the other.


@dataclass(slots=True, eq=False)
class Value:
    """A tensor as written by one operator.

    `producer` is the leaf operator that wrote it (`None` for weights and model inputs), `index` its
    output number there. `places` lists (node, output index) in completion order, the producer
    first, then the composites that give it to the outside. `read_by` lists (leaf, input index).
    """

    name: str
    producer: Node | None
    index: int
    places: list[tuple[Node, int]] = field(default_factory=list)
    read_by: list[tuple[Node, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Dataflow:
    """The values of a tree: what every leaf reads and writes, in execution order."""

    leaves: list[Node]
    inputs: dict[Node, list[Value]]
    outputs: dict[Node, list[Value]]


def trace(tree: Tree) -> Dataflow:
    """Follow the tensor names of a tree from operator to operator."""
    flow = Dataflow([], {}, {})
    current: dict[str, Value] = {}
    for child in tree.root.children:
        _run(child, current, flow)
    return flow


def _run(node: Node, current: dict[str, Value], flow: Dataflow) -> None:
    if node.is_leaf:
        flow.leaves.append(node)
        read = [current.setdefault(name, Value(name, None, 0)) for name in node.inputs]
        for position, value in enumerate(read):
            value.read_by.append((node, position))
        flow.inputs[node] = read
        results = [Value(name, node, index) for index, name in enumerate(node.outputs)]
        current.update((value.name, value) for value in results)
        flow.outputs[node] = results
    else:
        for child in node.children:
            _run(child, current, flow)
        results = [current.setdefault(name, Value(name, None, 0)) for name in node.outputs]
        flow.outputs[node] = results
    for index, value in enumerate(results):
        value.places.append((node, index))


PASSED_ON = ("add", "elewise", "passing", "reduce", "quant")
"""Kinds after which a tensor may still be what it was: a bias added, moved, summed over ranks."""

NEEDS_OTHERS = ("paged", "head_part", "unbiased", "partial_unbiased")
"""Forms that cannot be compared without tensors beside them."""

Role = tuple[str, str]
"""Role and form of a value."""

Roles = dict[Value, Role]
"""Roles of values. The form `internal` is for finding others only and never compared."""


@dataclass(frozen=True, slots=True, eq=False)
class AtbGraph:
    """The operators of one tree as the roles need them: dataflow, kinds, and which adds add a bias."""

    flow: Dataflow
    kinds: dict[Node, str]
    is_bias_add: Callable[[Node], bool]
    slots_input: Callable[[str], int | None]
    """The input, by type of cache operator, that holds the places that it writes."""

    def companions(self, value: Value, form: str) -> tuple[int | None, tuple[Export, ...]]:
        """The number of a piece, and the tensors that it takes to read it, for forms that need more."""
        if form == "paged":
            return None, self._places(value)
        if form == "head_part":
            return self._pieces(value)
        return None, self._bias(value) if form in NEEDS_OTHERS else ()

    def rotated(self, value: Value) -> Value | None:
        """The value that a rotation made `value` of: its input at that place, if the topology has it."""
        inputs = self.flow.inputs[value.producer] if value.producer is not None else []
        return inputs[value.index] if value.index < len(inputs) else None

    def first_output(self, leaf: Node) -> Value | None:
        """The first output of an operator; `None` for one that only writes in place."""
        return next(iter(self.flow.outputs[leaf]), None)

    def _places(self, value: Value) -> tuple[Export, ...]:
        """The tensor with the places that the writer of a paged cache wrote to."""
        leaf = value.producer
        index = None if leaf is None else self.slots_input(leaf.op_type)
        if leaf is None or index is None or index >= len(self.flow.inputs[leaf]):
            return ()
        return (Export(leaf, Slot("input", (index,)), "slots"),)

    def _pieces(self, value: Value) -> tuple[int, tuple[Export, ...]]:
        """The piece of every head that a tensor holds, rotated or not, and all pieces of the heads."""
        leaf = value.producer
        if leaf is not None and self.kinds[leaf] == "rope":
            value = self.rotated(value) or value
            leaf = value.producer
        pieces = [] if leaf is None else self.flow.outputs[leaf]
        return value.index, tuple(
            Export(piece.producer, Slot("output", (piece.index,)), "piece")
            for piece in pieces
            if piece.producer
        )

    def _bias(self, value: Value) -> tuple[Export, ...]:
        """The bias that is added to a product, perhaps after its sum over ranks."""
        for reader, _ in value.read_by:
            if self.is_bias_add(reader):
                return (Export(reader, Slot("input", (1,)), "bias"),)
            if self.kinds[reader] in ("reduce", "passing") and self.flow.outputs[reader]:
                return self._bias(self.flow.outputs[reader][0])
        return ()


def graph_of(tree: Tree, tables: Tables, is_bias: Callable[[Node, Value], bool]) -> AtbGraph:
    """Trace a tree. `is_bias(leaf, operand)` says whether the second operand of an add is a bias."""
    flow = trace(tree)
    kinds = {leaf: tables.kind_of(leaf.op_type, leaf.param) for leaf in flow.leaves}

    def is_bias_add(leaf: Node) -> bool:
        operands = flow.inputs[leaf]
        return len(operands) == 2 and operands[1].producer is None and is_bias(leaf, operands[1])

    return AtbGraph(flow, kinds, is_bias_add, tables.slots_input)


def passed_on(leaf: Node, kind: str, source: Role, graph: AtbGraph, roles: Roles) -> Role | None:
    """The role of a tensor after an operator that adds a bias, reduces over ranks or only moves it."""
    role, _ = source
    if kind in ("passing", "quant"):
        return role, "passing" if kind == "passing" else "internal"
    first = graph.flow.inputs[leaf][0]
    if kind == "reduce":
        roles[first] = (role, "partial")
        return role, "plain"
    if graph.is_bias_add(leaf):
        _lacks_bias(first, graph, roles)
        return role, "plain"
    return None


def _lacks_bias(value: Value, graph: AtbGraph, roles: Roles) -> None:
    """Say of a tensor, and of what it was summed or moved from, that the bias comes later."""
    role, form = roles[value]
    if form != "internal":
        roles[value] = (role, "partial_unbiased" if form == "partial" else "unbiased")
    leaf = value.producer
    if leaf is not None and graph.kinds[leaf] in ("reduce", "passing"):
        source = graph.flow.inputs[leaf][0]
        if roles.get(source, ("", ""))[0] == role:
            _lacks_bias(source, graph, roles)


def reader_kinds(value: Value | None, graph: AtbGraph) -> set[str]:
    """Kinds of the operators that read a value."""
    if value is None:
        return set()
    return {graph.kinds[leaf] for leaf, _ in value.read_by if leaf in graph.kinds}
