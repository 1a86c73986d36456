"""GE against FX: every tensor that GE dumped finds the FX tensor that it is, or why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...dumps.base import Slot
from ...tensors.ref import TensorRef
from ...topology.ge_graph import Edge, GeNode
from .fx_side import FxSide
from .fx_tensors import FxTensors
from .graph import GraphIndex, Meaning
from .inputs import arrivals
from .lowering import Arguments, hands_on
from .operators import Operator
from .outcome import Alone, End, Matched, Outcome, class_of, disagreement, left_in_tiles
from .outputs import output_edges
from .reach import given_to
from .self_checks import self_checks

_NO_GOLDEN = {
    "given": "an input of the graph, and no call of FX is known to read it",
    "constant": "a constant of the graph",
    "unknown": "made by an operator that is not in the graph text",
}


class WithFx:
    """The mapping of one group. `golden` is the name of FX's side: golden, unless FX is under test."""

    def __init__(self, graph: GraphIndex, known: Arguments, fx: FxSide, ge_side: str, fx_side: str) -> None:
        self._graph = graph
        self._fx = fx
        self._tensors = FxTensors(graph, known, fx)
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
        edge = operator.origin(end.index) if end.slot.kind == "output" else None
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
        place = (order, 1, end.index)
        if meaning.fx is None:
            return self._elsewhere(end, edge, "", place) or self._alone(end, self._why_none(meaning, edge))
        golden, said = self._fx.output(meaning.fx)
        if golden is None:
            return self._elsewhere(end, edge, "", place) or self._alone(end, said)
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
            refused = f"not compared with {golden.node.path} {golden.slot}: {doubt}"
            return self._elsewhere(end, edge, "", place) or self._alone(end, refused)
        return self._matched(golden, end, policy, "; ".join(words), place, edge)

    def _elsewhere(self, end: End, edge: Edge, reader: str, place: tuple[int, ...]) -> Matched | None:
        """The match with another tensor of FX with these values: an argument of a call that reads them."""
        result = self._tensors.result(edge) if end.slot.kind == "output" else None
        for golden, said in (*([result] if result else ()), *self._tensors.of(edge, reader)):
            if disagreement(golden, end):
                continue
            if self._may_be_folded(edge, end):
                return None
            return self._matched(golden, end, "argument", said, place, edge)
        return None

    def _may_be_folded(self, edge: Edge, end: End) -> bool:
        """Whether GE did not run what makes an input, and its reader may do that unseen."""
        shape = end.header.shape if end.header is not None else ()
        return edge.producer not in self._ran and self._graph.may_be_folded(edge, shape)

    def _matched(
        self, golden: End, end: End, policy: str, reason: str, place: tuple[int, ...], edge: Edge
    ) -> Matched:
        self._used.add((golden.node.path, golden.slot))
        given = given_to(self._graph, edge, self._ran)
        depth = self._graph.depth(edge.producer)
        return Matched(golden, end, policy, reason, place, depth, given=given.name if given else "")

    def _inputs(self, operator: Operator, ends: Sequence[End], order: int) -> Iterator[Outcome]:
        reads = self._graph.arriving(operator.parts.nodes)
        known = operator.parts.inputs
        arriving: list[tuple[str, int, Edge] | None] = [None] * len(ends)
        if len(ends) == len(reads) and known == "sure":
            arriving = list(reads)
        elif known == "sure" or (known == "likely" and len(ends) == len(reads)):
            fits = [[not self._doubt(edge, end) for end in ends] for _, _, edge in reads]
            arriving = arrivals(reads, fits, len(ends))
        for end, read in zip(ends, arriving):
            if read is not None:
                yield self._input(operator, read[0], end, read[2], order)
                continue
            counts = f"{len(ends)} were dumped, the graph has {len(reads)}"
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

    def _input(self, operator: Operator, part: str, end: End, edge: Edge, order: int) -> Outcome:
        place = (order, 0, end.index)
        found, refused = self._made(end, edge, place)
        if found is None and operator.overwrites(end):
            refused = "the operator writes its result over it, so that the record may hold either"
        elif found is None:
            found = self._elsewhere(end, edge, part, place) or self._folded(end, edge, part, place)
        return found or self._only_argument(operator, end, edge, place) or self._alone(end, refused)

    def _made(self, end: End, edge: Edge, place: tuple[int, ...]) -> tuple[Matched | None, str]:
        """The match of an input with the result of the call that made it, or why there is none."""
        meaning = self._graph.meaning(edge)
        if meaning.fx is None:
            return None, self._why_none(meaning, edge)
        golden, said = self._fx.output(meaning.fx)
        if golden is None:
            return None, said
        doubt = disagreement(golden, end)
        if self._may_be_folded(edge, end):
            doubt = "GE did not run that operator, so this one may transpose by itself"
        if doubt:
            where = f"{golden.node.path} {golden.slot}, which {edge.producer} makes"
            return None, f"not compared with {where}: {doubt}"
        words = [f"the graph feeds it from {edge.producer}:{edge.index}"]
        if meaning.through:
            words.append(f"whose FX name is known through {meaning.through}")
        if said:
            words.append(said)
        return self._matched(golden, end, "edge", "; ".join(words), place, edge), ""

    def _folded(self, end: End, edge: Edge, part: str, place: tuple[int, ...]) -> Matched | None:
        """The match with what a Transpose reads that GE did not run, where the shape tells so."""
        node = self._graph.node(edge.producer)
        shape = end.header.shape if end.header is not None else ()
        if node is None or edge.producer in self._ran or self._graph.may_be_folded(edge, shape):
            return None
        return self._elsewhere(end, node.data_inputs[0], part, place) if node.op_type == "Transpose" else None

    def _only_argument(
        self, operator: Operator, end: End, edge: Edge, place: tuple[int, ...]
    ) -> Matched | None:
        """An input of the graph that the only operator of a call reads, its only argument of that shape."""
        node = self._graph.node(edge.producer)
        owner = self._graph.owner(operator.parts.nodes[0]) if len(operator.parts.nodes) == 1 else ""
        kernels = self._graph.kernels(owner) if owner else ()
        if (
            node is None
            or not self._graph.is_given(node)
            or [one.name for one in kernels] != [*operator.parts.names]
        ):
            return None
        call = self._fx.call(self._graph.fx_calls[owner])[0]
        header = end.header
        # The name of a call that hands on may stand on what another call computed.
        if call is None or header is None or not header.shape or hands_on(call.op_type):
            return None
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
            return None
        reason = f"input {edge.producer} of the graph, the only argument of {call.name} with its shape"
        return self._matched(fitting[0], end, "argument", reason, place, edge)

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


def _declared(node: GeNode | None, index: int) -> tuple[int, ...] | None:
    """The shape of an output in the graph text, where all of it is known."""
    if node is None or index >= node.output_count:
        return None
    shape = node.output_descs[index].shape
    return shape if shape is not None and all(size >= 0 for size in shape) else None
