"""A dumped operator of GE as the graph's operators it computes, ready to be computed again from any inputs.

What the record holds is bound to the inputs of the graph: in their order, constants that were not dumped from
the text. Where the device may have read something else than the text says (a transposition that was taken in,
an operator that left no record), results may confirm the operator but not refute it: it is not `certain`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..errors import NoPayload, OperatorError
from ..ge_operators import Unrounded, compute, constant_tensor
from ..ge_operators.registry import unread
from ..mapping.torchair.graph import NO_KERNEL, GraphIndex
from ..mapping.torchair.operators import DumpedOperator
from ..mapping.torchair.outputs import output_edges
from ..topology.ge_graph import Edge, GeConstant, GeNode
from .ge_records import RecordedRun

Open = Callable[[int], torch.Tensor]
"""Gives the tensor that shall be a dumped input, by its number."""
_CONSTANTS = ("Const", "Constant")


@dataclass(frozen=True, eq=False)
class Chain:
    """The operators of the graph in one record. `arriving` says which dumped input each edge from outside is,
    `None` for a constant that is only in the text."""

    ran: RecordedRun
    operator: DumpedOperator
    graph: GraphIndex
    arriving: Mapping[tuple[str, int], int | None]
    certain: bool

    @property
    def read(self) -> frozenset[int]:
        """Dumped inputs that the operators read."""
        write_only = {(node.name, place) for node in self._nodes for place in _unread(node)}
        return frozenset(
            number
            for (name, place), number in self.arriving.items()
            if number is not None and (name, place) not in write_only
        )

    @property
    def constants(self) -> frozenset[int]:
        """Dumped inputs that are constants of the graph."""
        nodes = {node.name: node for node in self._nodes}
        return frozenset(
            number
            for (name, place), number in self.arriving.items()
            if number is not None
            and (edge := nodes[name].inputs[place]) is not None
            and _is_constant(self.graph, edge)
        )

    @property
    def _nodes(self) -> tuple[GeNode, ...]:
        return self.operator.parts.nodes

    def output(self, index: int, open_input: Open, limit: int, *, rounds: bool = False) -> Unrounded:
        """Dumped output `index`, computed of what `open_input` opens; `rounds` as in `ge_operators.compute`.

        Raises `AccError` where none knows.
        """
        ends = self.operator.outputs
        edge = output_edges(self.operator, ends, self.graph)[index][0]
        if edge is None:
            raise OperatorError("not known which tensor of the graph its output is")
        values: dict[Edge, Unrounded] = {}
        for node in self._nodes:
            self._run(node, values, open_input, limit, rounds)
        result = values.get(edge)
        if result is None:
            raise OperatorError(f"{edge.producer}:{edge.index} is not one of its outputs in the graph")
        if len(self._nodes) == 1:
            return result
        return Unrounded(result.value, max(value.terms for value in values.values()), result.magnitude)

    def _run(
        self, node: GeNode, values: dict[Edge, Unrounded], open_input: Open, limit: int, rounds: bool
    ) -> None:
        """Compute a node and put its outputs to `values`."""
        skipped = _unread(node)
        inputs = [
            None
            if edge is None or edge.is_control or place in skipped
            else self._input(node, place, edge, values, open_input, limit, rounds)
            for place, edge in enumerate(node.inputs)
            if edge is None or not edge.is_control
        ]
        results = compute(
            node.op_type, node.attrs, inputs, outputs=node.output_count, max_elements=limit, rounds=rounds
        )
        values.update({Edge(node.name, index): result for index, result in enumerate(results)})

    def _input(
        self,
        node: GeNode,
        place: int,
        edge: Edge,
        values: dict[Edge, Unrounded],
        open_input: Open,
        limit: int,
        rounds: bool,
    ) -> torch.Tensor:
        if (node.name, place) in self.arriving:
            number = self.arriving[node.name, place]
            try:
                return self._constant(edge) if number is None else open_input(number)
            except NoPayload:
                return self._constant(edge)
        if edge not in values:
            # What hands a value on inside of a fused operator is no part of its name.
            between = self.graph.node(edge.producer)
            assert between is not None
            self._run(between, values, open_input, limit, rounds)
        return values[edge].value

    def _constant(self, edge: Edge) -> torch.Tensor:
        node = self.graph.node(edge.producer)
        value = node.attrs.get("value") if node is not None else None
        if not isinstance(value, GeConstant):
            raise OperatorError(f"the text does not hold the values of {edge.producer}")
        return constant_tensor(value)


def chain_of(ran: RecordedRun, operator: DumpedOperator) -> Chain:
    """The chain of a dumped operator. Raises `OperatorError` with the reason why there is none."""
    composition, graph = operator.parts, ran.graph
    if operator.broken or graph is None or not composition.nodes or composition.partial:
        raise OperatorError(operator.broken or composition.reason or "it is not in the graph text")
    edges = [
        ((name, _place(graph, name, number)), edge)
        for name, number, edge in graph.arriving(composition.nodes)
    ]
    constant = [(key, _is_constant(graph, edge)) for key, edge in edges]
    certain = composition.inputs == "sure" and all(_left_record(ran, graph, edge) for _, edge in edges)
    return Chain(ran, operator, graph, _numbered(constant, len(operator.inputs)), certain)


def _numbered(
    constant: Sequence[tuple[tuple[str, int], bool]], count: int
) -> dict[tuple[str, int], int | None]:
    """Which of `count` dumped inputs each edge from outside is; `constant` says of each whether it is one.

    Raises `OperatorError` where the record has neither all of the edges nor all but the constants.
    """
    if len(constant) == count:
        return {key: number for number, (key, _) in enumerate(constant)}
    if count != sum(not is_constant for _, is_constant in constant):
        raise OperatorError(f"its record holds {count} inputs, the graph gives it {len(constant)}")
    dumped = iter(range(count))
    return {key: None if is_constant else next(dumped) for key, is_constant in constant}


def _place(graph: GraphIndex, name: str, number: int) -> int:
    """The place of a part's data input among all its inputs that are no control edges."""
    node = graph.node(name)
    assert node is not None
    plain = [edge for edge in node.inputs if edge is None or not edge.is_control]
    return [place for place, edge in enumerate(plain) if edge is not None][number]


def _is_constant(graph: GraphIndex, edge: Edge) -> bool:
    node = graph.node(edge.producer)
    return node is not None and node.op_type in _CONSTANTS


def _left_record(ran: RecordedRun, graph: GraphIndex, edge: Edge) -> bool:
    """Whether an input is surely what the text says: its producer was dumped, or computes nothing."""
    node = graph.node(edge.producer)
    if node is None or node.name in ran.dumped or node.op_type in NO_KERNEL:
        return node is not None
    source = graph.node(graph.source(edge).producer)
    return source is not None and (source.name in ran.dumped or source.op_type in NO_KERNEL)


def _unread(node: GeNode) -> frozenset[int]:
    """Inputs that an operator writes to without reading them."""
    try:
        return unread(node.op_type, len(node.inputs))
    except OperatorError:
        return frozenset()
