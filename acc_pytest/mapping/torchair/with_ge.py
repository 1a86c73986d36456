"""GE against GE: one run fused, the other not (or both the same), tensor by tensor of the graph they share.

Both runs compile the same graph, so a tensor is known by the output of the graph that it is. Where there
is no graph text, operators of one name are the same, and names that fusion put together are taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...dumps.base import Slot
from ...dumps.torchair_names import sanitized
from ...topology.ge_graph import Edge
from .graph import GraphIndex
from .operators import Operator
from .outcome import Alone, End, Matched, Outcome, disagreement
from .segments import CUT_NAME, readings
from .self_checks import self_checks
from .with_fx import output_edges


class WithGe:
    """The mapping of one group; `graph` is the graph of both runs, `None` without a text."""

    def __init__(self, graph: GraphIndex | None, golden: Sequence[Operator]) -> None:
        self._graph = graph
        self._golden = golden
        self._by_name = {operator.node.name: operator for operator in golden}
        self._made: dict[Edge, End] = {}
        self._inputs_of: dict[tuple[str, int], End] = {}
        self._used: set[tuple[str, Slot]] = set()
        for operator in golden:
            self._learn(operator)

    def outcomes(self, mine: Sequence[Operator]) -> Iterator[Outcome]:
        """One outcome for each tensor of mine, then one for each tensor of golden that none of them is."""
        for order, operator in enumerate(mine):
            if operator.hands_on:
                yield from self_checks(operator, "mine", order)
            elif operator.broken:
                yield from self._broken(operator, order)
            elif self._graph is None:
                yield from self._by_names(operator, order)
            else:
                yield from self._by_graph(operator, self._graph, order)
        yield from self._left()

    def _learn(self, operator: Operator) -> None:
        """Note which tensors of the graph golden dumped, as outputs and as inputs."""
        if self._graph is None:
            return
        for end, (edge, _, _) in zip(operator.ends("output"), self._edges(operator, self._graph)):
            if edge is not None:
                self._made.setdefault(edge, end)
        inputs = operator.ends("input")
        if len(operator.parts.nodes) == 1 and operator.parts.exact:
            part = operator.parts.nodes[0]
            if len(part.data_inputs) == len(inputs):
                self._inputs_of.update({(part.name, place): end for place, end in enumerate(inputs)})

    @staticmethod
    def _edges(operator: Operator, graph: GraphIndex) -> list[tuple[Edge | None, str, str]]:
        ends = operator.ends("output")
        if operator.parts.nodes:
            return output_edges(operator, ends, graph)
        found: list[tuple[Edge | None, str, str]] = []
        for number in range(len(ends)):
            edge = operator.origin(number) if not operator.parts.partial else None
            known = edge is not None and graph.node(edge.producer) is not None
            said = f"original_op {edge.producer}:{edge.index}" if edge is not None and known else ""
            found.append((edge if known else None, "origin", said or operator.parts.reason))
        return found

    def _by_graph(self, operator: Operator, graph: GraphIndex, order: int) -> Iterator[Outcome]:
        yield from self._inputs(operator, graph, order)
        for number, (end, (edge, policy, reason)) in enumerate(
            zip(operator.ends("output"), self._edges(operator, graph))
        ):
            golden = self._made.get(edge) if edge is not None else None
            if edge is None or golden is None:
                why = reason if edge is None else f"golden dumped no output {edge.producer}:{edge.index}"
                yield Alone("mine", end.node, end.slot, why)
                continue
            depth = graph.depth(edge.producer)
            yield self._matched(golden, end, policy, reason, (order, 1, number), depth, policy == "origin")

    def _inputs(self, operator: Operator, graph: GraphIndex, order: int) -> Iterator[Outcome]:
        ends = operator.ends("input")
        parts = operator.parts
        # What arrives at each part, with the tensor that golden dumped there.
        arriving: list[tuple[Edge, End | None]] = []
        for part in parts.nodes:
            for place, edge in enumerate(part.data_inputs):
                if edge.producer not in parts.names:
                    golden = self._inputs_of.get((part.name, place)) or self._made.get(edge)
                    arriving.append((edge, golden))
        several = list(dict(reversed(arriving)).items())[::-1]
        for candidate in (arriving, several):
            agree = all(
                golden is None or not disagreement(golden, end) for (_, golden), end in zip(candidate, ends)
            )
            if len(candidate) == len(ends) and (agree or (parts.exact and candidate is arriving)):
                for number, (end, (edge, found)) in enumerate(zip(ends, candidate)):
                    if found is None:
                        reason = f"golden dumped no tensor that {edge.producer}:{edge.index} makes"
                        yield Alone("mine", end.node, end.slot, reason)
                        continue
                    reason = f"the graph feeds it from {edge.producer}:{edge.index}"
                    depth = graph.depth(edge.producer)
                    yield self._matched(found, end, "edge", reason, (order, 0, number), depth, True)
                return
        for end in ends:
            reason = (
                parts.reason
                if not parts.nodes
                else (
                    f"not known which input this is: {len(ends)} were dumped, the graph has {len(arriving)}"
                )
            )
            yield Alone("mine", end.node, end.slot, reason)

    def _matched(
        self, golden: End, mine: End, policy: str, reason: str, place: tuple[int, ...], depth: int, weak: bool
    ) -> Outcome:
        doubt = disagreement(golden, mine) if weak else ""
        if doubt:
            where = f"{golden.node.path} {golden.slot}"
            return Alone("mine", mine.node, mine.slot, f"not compared with {where}: {doubt}")
        self._used.add((golden.node.path, golden.slot))
        return Matched(golden, mine, policy, reason, place, depth)

    def _broken(self, operator: Operator, order: int) -> Iterator[Outcome]:
        """A record that cannot be read fails the test of its operator, where golden has that."""
        partner = self._by_name.get(operator.node.name)
        ends = partner.ends("output") if partner is not None else []
        if not ends:
            yield Alone("mine", operator.node, None, operator.broken)
        for number, golden in enumerate(ends):
            self._used.add((golden.node.path, golden.slot))
            mine = End(operator.node, golden.slot, type(golden.ref)(operator.entry.path, golden.ref.member))
            yield Matched(golden, mine, "name", "equal names", (order, 1, number))

    def _by_names(self, operator: Operator, order: int) -> Iterator[Outcome]:
        """Without a graph text: the operator of this name, else the parts that the name is made of."""
        ends = [*operator.ends("input"), *operator.ends("output")]
        if operator.inserted:
            reason = "inserted by GE, so that its name means nothing in the other run"
            yield from (Alone("mine", operator.node, end.slot, reason) for end in ends)
            return
        same = self._by_name.get(operator.node.name)
        if same is not None and same.node.op_type == operator.node.op_type:
            golden = same.slots
            for number, end in enumerate(ends):
                ref = golden.get(end.slot)
                if ref is None:
                    reason = f"golden's {same.node.path} has no {end.slot}"
                    yield Alone("mine", end.node, end.slot, reason)
                    continue
                there = End(same.node, end.slot, ref)
                weak = end.slot.kind == "input"
                yield self._matched(there, end, "name", "equal names", (order, number), 0, weak)
            return
        last, reason = self._last_part(operator)
        for number, end in enumerate(ends):
            made = last.slots.get(end.slot) if last is not None else None
            origin = operator.origin(number - len(operator.ends("input")))
            if end.slot.kind == "input" or last is None or made is None:
                why = reason if last is None or end.slot.kind == "output" else f"an input of a {reason}"
                yield Alone("mine", end.node, end.slot, f"{why}; there is no graph text")
                continue
            if origin is not None:
                known = self._by_name.get(sanitized(origin.producer))
                made = known.slots.get(Slot("output", (origin.index,))) if known is not None else None
                if known is None or made is None:
                    why = f"golden dumped no output {origin.producer}:{origin.index}"
                    yield Alone("mine", end.node, end.slot, why)
                    continue
                there = End(known.node, Slot("output", (origin.index,)), made)
            else:
                there = End(last.node, end.slot, made)
            yield self._matched(there, end, "fused", reason, (order, number), 0, True)

    def _last_part(self, operator: Operator) -> tuple[Operator | None, str]:
        if operator.parts.partial or operator.node.name.endswith(CUT_NAME):
            return None, operator.parts.reason
        found = readings(operator.node.name, self._by_name.keys())
        if len(found) == 1:
            return self._by_name[found[0][-1]], f"fusion of {', '.join(found[0])}"
        if not found:
            return None, "golden has no operator of this name, nor the parts of it"
        return None, "its name can be read in several ways: " + " or ".join(map("+".join, found[:3]))

    def _left(self) -> Iterator[Outcome]:
        for operator in self._golden:
            reason = operator.broken or "no dumped operator of mine has this tensor"
            if not operator.slots:
                yield Alone("golden", operator.node, None, reason)
            for slot in operator.slots:
                if (operator.node.path, slot) not in self._used:
                    yield Alone("golden", operator.node, slot, reason)


def one_graph(golden: GraphIndex | None, mine: GraphIndex | None) -> tuple[GraphIndex | None, str]:
    """The graph of both runs, and what to say of it. Two texts of one script are equal but for constants."""
    if golden is None or mine is None:
        return golden or mine, ""
    ones: Mapping[str, str] = {node.name: node.op_type for node in golden.graph.nodes}
    others = {node.name: node.op_type for node in mine.graph.nodes}
    common = sum(others.get(name) == kind for name, kind in ones.items())
    if common == len(ones) == len(others):
        return mine, ""
    return mine, (
        f"the graph texts differ: golden has {len(ones)} operators, mine {len(others)}, {common} in common; "
        "were both runs made by one script?"
    )
