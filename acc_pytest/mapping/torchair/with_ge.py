"""GE against GE: one run fused, the other not (or both the same), tensor by tensor of the graph they share.

Both runs compile the same graph, so an output of the graph identifies a tensor in both. Where there
is no graph text, operators of one name are the same, and names that fusion put together are taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...base.reason import Reason, joined
from ...dumps.base import Slot
from ...dumps.torchair_files import sanitized
from ...topology.ge_graph import Edge
from .graph import GraphIndex, given_to
from .operators import (
    CUT_NAME,
    NO_TEXT,
    UNKNOWN_INPUT,
    DumpedOperator,
    edges_of_inputs,
    output_edges,
    readings,
    self_checks,
)
from .outcome import Matched, Outcome, SlotTensor, Unmatched, disagreement, left_in_tiles


class GeWithGe:
    """The mapping of one group; `graph` is the graph of both runs, `None` without a text."""

    def __init__(self, graph: GraphIndex | None, golden: Sequence[DumpedOperator]) -> None:
        self._graph = graph
        self._golden = golden
        self._by_name = {operator.node.name: operator for operator in golden}
        self._results: dict[Edge, SlotTensor] = {}
        self._inputs_of: dict[tuple[str, int], SlotTensor] = {}
        self._used: set[tuple[str, Slot]] = set()
        self._ran: tuple[set[str], ...] = (set(), set())
        self._named: dict[tuple[str, int], SlotTensor] = {}
        for operator in golden:
            self._learn(operator)

    def outcomes(self, mine: Sequence[DumpedOperator]) -> Iterator[Outcome]:
        """One outcome for each tensor of mine, then one for each tensor of golden that was not matched."""
        self._ran = tuple(
            {name for operator in side for name in operator.parts.names} for side in (self._golden, mine)
        )
        for order, operator in enumerate(mine):
            if operator.hands_on:
                yield from self_checks(operator, "mine", order)
            elif operator.broken:
                yield from self._broken(operator, order)
            elif self._graph is None:
                yield from self._by_names(operator, order)
            else:
                yield from self._by_graph(operator, self._graph, order)
        yield from self._leftovers()

    def _learn(self, operator: DumpedOperator) -> None:
        """Note which tensors of the graph golden dumped, as outputs and as inputs."""
        if self._graph is None:
            for number, tensor in enumerate(operator.outputs):
                origin = operator.origin(number) or Edge(operator.node.name, number)
                self._named.setdefault((sanitized(origin.producer), origin.index), tensor)
            return
        for tensor, (edge, _, _) in zip(operator.outputs, self._edges(operator, self._graph)):
            if edge is not None:
                self._results.setdefault(edge, tensor)
        inputs = operator.inputs
        if len(operator.parts.nodes) == 1 and operator.parts.inputs == "sure":
            node = operator.parts.nodes[0]
            if len(node.data_inputs) == len(inputs):
                self._inputs_of.update({(node.name, place): tensor for place, tensor in enumerate(inputs)})

    @staticmethod
    def _edges(operator: DumpedOperator, graph: GraphIndex) -> list[tuple[Edge | None, str, str]]:
        tensors = operator.outputs
        if operator.parts.nodes:
            return output_edges(operator, tensors, graph)
        edges: list[tuple[Edge | None, str, str]] = []
        for number in range(len(tensors)):
            edge = operator.origin(number) if not operator.parts.partial else None
            in_graph = edge is not None and graph.node(edge.producer) is not None
            reason = (
                Reason("original_op {}:{}", edge.producer, edge.index)
                if edge is not None and in_graph
                else ""
            )
            edges.append((edge if in_graph else None, "origin", reason or operator.parts.reason))
        return edges

    def _by_graph(self, operator: DumpedOperator, graph: GraphIndex, order: int) -> Iterator[Outcome]:
        yield from self._inputs(operator, graph, order)
        for number, (tensor, (edge, policy, reason)) in enumerate(
            zip(operator.outputs, self._edges(operator, graph))
        ):
            golden = self._results.get(edge) if edge is not None else None
            if edge is None or golden is None:
                why = (
                    reason
                    if edge is None
                    else Reason("golden dumped no output {}:{}", edge.producer, edge.index)
                )
                yield Unmatched("mine", tensor.node, tensor.slot, why)
                continue
            depth = graph.depth(edge.producer)
            outcome = self._matched(
                golden, tensor, policy, reason, (order, 1, number), depth, policy == "origin"
            )
            yield self._of_input(outcome, graph, edge)

    def _inputs(self, operator: DumpedOperator, graph: GraphIndex, order: int) -> Iterator[Outcome]:
        tensors, fused = operator.inputs, operator.parts
        # The edges that arrive at each node, with the tensor that golden dumped there.
        edges = graph.arriving(fused.nodes)
        ends = [self._inputs_of.get((name, place)) or self._results.get(edge) for name, place, edge in edges]

        def fits(read: int) -> list[bool]:
            golden = ends[read]
            return [golden is None or not disagreement(golden, tensor) for tensor in tensors]

        arrived = edges_of_inputs(range(len(edges)), fits, len(tensors), fused.inputs)
        for number, (tensor, read) in enumerate(zip(tensors, arrived)):
            if read is None:
                reason = Reason(UNKNOWN_INPUT, len(tensors), len(edges), fused.reason)
                yield Unmatched("mine", tensor.node, tensor.slot, reason if fused.nodes else fused.reason)
            else:
                yield self._input(tensor, edges[read][2], ends[read], graph, (order, 0, number))

    def _input(
        self,
        tensor: SlotTensor,
        edge: Edge,
        golden: SlotTensor | None,
        graph: GraphIndex,
        place: tuple[int, ...],
    ) -> Outcome:
        """The outcome of an input that `edge` feeds, with what golden dumped of that edge."""
        if golden is None:
            reason = Reason("golden dumped no tensor that {}:{} makes", edge.producer, edge.index)
            return Unmatched("mine", tensor.node, tensor.slot, reason)
        theirs, ours = self._ran
        lone = (edge.producer in theirs) != (edge.producer in ours)
        if lone and tensor.header is not None and graph.may_be_folded(edge, tensor.header.shape):
            reason = Reason("{} ran on one side only, so the other may transpose by itself", edge.producer)
            return Unmatched("mine", tensor.node, tensor.slot, reason)
        reason = Reason("the graph feeds it from {}:{}", edge.producer, edge.index)
        matched = self._matched(golden, tensor, "edge", reason, place, graph.depth(edge.producer), True)
        return self._of_input(matched, graph, edge)

    def _of_input(self, outcome: Outcome, graph: GraphIndex, edge: Edge) -> Outcome:
        source = given_to(graph, edge, self._ran[1])
        return replace(outcome, source=source.name) if source and isinstance(outcome, Matched) else outcome

    def _matched(
        self,
        golden: SlotTensor,
        mine: SlotTensor,
        policy: str,
        reason: str,
        place: tuple[int, ...],
        depth: int,
        weak: bool,
    ) -> Outcome:
        doubt = disagreement(golden, mine) if weak else left_in_tiles(golden, mine)
        if doubt:
            where = f"{golden.node.path} {golden.slot}"
            return Unmatched("mine", mine.node, mine.slot, Reason("not compared with {}: {}", where, doubt))
        self._used.add((golden.node.path, golden.slot))
        return Matched(golden, mine, policy, reason, place, depth)

    def _broken(self, operator: DumpedOperator, order: int) -> Iterator[Outcome]:
        """A record that cannot be read fails the test of its operator, where golden has that."""
        partner = self._by_name.get(operator.node.name)
        tensors = partner.outputs if partner is not None else []
        if not tensors:
            yield Unmatched("mine", operator.node, None, operator.broken)
        for number, golden in enumerate(tensors):
            self._used.add((golden.node.path, golden.slot))
            mine = SlotTensor(
                operator.node, golden.slot, type(golden.ref)(operator.entry.path, golden.ref.member)
            )
            yield Matched(golden, mine, "name", "equal names", (order, 1, number))

    def _by_names(self, operator: DumpedOperator, order: int) -> Iterator[Outcome]:
        """Without a graph text: the origin of an output, the operator of this name, or its last part."""
        partner, reason = self._partner(operator)
        yield from self._inputs_by_names(operator, partner, reason, order)
        last, how = (partner, reason) if partner is not None else self._last_part(operator)
        for number, tensor in enumerate(operator.outputs):
            origin = None if operator.inserted else operator.origin(number)
            if origin is not None:
                golden = self._named.get((sanitized(origin.producer), origin.index))
                basis: str = Reason("original_op {}:{}", origin.producer, origin.index)
            else:
                golden = last.end(tensor.slot) if last is not None and not operator.inserted else None
                basis = how
            if golden is None:
                why = Reason("{}, which golden did not dump", basis) if origin or last else basis
                yield Unmatched("mine", tensor.node, tensor.slot, why)
                continue
            policy = "origin" if origin is not None else "name" if partner is not None else "fused"
            yield self._matched(golden, tensor, policy, basis, (order, 1, number), 0, policy != "name")

    def _inputs_by_names(
        self, operator: DumpedOperator, partner: DumpedOperator | None, reason: str, order: int
    ) -> Iterator[Outcome]:
        """The inputs of an operator against those of the same one in golden, where they are as many."""
        inputs, goldens = operator.inputs, partner.inputs if partner is not None else []
        for number, tensor in enumerate(inputs):
            if partner is None or len(goldens) != len(inputs):
                counts = Reason(
                    "{} inputs were dumped, golden has {}; {}", len(inputs), len(goldens), NO_TEXT
                )
                yield Unmatched("mine", tensor.node, tensor.slot, reason if partner is None else counts)
            else:
                yield self._matched(goldens[number], tensor, "name", reason, (order, 0, number), 0, True)

    def _partner(self, operator: DumpedOperator) -> tuple[DumpedOperator | None, str]:
        """The operator of this name and type in golden, unless the name means something else there."""
        if operator.inserted:
            return None, "inserted by GE, so that its name means nothing in the other run"
        partner = self._by_name.get(operator.node.name)
        if partner is None or partner.node.op_type != operator.node.op_type:
            return None, Reason("golden has no {} of this name; {}", operator.node.op_type, NO_TEXT)
        foreign = [side for side in (operator, partner) if side.extended]
        return (None, Reason("fusion extended it; {}", NO_TEXT)) if foreign else (partner, "equal names")

    def _last_part(self, operator: DumpedOperator) -> tuple[DumpedOperator | None, str]:
        if operator.inserted:
            return None, "inserted by GE, so that its name means nothing in the other run"
        if operator.parts.partial or operator.node.name.endswith(CUT_NAME):
            return None, operator.parts.reason
        possible = readings(operator.node.name, self._by_name.keys())
        if len(possible) == 1:
            return self._by_name[possible[0][-1]], Reason("fusion of {}", ", ".join(possible[0]))
        if not possible:
            return None, "golden has no operator of this name, nor the parts of it"
        several = joined(" or ", map("+".join, possible[:3]))
        return None, Reason("its name can be read in several ways: {}", several)

    def _leftovers(self) -> Iterator[Outcome]:
        for operator in self._golden:
            reason = operator.broken or "no dumped operator of mine has this tensor"
            if operator.inserted:
                reason = "inserted by GE, so that its name means nothing in the other run"
            if not operator.slots:
                yield Unmatched("golden", operator.node, None, reason)
            for slot in operator.slots:
                if (operator.node.path, slot) not in self._used:
                    yield Unmatched("golden", operator.node, slot, reason)


def common_graph(golden: GraphIndex | None, mine: GraphIndex | None) -> tuple[GraphIndex | None, str]:
    """The graph of both runs, and what to say of it. Two texts of one script are equal but for constants."""
    if golden is None or mine is None:
        return golden or mine, ""
    golden_types: Mapping[str, str] = {node.name: node.op_type for node in golden.graph.nodes}
    mine_types = {node.name: node.op_type for node in mine.graph.nodes}
    common = sum(mine_types.get(name) == kind for name, kind in golden_types.items())
    if common == len(golden_types) == len(mine_types):
        return mine, ""
    return mine, (
        Reason(
            "the graph texts differ: golden has {} operators, mine {}, {} in common; "
            "were both runs made by one script?",
            len(golden_types),
            len(mine_types),
            common,
        )
    )
