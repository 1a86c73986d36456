"""The operators that GE ran, each with the operators of the graph that it computes.

What an operator computes is told by its name in the graph; by `original_op`, where fusion recorded the origin
of an output; by the names that a fused name is made of. A name that merely begins like another is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

from ...base.reason import Reason, joined
from ...dumps.base import Rank, Slot, Step
from ...dumps.ge import GeDump, GeEntry
from ...dumps.torchair_files import sanitized
from ...errors import AccError
from ...tensors.ge_message import GeRecord
from ...tensors.ref import TensorRef
from ...topology.ge_graph import Edge, GeNode
from ...topology.tree import Node
from ..pair import SELF_CHECK
from .graph import GraphIndex
from .outcome import Matched, Outcome, SlotTensor, Unmatched, disagreement

INSERTED = ("trans_", "atomic_addr_clean", "memset", "MemSet")
"""Prefixes of operators that GE inserts while it compiles; their numbers mean nothing outside."""
NO_TEXT = "there is no graph text to say what it computes"
UNKNOWN_INPUT = "not known which input this is: {} were dumped, the graph has {} ({})"
_SELF = ("Cast", "TransData")
"""Types of inserted operators whose output holds the values of their input."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The operators of the graph that one dumped operator computes, in order, and how that is known.

    Empty parts come with the reason in `reason`. `inputs` says whether what arrives at the parts is what the
    operator reads: `sure`, `likely` (their number and shapes must agree as well), or `unknown`. `partial`
    says that the record holds only a piece of each tensor.
    """

    nodes: tuple[GeNode, ...] = ()
    policy: str = ""
    reason: str = ""
    inputs: Literal["sure", "likely", "unknown"] = "unknown"
    partial: bool = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset(node.name for node in self.nodes)


@dataclass(frozen=True, eq=False)
class DumpedOperator:
    """A dumped operator: node, file, tensors. `record` is `None` where it cannot be read or has none.

    `broken` says why a record cannot be read, `in_text` whether there is a graph text to know it by.
    """

    node: Node
    entry: GeEntry
    slots: Mapping[Slot, TensorRef]
    record: GeRecord | None
    broken: str
    parts: Parts
    in_text: bool

    @cached_property
    def inputs(self) -> list[SlotTensor]:
        """Dumped inputs, in order."""
        return [SlotTensor(self.node, slot, ref) for slot, ref in self.slots.items() if slot.kind == "input"]

    @cached_property
    def outputs(self) -> list[SlotTensor]:
        """Dumped outputs, in order."""
        return [SlotTensor(self.node, slot, ref) for slot, ref in self.slots.items() if slot.kind == "output"]

    @property
    def identity(self) -> Hashable:
        """The key of the places of its tensors in the graph: equal for this operator of another step."""
        outputs = self.record.outputs if self.record is not None else ()
        fused = self.parts
        nodes = tuple(node.name for node in fused.nodes)
        origins = tuple(output.original_op for output in outputs)
        return self.node.path, nodes, fused.policy, fused.inputs, tuple(self.slots), origins

    def end(self, slot: Slot) -> SlotTensor | None:
        """One input or output, if it was dumped."""
        return SlotTensor(self.node, slot, self.slots[slot]) if slot in self.slots else None

    @property
    def extended(self) -> bool:
        """Whether fusion left the operator its name and made it compute what others did."""
        return any(sanitized(origin) != self.node.name for origin in _origins(self.record))

    @property
    def inserted(self) -> bool:
        """Whether GE made the operator up while it compiled."""
        return not self.parts.nodes and self.node.name.startswith(INSERTED)

    @property
    def hands_on(self) -> bool:
        """Whether its outputs should hold its inputs' values: a Cast or TransData that GE inserted."""
        handing = not self.parts.nodes and any(kind in self.node.op_type for kind in _SELF)
        return handing and (self.in_text or self.inserted) and not self.parts.partial

    def overwrites(self, end: SlotTensor) -> bool:
        """Whether an input lies where an output is written, so that the record was made after it was gone."""
        if self.record is None or end.slot.kind != "input":
            return False
        source = self.record.inputs[end.index]
        areas = [(output.address, output.address_offset) for output in self.record.outputs]
        return bool(source.address) and (source.address, source.address_offset) in areas

    def origin(self, index: int) -> Edge | None:
        """The output of the graph that fusion recorded for output `index`."""
        if self.record is None or index >= len(self.record.outputs):
            return None
        origin = self.record.outputs[index].original_op
        if origin is None or origin.output_index is None or not origin.name:
            return None
        return Edge(origin.name, origin.output_index)


def operators(dump: GeDump, step: Step, rank: Rank, graph: GraphIndex | None) -> list[DumpedOperator]:
    """The dumped operators of a step on a rank, in the order of the graph, then of time."""
    ran = []
    for node in dump.nodes(step, rank):
        entry = dump.entry(step, rank, node)
        assert entry is not None
        slots: Mapping[Slot, TensorRef] = {}
        record, broken = None, ""
        try:
            record = dump.record(entry)
            slots = dump.tensors(step, rank, node)
        except (AccError, OSError) as error:
            broken = str(error)
        fused = parts_of(node, record, graph) if graph is not None else Parts(reason=NO_TEXT)
        ran.append(DumpedOperator(node, entry, slots, record, broken, fused, graph is not None))
    if graph is not None:
        last = len(graph.position)
        ran.sort(
            key=lambda op: (
                max((graph.position[name] for name in op.parts.names), default=last),
                op.entry.name.time,
            )
        )
    return ran


def parts_of(node: Node, record: GeRecord | None, graph: GraphIndex) -> Parts:
    """The operators of the graph that a dumped operator computes."""
    if "/" in node.path:
        return Parts(
            reason="a slice of an operator that ran in threads (FFTS+): only part of each tensor",
            partial=True,
        )
    nodes = graph.by_file_name.get(node.name, ())
    real = record.op_name if record is not None else ""
    if len(nodes) > 1:
        nodes = tuple(candidate for candidate in nodes if candidate.name == real)
    if len(nodes) == 1:
        return _named(nodes[0], record, graph)
    if nodes or (real and sanitized(real) == node.name and len(graph.by_file_name.get(node.name, ())) > 1):
        return Parts(reason=Reason("several operators of the graph are written {} in file names", node.name))
    if node.name.startswith(INSERTED):
        return Parts(reason="inserted by GE, not in TorchAir's graph")
    if node.name.endswith(CUT_NAME):
        first = node.name.removesuffix(CUT_NAME)
        starts = graph.by_file_name.get(first, ())
        origins = [origin for origin in _origins(record) if origin in graph.position]
        if len(starts) != 1 or not origins:
            return Parts(reason=Reason("a fused operator of which only the first part is known ({})", first))
        nodes = graph.between(starts[0].name, max(origins, key=graph.position.__getitem__))
        if not nodes:
            return Parts(
                reason=Reason("a fused operator; no way leads from {} to {} in the graph", first, origins[-1])
            )
        return Parts(nodes, "origin", Reason("fused, from {} to {}", first, origins[-1]), "likely")
    return _fused_name(node.name, record, graph)


def _named(node: GeNode, record: GeRecord | None, graph: GraphIndex) -> Parts:
    """An operator of the graph; one that fusion extended keeps its name, but its outputs are another's."""
    origins = [origin for origin in _origins(record) if origin in graph.position and origin != node.name]
    if not origins:
        return Parts((node,), "name", "the operator of this name in the graph", "sure")
    nodes = graph.between(node.name, max(origins, key=graph.position.__getitem__))
    if not nodes:
        return Parts((node,), "origin", "original_op in the record, which differs from its name")
    reason = Reason("fused: its outputs are those of {}", ", ".join(dict.fromkeys(origins)))
    return Parts(nodes, "origin", reason, "likely")


def _fused_name(name: str, record: GeRecord | None, graph: GraphIndex) -> Parts:
    possible = readings(name, graph.file_names)
    linked = [
        reading for reading in possible if _is_linked([graph.by_file_name[segment][0] for segment in reading])
    ]
    chosen = possible if len(possible) == 1 else linked
    if len(chosen) == 1:
        nodes = tuple(graph.by_file_name[segment][0] for segment in chosen[0])
        return Parts(nodes, "fused", Reason("fused of {}", ", ".join(chosen[0])), "sure")
    if len(possible) > 1:
        several = joined(" or ", ("+".join(reading) for reading in possible[:3]))
        return Parts(reason=Reason("a fused name that can be read in several ways: {}", several))
    origins = [graph.node(origin) for origin in dict.fromkeys(_origins(record))]
    ops = tuple(node for node in origins if node is not None)
    if ops:
        return Parts(
            ops, "origin", Reason("original_op in the record: {}", ", ".join(node.name for node in ops))
        )
    return Parts(reason="in no graph text under this name, and no fusion of names that are")


def _origins(record: GeRecord | None) -> list[str]:
    outputs = record.outputs if record is not None else ()
    return [output.original_op.name for output in outputs if output.original_op is not None]


def _is_linked(nodes: Sequence[GeNode]) -> bool:
    """Whether each part after the first reads another part: fused operators are neighbours."""
    names = {node.name for node in nodes}
    read = {edge.producer for node in nodes for edge in node.data_inputs}
    return all(node.name in read or names & {edge.producer for edge in node.data_inputs} for node in nodes)


# The name of a fused operator, taken apart: GE writes the names of its parts one behind the other.
#
# There is nothing between two names, so `Mul_1Add_12` may only be cut where all of it is names: a beginning
# that happens to be a name (`Add_1` of `Add_12`) proves nothing.


CUT_NAME = "_ub_fusion"
"""The end of the name of a fused operator that GE cut because of its length, behind its first name."""
_MOST = 16
"""Readings of one name that are followed; a name with more is ambiguous anyway."""


def readings(text: str, names: Collection[str]) -> list[tuple[str, ...]]:
    """All ways to read `text` as names one behind the other, with as few names as possible.

    Empty where there is none. By dynamic programming over the places where a name may end.
    """
    sizes = sorted({len(name) for name in names if name and len(name) <= len(text)})
    best: list[list[tuple[str, ...]]] = [[()], *([] for _ in text)]
    for end in range(1, len(text) + 1):
        shortest: list[tuple[str, ...]] = []
        for size in sizes:
            if size > end:
                break
            before = best[end - size]
            if not before or text[end - size : end] not in names:
                continue
            count = len(before[0]) + 1
            if shortest and count > len(shortest[0]):
                continue
            if shortest and count < len(shortest[0]):
                shortest = []
            shortest += [(*reading, text[end - size : end]) for reading in before]
        best[end] = shortest[:_MOST]
    return best[len(text)]


# Edges of the graph that dumped inputs are, where GE dumped fewer inputs than there are edges.
#
# Absent, unknown and null inputs are not dumped, so numbers alone say nothing; what is left keeps its
# order. An input is known when every way to leave inputs out gives it the same edge.


AnyEdge = TypeVar("AnyEdge")


def edges_of_inputs(
    edges: Sequence[AnyEdge], fits: Callable[[AnyEdge], Sequence[bool]], count: int, certainty: str
) -> list[AnyEdge | None]:
    """The edge of each of `count` dumped inputs, `None` where that is not known.

    `fits` says of an edge which inputs it may be; `certainty` is that of `Parts.inputs`.
    """
    if certainty == "sure" and len(edges) == count:
        return list(edges)
    if certainty == "sure" or (certainty == "likely" and len(edges) == count):
        return arrivals(edges, [fits(edge) for edge in edges], count)
    return [None] * count


def arrivals(edges: Sequence[AnyEdge], fits: Sequence[Sequence[bool]], count: int) -> list[AnyEdge | None]:
    """The edge of each of `count` dumped inputs, `None` where there is a choice or no way at all.

    `fits[e][i]` says that edge `e` may be input `i` as far as type and shape tell.
    """
    before = _reachable(fits, len(edges), count)
    turned = [list(reversed(row)) for row in reversed(fits)]
    after = _reachable(turned, len(edges), count)
    arriving: list[AnyEdge | None] = []
    for place in range(count):
        possible = {
            edges[number]
            for number in range(len(edges))
            if fits[number][place]
            and before[number][place]
            and after[len(edges) - number - 1][count - place - 1]
        }
        arriving.append(possible.pop() if len(possible) == 1 else None)
    return arriving


def _reachable(fits: Sequence[Sequence[bool]], edges: int, count: int) -> list[list[bool]]:
    """`[e][i]`: whether the first `i` inputs can be found, in order, among the first `e` edges."""
    table = [[place == 0 for place in range(count + 1)]]
    for number in range(edges):
        last = table[-1]
        table.append(
            [True]
            + [last[place] or (last[place - 1] and fits[number][place - 1]) for place in range(1, count + 1)]
        )
    return table


# Outputs of the graph that dumped outputs of an operator are.


def output_edges(
    operator: DumpedOperator, tensors: Sequence[SlotTensor], graph: GraphIndex
) -> list[tuple[Edge | None, str, str]]:
    """The output of the graph, the policy and the reason, for each dumped output.

    The origin in the record says it best. Otherwise outputs are those of the last part; where their number is
    another, those that anything outside of the fused operator reads.
    """
    fused = operator.parts
    last = fused.nodes[-1]
    results = [Edge(last.name, index) for index in range(last.output_count)]
    if len(fused.nodes) > 1 and len(tensors) != len(results):
        read = graph.results(fused.nodes)
        results = read if len(read) == len(tensors) else []
    edges: list[tuple[Edge | None, str, str]] = []
    for tensor in tensors:
        index = tensor.index
        edge = operator.origin(index)
        if edge is not None and graph.node(edge.producer) is not None:
            policy = fused.policy if edge.producer in fused.names and fused.inputs == "sure" else "origin"
            reason = fused.reason
            if policy != "name":
                reason = Reason("{}; original_op {}:{}", reason, edge.producer, edge.index)
            edges.append((edge, policy, reason))
        elif index < len(results) and fused.policy != "origin":
            edges.append((results[index], fused.policy, fused.reason))
        else:
            edges.append(
                (None, "", Reason("not known which tensor of the graph this output is ({})", fused.reason))
            )
    return edges


# Operators that GE inserts to change type or layout: their output is compared with their own input.


def self_checks(operator: DumpedOperator, side: str, order: int) -> Iterator[Outcome]:
    """Input i (as golden) against output i of one Cast or TransData: a check of the operator alone."""
    inputs, outputs = operator.inputs, operator.outputs
    reason = operator.broken or Reason(
        "{}; it has no output to compare its input with", operator.parts.reason
    )
    if not inputs and not outputs:
        yield Unmatched(side, operator.node, None, reason)
    for index, (source, result) in enumerate(zip(inputs, outputs)):
        doubt = disagreement(source, result)
        if doubt:
            yield Unmatched(
                side,
                operator.node,
                result.slot,
                Reason("input and output of {}: {}", operator.node.name, doubt),
            )
            continue
        basis = Reason(
            "self-check, not GE against the other side: {} hands on its own input", operator.node.op_type
        )
        yield Matched(source, result, SELF_CHECK, basis, (order, 1, index), self_check=True)
    for tensor in (*inputs[len(outputs) :], *outputs[len(inputs) :]):
        yield Unmatched(side, operator.node, tensor.slot, reason)
