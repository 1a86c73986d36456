"""GE against FX: every tensor that GE dumped finds the FX tensor that it is, or why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...dumps.base import Slot
from ...tensors.ref import TensorRef
from ...topology.ge_graph import Edge, GeNode
from .fx_side import FxSide
from .graph import GraphIndex, Meaning
from .inputs import arrivals
from .operators import Operator
from .outcome import Alone, End, Matched, Outcome, class_of, disagreement, left_in_tiles
from .self_checks import self_checks

_NO_GOLDEN = {
    "given": "an input of the graph: FX dumps calls, not placeholders",
    "constant": "a constant of the graph",
    "unknown": "made by an operator that is not in the graph text",
}


class WithFx:
    """The mapping of one group. `golden` is the name of FX's side: golden, unless FX is under test."""

    def __init__(self, graph: GraphIndex, fx: FxSide, ge_side: str, fx_side: str) -> None:
        self._graph = graph
        self._fx = fx
        self._ge_side = ge_side
        self._fx_side = fx_side
        self._used: set[tuple[str, Slot]] = set()
        self._ran: set[str] = set()

    def outcomes(self, operators: Sequence[Operator]) -> Iterator[Outcome]:
        """One outcome for each tensor of GE, then one for each output of FX that none of them is."""
        self._ran = {name for operator in operators for name in operator.parts.names}
        for order, operator in enumerate(operators):
            if not operator.parts.nodes:
                yield from self._unknown(operator, order)
                continue
            inputs, outputs = operator.inputs, operator.outputs
            if operator.broken:
                outputs = self._promised(operator)
            yield from self._inputs(operator, inputs, order)
            yield from self._outputs(operator, outputs, order)
        yield from self._left()

    def _unknown(self, operator: Operator, order: int) -> Iterator[Outcome]:
        if operator.hands_on:
            yield from self_checks(operator, self._ge_side, order)
            return
        reason = operator.broken or operator.parts.reason
        ends = [*operator.inputs, *operator.outputs]
        if not ends:
            yield Alone(self._ge_side, operator.node, None, reason)
        for end in ends:
            yield self._known_origin(operator, end, order) or self._alone(end, reason)

    def _known_origin(self, operator: Operator, end: End, order: int) -> Outcome | None:
        """An output whose origin is recorded needs no name of its operator."""
        edge = operator.origin(_index(end)) if end.slot.kind == "output" else None
        if edge is None or self._graph.node(edge.producer) is None or operator.parts.partial:
            return None
        return self._output(operator, end, edge, "origin", f"original_op {edge.producer}:{edge.index}", order)

    def _promised(self, operator: Operator) -> list[End]:
        """The outputs that a broken record should have, so that its test fails with what is wrong."""
        last = operator.parts.nodes[-1]
        slots = [Slot("output", (index,)) for index, name in enumerate(last.fx_names) if name is not None]
        slots = slots or [Slot("output", (0,))]
        return [End(operator.node, s, TensorRef(operator.entry.path, f"outputs/{s.index[0]}")) for s in slots]

    def _outputs(self, operator: Operator, ends: Sequence[End], order: int) -> Iterator[Outcome]:
        edges = output_edges(operator, ends, self._graph)
        for end, (edge, policy, reason) in zip(ends, edges):
            if edge is None:
                yield self._alone(end, reason)
            else:
                yield self._output(operator, end, edge, policy, reason, order)

    def _output(
        self, operator: Operator, end: End, edge: Edge, policy: str, reason: str, order: int
    ) -> Outcome:
        meaning = self._graph.meaning(edge)
        if meaning.fx is None:
            return self._alone(end, self._why_none(meaning, edge))
        golden, said = self._fx.output(meaning.fx)
        if golden is None:
            return self._alone(end, said)
        words = [reason]
        if meaning.through:
            policy = "alias"
            words.append(f"the FX name is on {meaning.through}, which hands the values on")
        if said:
            words.append(said)
        # Only a tensor that is known for certain fails for another shape or kind of number.
        certain = not meaning.through and not said and policy != "origin"
        doubt = left_in_tiles(golden, end) if certain else disagreement(golden, end)
        if doubt:
            return self._alone(end, f"not compared with {golden.node.path} {golden.slot}: {doubt}")
        self._used.add((golden.node.path, golden.slot))
        depth = self._graph.depth(edge.producer)
        return Matched(golden, end, policy, "; ".join(words), (order, 1, _index(end)), depth)

    def _inputs(self, operator: Operator, ends: Sequence[End], order: int) -> Iterator[Outcome]:
        edges = self._graph.external(operator.parts.nodes)
        known = operator.parts.inputs
        arriving: list[Edge | None] = [None] * len(ends)
        if len(ends) == len(edges) and known == "sure":
            arriving = list(edges)
        elif known == "sure" or (known == "likely" and len(ends) == len(edges)):
            fits = [[not self._doubt(edge, end) for end in ends] for edge in edges]
            arriving = arrivals(edges, fits, len(ends))
        for end, edge in zip(ends, arriving):
            if edge is not None:
                yield self._input(operator, end, edge, order)
                continue
            counts = f"{len(ends)} were dumped, the graph has {len(edges)}"
            yield self._alone(end, f"not known which input this is: {counts} ({operator.parts.reason})")

    def _doubt(self, edge: Edge, end: End) -> str:
        """What speaks against `end` being the tensor `edge`; empty also where nothing is known of it."""
        meaning = self._graph.meaning(edge)
        golden = self._fx.output(meaning.fx)[0] if meaning.fx is not None else None
        if golden is not None:
            return disagreement(golden, end)
        node = self._graph.node(edge.producer)
        header = end.header
        shape = _declared(node, edge.index)
        if shape is None or header is None:
            return ""
        return "" if shape == header.shape else f"the graph declares {list(shape)}"

    def _input(self, operator: Operator, end: End, edge: Edge, order: int) -> Outcome:
        meaning = self._graph.meaning(edge)
        if meaning.kind == "given":
            return self._argument(operator, end, edge, order)
        if meaning.fx is None:
            return self._alone(end, self._why_none(meaning, edge))
        golden, said = self._fx.output(meaning.fx)
        if golden is None:
            return self._alone(end, said)
        doubt = disagreement(golden, end)
        shape = end.header.shape if end.header is not None else ()
        if edge.producer not in self._ran and self._graph.may_be_folded(edge, shape):
            doubt = "GE did not run that operator, so this one may transpose by itself"
        if doubt:
            return self._alone(
                end,
                f"not compared with {golden.node.path} {golden.slot}, which {edge.producer} makes: {doubt}",
            )
        words = [f"the graph feeds it from {edge.producer}:{edge.index}"]
        if meaning.through:
            words.append(f"whose FX name is known through {meaning.through}")
        if said:
            words.append(said)
        depth = self._graph.depth(edge.producer)
        return Matched(golden, end, "edge", "; ".join(words), (order, 0, _index(end)), depth)

    def _argument(self, operator: Operator, end: End, edge: Edge, order: int) -> Outcome:
        """An input of the graph is seen by FX only as an argument of a call, and arguments of FX and inputs
        of GE are not in one order: it must be the only one of its kind in the only operator of its call."""
        refuse = f"{_NO_GOLDEN['given']} ({edge.producer})"
        owner = self._graph.owner(operator.parts.nodes[0]) if len(operator.parts.nodes) == 1 else ""
        kernels = self._graph.kernels(owner) if owner else ()
        if len(kernels) != 1 or kernels[0].name != operator.parts.nodes[0].name:
            return self._alone(end, refuse)
        call = self._fx.call(self._graph.fx_calls[owner])[0]
        header = end.header
        if call is None or header is None or not header.shape:
            return self._alone(end, refuse)
        fitting = [
            argument
            for argument in self._fx.arguments(call)
            if (known := argument.header) is not None
            and known.shape == header.shape
            and class_of(known) == class_of(header)
        ]
        rivals = [
            other
            for other in operator.inputs
            if (known := other.header) is not None and known.shape == header.shape
        ]
        if len(fitting) != 1 or len(rivals) != 1:
            return self._alone(end, f"{refuse}; {len(fitting)} arguments of {call.name} have its shape")
        reason = f"input {edge.producer} of the graph, the only argument of {call.name} with its shape"
        return Matched(fitting[0], end, "argument", reason, (order, 0, _index(end)))

    def _why_none(self, meaning: Meaning, edge: Edge) -> str:
        if meaning.kind in _NO_GOLDEN:
            return f"{_NO_GOLDEN[meaning.kind]} ({edge.producer})"
        node = self._graph.node(edge.producer)
        owner = self._graph.owner(node) if node is not None else ""
        return (
            f"a value inside of {owner}, which FX computes in one go"
            if owner
            else f"the graph text gives {edge.producer}:{edge.index} no FX name"
        )

    def _alone(self, end: End, reason: str) -> Alone:
        return Alone(self._ge_side, end.node, end.slot, reason)

    def _left(self) -> Iterator[Outcome]:
        for node in self._fx.nodes:
            for slot in self._fx.slots[node]:
                if slot.kind == "output" and (node.path, slot) not in self._used:
                    yield Alone(
                        self._fx_side, node, slot, "no dumped operator of GE has this tensor as output"
                    )


def output_edges(
    operator: Operator, ends: Sequence[End], graph: GraphIndex
) -> list[tuple[Edge | None, str, str]]:
    """For each dumped output the output of the graph that it is, the policy and the reason.

    The origin in the record says it best. Otherwise outputs are those of the last part; where their number is
    another, those that anything outside of the fused operator reads.
    """
    parts = operator.parts
    last = parts.nodes[-1]
    results = [Edge(last.name, index) for index in range(last.output_count)]
    if len(parts.nodes) > 1 and len(ends) != len(results):
        read = graph.results(parts.nodes)
        results = read if len(read) == len(ends) else []
    found: list[tuple[Edge | None, str, str]] = []
    for end in ends:
        index = _index(end)
        edge = operator.origin(index)
        if edge is not None and graph.node(edge.producer) is not None:
            own = parts.policy if edge.producer in parts.names and parts.inputs == "sure" else "origin"
            said = (
                parts.reason if own == "name" else f"{parts.reason}; original_op {edge.producer}:{edge.index}"
            )
            found.append((edge, own, said))
        elif index < len(results) and parts.policy != "origin":
            found.append((results[index], parts.policy, parts.reason))
        else:
            found.append((None, "", f"not known which tensor of the graph this output is ({parts.reason})"))
    return found


def _index(end: End) -> int:
    index = end.slot.index[0]
    assert isinstance(index, int)
    return index


def _declared(node: GeNode | None, index: int) -> tuple[int, ...] | None:
    """The shape of an output in the graph text, where all of it is known."""
    if node is None or index >= node.output_count:
        return None
    shape = node.output_descs[index].shape
    return shape if shape is not None and all(size >= 0 for size in shape) else None
