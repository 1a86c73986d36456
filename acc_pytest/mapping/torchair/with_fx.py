"""GE against FX: for every tensor that GE dumped the same tensor of FX, or why there is none."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ...base.reason import Reason, joined
from ...dumps.base import Slot
from ...tensors.ref import TensorRef
from ...topology.ge_graph import Edge, GeNode
from ...topology.tree import Node
from .fx import FxSide, FxTensors, not_a_tensor
from .graph import GraphIndex, Meaning, given_to
from .lowering import Arguments, hands_on
from .operators import NO_TEXT, UNKNOWN_INPUT, DumpedOperator, edges_of_inputs, output_edges, self_checks
from .outcome import Matched, Outcome, SlotTensor, Unmatched, class_of, disagreement, left_in_tiles

_NO_GOLDEN = {
    "given": "an input of the graph, and no call of FX is known to read it",
    "constant": "a constant of the graph",
    "unknown": "made by an operator that is not in the graph text",
}


class GeWithFx:
    """The mapping of one group. `golden` is the name of FX's side: golden, unless FX is under test."""

    def __init__(self, graph: GraphIndex, reads: Arguments, fx: FxSide, ge_side: str, fx_side: str) -> None:
        self._graph = graph
        self._fx = fx
        self._tensors = FxTensors(graph, reads, fx)
        self._ge_side = ge_side
        self._fx_side = fx_side
        self._used: set[tuple[str, Slot]] = set()
        self._ran: set[str] = set()

    def outcomes(self, operators: Sequence[DumpedOperator]) -> Iterator[Outcome]:
        """One outcome for each tensor of GE, then one for each output of FX that was not matched."""
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
        yield from self._leftovers()

    def _unknown(self, operator: DumpedOperator, order: int) -> Iterator[Outcome]:
        if operator.hands_on:
            yield from self_checks(operator, self._ge_side, order)
            return
        reason = operator.broken or operator.parts.reason
        tensors = [*operator.inputs, *operator.outputs]
        if not tensors:
            yield Unmatched(self._ge_side, operator.node, None, reason)
        for tensor in tensors:
            yield self._of_origin(operator, tensor, order) or self._alone(tensor, reason)

    def _of_origin(self, operator: DumpedOperator, tensor: SlotTensor, order: int) -> Outcome | None:
        """An output whose origin is recorded needs no name of its operator."""
        edge = operator.origin(tensor.index) if tensor.slot.kind == "output" else None
        if edge is None or self._graph.node(edge.producer) is None or operator.parts.partial:
            return None
        return self._output(
            operator, tensor, edge, "origin", f"original_op {edge.producer}:{edge.index}", order
        )

    def _promised(self, operator: DumpedOperator) -> list[SlotTensor]:
        """The outputs that a broken record should have, so that its test fails with what is wrong."""
        last = operator.parts.nodes[-1]
        slots = [Slot("output", (index,)) for index, name in enumerate(last.fx_names) if name is not None]
        slots = slots or [Slot("output", (0,))]
        return [
            SlotTensor(operator.node, s, TensorRef(operator.entry.path, f"outputs/{s.index[0]}"))
            for s in slots
        ]

    def _outputs(
        self, operator: DumpedOperator, tensors: Sequence[SlotTensor], order: int
    ) -> Iterator[Outcome]:
        edges = output_edges(operator, tensors, self._graph)
        for tensor, (edge, policy, reason) in zip(tensors, edges):
            if edge is None:
                yield self._alone(tensor, reason)
            else:
                yield self._output(operator, tensor, edge, policy, reason, order)

    def _output(
        self, operator: DumpedOperator, tensor: SlotTensor, edge: Edge, policy: str, reason: str, order: int
    ) -> Outcome:
        meaning = self._graph.meaning(edge)
        place = (order, 1, tensor.index)
        if meaning.fx is None:
            return self._elsewhere(tensor, edge, "", place) or self._alone(
                tensor, self._why_none(meaning, edge)
            )
        golden, note = self._fx.output(meaning.fx)
        if golden is None:
            return self._elsewhere(tensor, edge, "", place) or self._alone(tensor, note)
        reasons = [reason]
        if meaning.through:
            policy = "alias"
            reasons.append(Reason("the FX name is on {}, which hands the values on", meaning.through))
        if note:
            reasons.append(note)
        # Only a certain tensor fails for another shape or kind of number.
        certain = not meaning.through and not note and policy != "origin"
        doubt = left_in_tiles(golden, tensor) if certain else disagreement(golden, tensor)
        if doubt:
            refused = Reason("not compared with {} {}: {}", golden.node.path, golden.slot, doubt)
            return self._elsewhere(tensor, edge, "", place) or self._alone(tensor, refused)
        return self._matched(golden, tensor, policy, joined("; ", reasons), place, edge)

    def _elsewhere(
        self, tensor: SlotTensor, edge: Edge, reader: str, place: tuple[int, ...]
    ) -> Matched | None:
        """The match with another tensor of FX with these values: an argument of a call that reads them."""
        result = self._tensors.result(edge) if tensor.slot.kind == "output" else None
        for golden, reason in (*([result] if result else ()), *self._tensors.of(edge, reader)):
            if disagreement(golden, tensor):
                continue
            if self._may_be_folded(edge, tensor):
                return None
            return self._matched(golden, tensor, "argument", reason, place, edge)
        return None

    def _may_be_folded(self, edge: Edge, tensor: SlotTensor) -> bool:
        """Whether GE did not run what makes an input, and its reader may do that unseen."""
        shape = tensor.header.shape if tensor.header is not None else ()
        return edge.producer not in self._ran and self._graph.may_be_folded(edge, shape)

    def _matched(
        self,
        golden: SlotTensor,
        tensor: SlotTensor,
        policy: str,
        reason: str,
        place: tuple[int, ...],
        edge: Edge,
    ) -> Matched:
        self._used.add((golden.node.path, golden.slot))
        source = given_to(self._graph, edge, self._ran)
        depth = self._graph.depth(edge.producer)
        return Matched(golden, tensor, policy, reason, place, depth, source=source.name if source else "")

    def _inputs(
        self, operator: DumpedOperator, tensors: Sequence[SlotTensor], order: int
    ) -> Iterator[Outcome]:
        reads = self._graph.arriving(operator.parts.nodes)

        def fits(read: tuple[str, int, Edge]) -> list[bool]:
            return [not self._doubt(read[2], tensor) for tensor in tensors]

        arrived = edges_of_inputs(reads, fits, len(tensors), operator.parts.inputs)
        for tensor, read in zip(tensors, arrived):
            if read is not None:
                yield self._input(operator, read[0], tensor, read[2], order)
                continue
            counts = len(tensors), len(reads)
            yield self._alone(tensor, Reason(UNKNOWN_INPUT, *counts, operator.parts.reason))

    def _doubt(self, edge: Edge, tensor: SlotTensor) -> str:
        """The reason why `tensor` is not the tensor `edge`; empty also where nothing is known of it."""
        meaning = self._graph.meaning(edge)
        golden = self._fx.output(meaning.fx)[0] if meaning.fx is not None else None
        if golden is not None:
            return disagreement(golden, tensor)
        node = self._graph.node(edge.producer)
        header = tensor.header
        shape = _declared(node, edge.index)
        if shape is None or header is None:
            return ""
        return "" if shape == header.shape else Reason("the graph declares {}", list(shape))

    def _input(
        self, operator: DumpedOperator, name: str, tensor: SlotTensor, edge: Edge, order: int
    ) -> Outcome:
        place = (order, 0, tensor.index)
        matched, refused = self._by_result(tensor, edge, place)
        if matched is None and operator.overwrites(tensor):
            refused = "the operator writes its result over it, so that the record may hold either"
        elif matched is None:
            matched = self._elsewhere(tensor, edge, name, place) or self._folded(tensor, edge, name, place)
        return matched or self._only_argument(operator, tensor, edge, place) or self._alone(tensor, refused)

    def _by_result(
        self, tensor: SlotTensor, edge: Edge, place: tuple[int, ...]
    ) -> tuple[Matched | None, str]:
        """The match of an input with the result of the call that made it, or why there is none."""
        meaning = self._graph.meaning(edge)
        if meaning.fx is None:
            return None, self._why_none(meaning, edge)
        golden, note = self._fx.output(meaning.fx)
        if golden is None:
            return None, note
        doubt = disagreement(golden, tensor)
        if self._may_be_folded(edge, tensor):
            doubt = "GE did not run that operator, so this one may transpose by itself"
        if doubt:
            where = Reason("{} {}, which {} makes", golden.node.path, golden.slot, edge.producer)
            return None, Reason("not compared with {}: {}", where, doubt)
        reasons: list[str] = [Reason("the graph feeds it from {}:{}", edge.producer, edge.index)]
        if meaning.through:
            reasons.append(Reason("whose FX name is known through {}", meaning.through))
        if note:
            reasons.append(note)
        return self._matched(golden, tensor, "edge", joined("; ", reasons), place, edge), ""

    def _folded(self, tensor: SlotTensor, edge: Edge, name: str, place: tuple[int, ...]) -> Matched | None:
        """The match with what a Transpose reads that GE did not run, where the shape shows that."""
        node = self._graph.node(edge.producer)
        shape = tensor.header.shape if tensor.header is not None else ()
        if node is None or edge.producer in self._ran or self._graph.may_be_folded(edge, shape):
            return None
        return (
            self._elsewhere(tensor, node.data_inputs[0], name, place) if node.op_type == "Transpose" else None
        )

    def _only_argument(
        self, operator: DumpedOperator, tensor: SlotTensor, edge: Edge, place: tuple[int, ...]
    ) -> Matched | None:
        """An input of the graph that the only operator of a call reads, its only argument of that shape."""
        call = self._only_reader(operator, edge)
        header = tensor.header
        # The name of a call that hands on may stand on what another call computed.
        if call is None or header is None or not header.shape or hands_on(call.op_type):
            return None
        fitting = [
            argument
            for argument in self._fx.arguments(call)
            if (candidate := argument.header) is not None
            and candidate.shape == header.shape
            and class_of(candidate) == class_of(header)
        ]
        rivals = [
            rival
            for rival in operator.inputs
            if (candidate := rival.header) is not None and candidate.shape == header.shape
        ]
        if len(fitting) != 1 or len(rivals) != 1:
            return None
        reason = Reason(
            "input {} of the graph, the only argument of {} with its shape", edge.producer, call.name
        )
        return self._matched(fitting[0], tensor, "argument", reason, place, edge)

    def _only_reader(self, operator: DumpedOperator, edge: Edge) -> Node | None:
        """The call of an operator, where no other computes it and `edge` is an input of the graph."""
        node = self._graph.node(edge.producer)
        owner = self._graph.owner(operator.parts.nodes[0]) if len(operator.parts.nodes) == 1 else ""
        kernels = self._graph.kernels(owner) if owner else ()
        if (
            node is None
            or not self._graph.is_given(node)
            or [kernel.name for kernel in kernels] != [*operator.parts.names]
        ):
            return None
        return self._fx.call(self._graph.fx_calls[owner])[0]

    def _why_none(self, meaning: Meaning, edge: Edge) -> str:
        if meaning.kind in _NO_GOLDEN:
            return f"{_NO_GOLDEN[meaning.kind]} ({edge.producer})"
        node = self._graph.node(edge.producer)
        owner = self._graph.owner(node) if node is not None else ""
        return (
            Reason("a value inside of {}, which FX computes in one go", owner)
            if owner
            else Reason("the graph text gives {}:{} no FX name", edge.producer, edge.index)
        )

    def _alone(self, tensor: SlotTensor, reason: str) -> Unmatched:
        return Unmatched(self._ge_side, tensor.node, tensor.slot, reason)

    def _leftovers(self) -> Iterator[Outcome]:
        for node in self._fx.nodes:
            for slot in self._fx.slots[node]:
                if slot.kind == "output" and (node.path, slot) not in self._used:
                    yield Unmatched(
                        self._fx_side, node, slot, "no dumped operator of GE has this tensor as output"
                    )


def _declared(node: GeNode | None, index: int) -> tuple[int, ...] | None:
    """The shape of an output in the graph text, where all of it is known."""
    if node is None or index >= node.output_count:
        return None
    shape = node.output_descs[index].shape
    return shape if shape is not None and all(size >= 0 for size in shape) else None


# GE against FX without a graph text: kinds of operators and shapes of outputs, counted as they ran.
#
# Nothing in a record of GE says which FX call it is. The third `Gelu` of a shape is the third `aten.gelu` of
# that shape, though, as long as both sides ran as many. Inputs stay alone: their order is another in FX.


_WORDS = {
    "concat": "cat",
    "realdiv": "div",
    "batchmatmul": "bmm",
    "matmul": "mm",
    "softmax": "softmax",
    "reducesum": "sum",
    "reducemean": "mean",
    "nativelayernorm": "layernorm",
    "todcopy": "cast",
}
"""Words of GE (or aten) and the word that stands for both."""
_AIDS = {"Add", "Mul", "Cast", "Transpose", "Reshape", "Pack", "Identity", "Fill", "BroadcastTo", "ConcatV2"}
"""Types of operators that are built beside others, to convert, scale or shift what these compute."""
_VERSION = re.compile(r"(?:v\d+|d)$")
_Key = tuple[str, str, tuple[int, ...]]


def by_order(
    operators: Sequence[DumpedOperator], fx: FxSide, ge_side: str, fx_side: str
) -> Iterator[Outcome]:
    """One outcome for each tensor of GE, then one for each output of FX that was not matched."""
    kinds = {operator.node.op_type for operator in operators}
    fused = [operator.node.name for operator in operators if _is_fused(operator)]
    hidden = {kind for kind in kinds if any(kind in name for name in fused)}
    uncertain = {_ge_word(kind) for kind in _AIDS | hidden}
    outputs: dict[_Key, list[SlotTensor]] = defaultdict(list)
    for operator in operators:
        word = _ge_word(operator.node.op_type)
        for tensor in operator.outputs if word not in uncertain else ():
            if (key := _key(word, tensor)) is not None:
                outputs[key].append(tensor)
    partners = _partners(outputs, _fx_outputs(fx))
    used: set[tuple[str, Slot]] = set()
    for order, operator in enumerate(operators):
        for outcome in _outcomes(operator, partners, ge_side, order):
            if isinstance(outcome, Matched):
                used.add((outcome.golden.node.path, outcome.golden.slot))
            yield outcome
    for node in fx.nodes:
        for slot in fx.slots[node]:
            if slot.kind == "output" and (node.path, slot) not in used:
                yield Unmatched(fx_side, node, slot, Reason("{} on the other side", NO_TEXT))


def _outcomes(
    operator: DumpedOperator, partners: Mapping[tuple[str, Slot], SlotTensor], ge_side: str, order: int
) -> Iterator[Outcome]:
    if operator.hands_on:
        yield from self_checks(operator, ge_side, order)
        return
    tensors = [*operator.inputs, *operator.outputs]
    if not tensors:
        yield Unmatched(ge_side, operator.node, None, operator.broken or NO_TEXT)
    for number, tensor in enumerate(tensors):
        golden = partners.get((tensor.node.path, tensor.slot))
        if golden is None:
            yield Unmatched(ge_side, tensor.node, tensor.slot, NO_TEXT)
            continue
        reason = "no graph text: as many operators of this kind and shape on both sides, taken in order"
        yield Matched(golden, tensor, "order", reason, (order, number))


def _fx_outputs(fx: FxSide) -> Mapping[_Key, Sequence[SlotTensor]]:
    outputs: dict[_Key, list[SlotTensor]] = defaultdict(list)
    for node in fx.nodes:
        for slot, ref in fx.slots[node].items():
            tensor = SlotTensor(node, slot, ref)
            if slot.kind == "input" or not_a_tensor(ref):
                continue
            segments = node.op_type.split(".")
            word = (segments[1] if len(segments) > 1 else "").replace("_", "")
            if (key := _key(_WORDS.get(word, word), tensor)) is not None:
                outputs[key].append(tensor)
    return outputs


def _is_fused(operator: DumpedOperator) -> bool:
    """Whether a name is not made of the type and a number, as those of TorchAir are, or no longer true."""
    plain = re.fullmatch(rf"{re.escape(operator.node.op_type)}(?:_\d+)?", operator.node.name)
    return not operator.inserted and (plain is None or operator.extended)


def _partners(
    ran: Mapping[_Key, Sequence[SlotTensor]], called: Mapping[_Key, Sequence[SlotTensor]]
) -> dict[tuple[str, Slot], SlotTensor]:
    return {
        (end.node.path, end.slot): golden
        for key, ends in ran.items()
        if len(ends) == len(called.get(key, ()))
        for end, golden in zip(ends, called[key])
    }


def _key(word: str, end: SlotTensor) -> _Key | None:
    header = end.header
    if header is None or not word:
        return None
    return f"{word}:{end.slot.index[0]}", class_of(header), header.shape


def _ge_word(op_type: str) -> str:
    word = _VERSION.sub("", op_type.lower())
    return _WORDS.get(word, word)
