"""The operators that GE ran, each with the operators of the graph that it computes.

What an operator computes is told by its name in the graph; by `original_op`, where fusion recorded the origin
of an output; by the names that a fused name is made of. A name that merely begins like another is neither.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ...dumps.base import Rank, Slot, Step
from ...dumps.ge import GeDump, GeEntry
from ...dumps.torchair_names import sanitized
from ...errors import AccError
from ...tensors.ge_message import GeRecord
from ...tensors.ref import TensorRef
from ...topology.ge_graph import Edge, GeNode
from ...topology.tree import Node
from .graph import GraphIndex
from .outcome import SlotTensor
from .segments import CUT_NAME, readings

INSERTED = ("trans_", "atomic_addr_clean", "memset", "MemSet")
"""Prefixes of operators that GE inserts while it compiles; their numbers mean nothing outside."""
NO_TEXT = "there is no graph text to say what it computes"
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
        return Parts(reason=f"several operators of the graph are written {node.name} in file names")
    if node.name.startswith(INSERTED):
        return Parts(reason="inserted by GE, not in TorchAir's graph")
    if node.name.endswith(CUT_NAME):
        return _cut_name(node.name.removesuffix(CUT_NAME), record, graph)
    return _fused_name(node.name, record, graph)


def _named(node: GeNode, record: GeRecord | None, graph: GraphIndex) -> Parts:
    """An operator of the graph; one that fusion extended keeps its name, but its outputs are another's."""
    origins = [origin for origin in _origins(record) if origin in graph.position and origin != node.name]
    if not origins:
        return Parts((node,), "name", "the operator of this name in the graph", "sure")
    nodes = graph.between(node.name, max(origins, key=graph.position.__getitem__))
    if not nodes:
        return Parts((node,), "origin", "original_op in the record, which differs from its name")
    reason = f"fused: its outputs are those of {', '.join(dict.fromkeys(origins))}"
    return Parts(nodes, "origin", reason, "likely")


def _cut_name(first: str, record: GeRecord | None, graph: GraphIndex) -> Parts:
    """A fused name that was too long: only the first part is known, and the origins of the outputs."""
    starts = graph.by_file_name.get(first, ())
    origins = [origin for origin in _origins(record) if origin in graph.position]
    if len(starts) != 1 or not origins:
        return Parts(reason=f"a fused operator of which only the first part is known ({first})")
    nodes = graph.between(starts[0].name, max(origins, key=graph.position.__getitem__))
    if not nodes:
        return Parts(reason=f"a fused operator; no way leads from {first} to {origins[-1]} in the graph")
    return Parts(nodes, "origin", f"fused, from {first} to {origins[-1]}", "likely")


def _fused_name(name: str, record: GeRecord | None, graph: GraphIndex) -> Parts:
    possible = readings(name, graph.file_names)
    linked = [
        reading for reading in possible if _is_linked([graph.by_file_name[segment][0] for segment in reading])
    ]
    chosen = possible if len(possible) == 1 else linked
    if len(chosen) == 1:
        nodes = tuple(graph.by_file_name[segment][0] for segment in chosen[0])
        return Parts(nodes, "fused", f"fused of {', '.join(chosen[0])}", "sure")
    if len(possible) > 1:
        several = " or ".join("+".join(reading) for reading in possible[:3])
        return Parts(reason=f"a fused name that can be read in several ways: {several}")
    origins = [graph.node(origin) for origin in dict.fromkeys(_origins(record))]
    ops = tuple(node for node in origins if node is not None)
    if ops:
        return Parts(ops, "origin", f"original_op in the record: {', '.join(node.name for node in ops)}")
    return Parts(reason="in no graph text under this name, and no fusion of names that are")


def _origins(record: GeRecord | None) -> list[str]:
    outputs = record.outputs if record is not None else ()
    return [output.original_op.name for output in outputs if output.original_op is not None]


def _is_linked(nodes: Sequence[GeNode]) -> bool:
    """Whether each part after the first reads another part: fused operators are neighbours."""
    names = {node.name for node in nodes}
    read = {edge.producer for node in nodes for edge in node.data_inputs}
    return all(node.name in read or names & {edge.producer for edge in node.data_inputs} for node in nodes)
