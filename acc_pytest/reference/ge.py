"""Is an operator of GE right? Computed again in float64 from its dumped inputs and the graph's text.

A fused operator is computed part by part. Nothing is said where an input is missing, where the memory of an
input became that of the output, or where a part has no reference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Union, cast

import torch

from ..base.reason import Reason
from ..dumps import open_dump
from ..dumps.base import Rank, Step
from ..dumps.ge import GeDump
from ..dumps.torchair_files import sanitized
from ..errors import AccError, NoPayload, OperatorError
from ..ge_operators import Unrounded, compute, constant_tensor
from ..ge_operators.registry import unread
from ..mapping.pair import Operand, Pair
from ..mapping.torchair.graph import NO_KERNEL, GraphIndex, GraphIndexes
from ..mapping.torchair.operators import DumpedOperator, operators, output_edges
from ..mapping.views import Permuted, Whole
from ..tensors.ref import TensorRef
from ..topology.ge_graph import Edge, GeConstant, GeNode
from .executor import CaseRecomputer, OperatorCase
from .recomputation import LOOKING, Recomputation, RecomputeBudget, attempted, worst
from .twice import Twice, check_size, hold

Dumped = tuple[DumpedOperator, Union["Chain", None]]
"""A dumped operator and its operators in the graph; `None` for one that only hands on what it reads."""


class GeRecomputer(CaseRecomputer[Dumped]):
    """Computes operators of the GE dump at `root` again."""

    def __init__(self, root: str, pairs: Sequence[Pair], budget: RecomputeBudget = LOOKING) -> None:
        super().__init__(pairs, budget)
        self._records = GeRecords(root)

    def of_operator(self, number: int, path: str) -> Recomputation:
        """The outcome for all outputs of the operator called `path` in the graph, in the run of a pair."""
        try:
            ran = self._records.run_of(self._pairs[number].mine.refs[0])
            operator = ran.named(path) if ran is not None else None
        except (AccError, OSError) as error:
            return Recomputation(why=str(error))
        if operator is None:
            return Recomputation(why=Reason("{} left no record", path))
        return worst([self._of(end.ref) for end in operator.outputs])

    def of_golden(self, number: int) -> Recomputation:
        """Whether the operator of a pair makes golden's output of golden's inputs."""
        operand = self._pairs[number].mine
        if not operand.slot.startswith("output"):
            return Recomputation(why=Reason("{} is read, not written by it", operand.slot))
        return attempted(
            lambda: self._of_golden(number, operand), Reason("computing golden's {} again", operand.name)
        )

    def _of_golden(self, number: int, operand: Operand) -> Recomputation:
        """Raises `AccError` for everything that keeps the operator from being computed again."""
        ran, operator, index = self._place(operand.refs[0])
        chain = chain_of(ran, operator)
        inputs = self._golden_inputs(chain)
        missing = chain.read - inputs.keys()
        if missing:
            raise OperatorError(Reason("golden has nothing to compare with its input {}", min(missing)))
        golden = _golden_tensor(self._pairs[number].golden)
        mine = operand.refs[0].header().dtype.torch_dtype()
        limit = check_size([operand.refs[0], *(side.refs[0] for side in inputs.values())])
        if golden.is_floating_point() and mine.is_floating_point:
            golden = golden.to(mine) if mine.itemsize < golden.dtype.itemsize else golden

        def of_golden(place: int) -> torch.Tensor:
            return _golden_tensor(inputs[place]).reshape(operator.inputs[place].ref.header().shape)

        return hold(Twice(chain.output(index, of_golden, limit)), golden)

    def _golden_inputs(self, chain: Chain) -> Mapping[int, Operand]:
        """Golden's tensors for dumped inputs; constants of the graph are the same on both sides."""
        path = chain.operator.entry.path
        operands = {
            number: Operand("", "", "", "", (chain.operator.inputs[number].ref,))
            for number in chain.constants
        }
        for number in self._by_file.get(path, ()):
            mine, golden = self._pairs[number].mine, self._pairs[number].golden
            kind, _, place = mine.refs[0].member.partition("/")
            if kind == "inputs" and golden.refs[0].path != path and mine.view == Whole():
                operands[int(place)] = golden
        return operands

    @cached_property
    def _by_file(self) -> Mapping[str, Sequence[int]]:
        """The pairs of each record of mine."""
        by_file: dict[str, list[int]] = {}
        for number, pair in enumerate(self._pairs):
            by_file.setdefault(pair.mine.refs[0].path, []).append(number)
        return by_file

    def _place(self, ref: TensorRef) -> tuple[RecordedRun, DumpedOperator, int]:
        """The place of a tensor: run, operator, number of the output. Raises `OperatorError`."""
        ran = self._records.run_of(ref)
        operator = ran.by_file.get(ref.path) if ran is not None else None
        kind, _, number = (ref.member or "").partition("/")
        if ran is None or operator is None or kind != "outputs":
            raise OperatorError("its record is not in the dump")
        return ran, operator, int(number)

    def case(self, ref: TensorRef) -> OperatorCase[Dumped]:
        ran, operator, index = self._place(ref)
        if operator.hands_on:
            return OperatorCase((operator, None), ref, index)
        chain = chain_of(ran, operator)
        if operator.record is None:
            raise OperatorError("only statistics of its tensors were dumped")
        address = operator.record.outputs[index].address
        if address and any(operator.record.inputs[number].address == address for number in chain.read):
            raise OperatorError("an input lies in the memory of its output, so that it was overwritten")
        doubt = "" if chain.certain else "the device may have read something else than the graph text says"
        read = [operator.inputs[number].ref for number in chain.read]
        return OperatorCase((operator, chain), ref, index, read, doubt)

    def compute(self, case: OperatorCase[Dumped]) -> Twice:
        (operator, chain), index = case.call, case.index

        def opened(place: int) -> torch.Tensor:
            return operator.inputs[place].ref.open()

        if chain is None:
            return Twice(Unrounded(opened(index), moved=True))
        return Twice(
            chain.output(index, opened, case.largest),
            lambda dtype: chain.output(index, opened, case.largest, rounds=True).value.to(dtype),
            "the reference with every intermediate value in the types of its inputs, against float64",
        )


def _golden_tensor(side: Operand) -> torch.Tensor:
    """A tensor of golden as mine holds it. Raises `OperatorError` for one that is only part of that."""
    tensor = side.refs[0].open()
    if isinstance(side.view, Permuted):
        return tensor.permute(side.view.order)
    if side.view != Whole() or len(side.refs) > 1:
        raise OperatorError("golden holds it in pieces")
    return tensor


# A dumped operator of GE as the graph's operators it computes, ready to be computed again from any inputs.
#
# What the record holds is bound to the inputs of the graph: in their order, constants that were not dumped
# from the text. Where the device may have read something else than the text says (a transposition that was
# taken in, an operator that left no record), results may confirm the operator but not refute it: it is not
# `certain`.


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

        def run(node: GeNode) -> None:
            """Compute a node and put its outputs to `values`."""
            skipped = _unread(node)
            inputs = [
                None if edge is None or place in skipped else value_of(node, place, edge)
                for place, edge in enumerate(node.inputs)
                if edge is None or not edge.is_control
            ]
            results = compute(
                node.op_type, node.attrs, inputs, outputs=node.output_count, max_elements=limit, rounds=rounds
            )
            values.update({Edge(node.name, index): result for index, result in enumerate(results)})

        def value_of(node: GeNode, place: int, edge: Edge) -> torch.Tensor:
            if (node.name, place) in self.arriving:
                number = self.arriving[node.name, place]
                with contextlib.suppress(NoPayload):
                    return self._constant(edge) if number is None else open_input(number)
                return self._constant(edge)
            if edge not in values:
                # What hands a value on inside of a fused operator is no part of its name.
                between = self.graph.node(edge.producer)
                assert between is not None
                run(between)
            return values[edge].value

        for node in self._nodes:
            run(node)
        result = values.get(edge)
        if result is None:
            raise OperatorError(
                Reason("{}:{} is not one of its outputs in the graph", edge.producer, edge.index)
            )
        if len(self._nodes) == 1:
            return result
        return Unrounded(result.value, max(value.terms for value in values.values()), result.magnitude)

    def _constant(self, edge: Edge) -> torch.Tensor:
        node = self.graph.node(edge.producer)
        value = node.attrs.get("value") if node is not None else None
        if not isinstance(value, GeConstant):
            raise OperatorError(Reason("the text does not hold the values of {}", edge.producer))
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
        raise OperatorError(Reason("its record holds {} inputs, the graph gives it {}", count, len(constant)))
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


# The operators of a GE dump by the file of their record, with the graph that ran and what lies beside.


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """One run of a graph on one rank: its operators, and the graph's text, `None` where that is missing."""

    operators: tuple[DumpedOperator, ...]
    graph: GraphIndex | None

    @cached_property
    def dumped(self) -> frozenset[str]:
        """Operators of the graph that left a record of their own or as a part."""
        return frozenset(name for operator in self.operators for name in operator.parts.names)

    @cached_property
    def by_file(self) -> Mapping[str, DumpedOperator]:
        """Operators by the path of their record."""
        return {operator.entry.path: operator for operator in self.operators}

    def named(self, name: str) -> DumpedOperator | None:
        """The operator of this name in the graph, or that computes it among others."""
        plain = sanitized(name)
        named = [op for op in self.operators if op.node.path == plain or name in op.parts.names]
        return named[0] if len(named) == 1 else None


class GeRecords:
    """The dump at `root`, opened when it is asked for the first time."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._runs: dict[tuple[str, int], RecordedRun] = {}
        self._indexes = GraphIndexes()

    def run_of(self, ref: TensorRef) -> RecordedRun | None:
        """The run that a tensor was dumped in; `None` for a tensor of another dump. Raises `AccError`."""
        place = self._places.get(ref.path)
        if place is None:
            return None
        step, rank = place
        key = (step.directory, rank.index)
        if key not in self._runs:
            graph = self._indexes.of(self._dump, step, rank)
            self._runs[key] = RecordedRun(tuple(operators(self._dump, step, rank, graph)), graph)
        return self._runs[key]

    @cached_property
    def _dump(self) -> GeDump:
        return cast(GeDump, open_dump(self._root))

    @cached_property
    def _places(self) -> Mapping[str, tuple[Step, Rank]]:
        places = {}
        for step in self._dump.steps:
            for rank in self._dump.ranks:
                for node in self._dump.nodes(step, rank):
                    entry = self._dump.entry(step, rank, node)
                    if entry is not None:
                        places[entry.path] = step, rank
        return places
