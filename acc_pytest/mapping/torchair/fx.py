"""The calls that FX ran at one step, looked up by the names that GE graphs use for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...base.reason import Reason
from ...dumps.base import Rank, Slot, Step
from ...dumps.torchair import AnyDump
from ...errors import AccError
from ...tensors.numpy_file import stored_dtype
from ...tensors.ref import TensorRef
from ...topology.ge_graph import Edge, FxName, GeNode
from ...topology.tree import Node
from .graph import GraphIndex, Reached, inverse, move_of, reached
from .lowering import Argument, Arguments, target_of
from .outcome import SlotTensor


class FxSide:
    """The calls of one group. A tensor without numbers is recognised by its header and never opened."""

    def __init__(self, dump: AnyDump, step: Step, rank: Rank) -> None:
        self.nodes = dump.nodes(step, rank)
        self.slots: Mapping[Node, Mapping[Slot, TensorRef]] = {
            node: dump.tensors(step, rank, node) for node in self.nodes
        }
        self.by_path = {node.path: node for node in self.nodes}
        self._outputs: dict[FxName, tuple[SlotTensor | None, str]] = {}
        self._by_name: Mapping[str, list[Node]] = _grouped(self.nodes)

    def call(self, name: FxName) -> tuple[Node | None, str]:
        """The call that a name in a graph text means, and what to say of it.

        TorchAir converts a graph that was optimised after it was dumped, so the target may be another
        (reshape for view). Without a call the text is the reason.
        """
        exact = self.by_path.get(f"{name.node}-{name.target}")
        if exact is not None:
            return exact, ""
        calls = self._by_name.get(name.node, [])
        if len(calls) == 1:
            return calls[0], Reason("{} was optimised to {} (view->reshape)", calls[0].op_type, name.target)
        if calls:
            return None, Reason("FX dumped several calls named {}, none of target {}", name.node, name.target)
        return None, Reason("FX dumped no call {} ({})", name.node, name.target)

    def output(self, name: FxName) -> tuple[SlotTensor | None, str]:
        """The tensor that a name means, and what to say of it; without one the text is the reason."""
        if name not in self._outputs:
            self._outputs[name] = self._output(name)
        return self._outputs[name]

    def _output(self, name: FxName) -> tuple[SlotTensor | None, str]:
        node, note = self.call(name)
        if node is None:
            return None, note
        slot = Slot("output", (name.index,))
        ref = self.slots[node].get(slot)
        if ref is None:
            return None, Reason("FX dumped no output {} of {}", name.index, name.node)
        why = not_a_tensor(ref)
        return (None, f"{name.node} {slot}: {why}") if why else (SlotTensor(node, slot, ref), note)

    def arguments(self, node: Node) -> list[SlotTensor]:
        """The tensor arguments of a call: what has elements in rows (or an unknown number), no numbers."""
        ends = [SlotTensor(node, slot, ref) for slot, ref in self.slots[node].items() if slot.kind == "input"]
        tensors = []
        for tensor in ends:
            header = tensor.header
            if header is None or not_a_tensor(tensor.ref):
                continue
            if header.shape or not header.counted:
                tensors.append(tensor)
        return tensors


def not_a_tensor(ref: TensorRef) -> str:
    """Why a file of FX is no tensor: a pickled object or text; empty for numbers, and for a broken file."""
    try:
        if ref.header().dtype.kind != "raw":
            return ""
    except (AccError, OSError):
        pass
    dtype = stored_dtype(ref.path)
    if dtype is None:
        return ""
    if dtype.hasobject:
        return (
            "a non-tensor argument (None, dtype, device), stored as a pickled object, which is never opened"
        )
    return "a non-tensor argument, stored as text" if dtype.kind in "US" else ""


def _grouped(nodes: list[Node]) -> dict[str, list[Node]]:
    by_name: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        by_name[node.name].append(node)
    return by_name


# Tensors of FX that hold the values of an output of a GE graph: results of calls, and their arguments.
#
# Weights and prompts have no name in the text, and FX dumps no placeholders. A call that reads one dumps it,
# though, and what lies between is moved at most: a Transpose of a weight, a Reshape of a prompt, a Cast.


_GIVEN, _MADE = Slot("input", (0,)), Slot("output", (0,))


class FxTensors:
    """The tensors of one group's calls, looked up by outputs of the graph."""

    def __init__(self, graph: GraphIndex, reads: Arguments, fx: FxSide) -> None:
        self._graph = graph
        self._reads = reads
        self._fx = fx

    def of(self, edge: Edge, reader: str = "") -> Iterator[tuple[SlotTensor, str]]:
        """FX tensors with the values that `reader` finds at an output, the nearest first, with how that is
        known.

        Nothing is known of what an operator reads after another one wrote there (a cache in place).
        """
        if not reader or self._graph.is_unwritten(edge, reader):
            for reach in reached(self._graph, edge):
                yield from self._at(reach)

    def result(self, edge: Edge) -> tuple[SlotTensor, str] | None:
        """The result of the call that turns a stored matrix, where an output of the graph is that."""
        turning = self._stored.get(edge)
        if turning is None or turning.operator.name != edge.producer:
            return None
        reason = Reason("{} turns the matrix that {} turns", turning.call.name, edge.producer)
        return self._end(turning.call, _MADE), reason

    def _at(self, reach: Reached) -> Iterator[tuple[SlotTensor, str]]:
        via = Reason(" through {}", ", ".join(reach.through)) if reach.through else ""
        turning = self._stored.get(reach.edge)
        if turning is not None and turning.operator.data_inputs[0] == reach.edge:
            reason = Reason("argument 0 of {}, read{} by {}", turning.call.name, via, turning.operator.name)
            yield _permuted(self._end(turning.call, _GIVEN), reach), reason
        name = self._graph.named(reach.edge)
        output = self._fx.output(name)[0] if name is not None and reach.through else None
        if name is not None and output is not None:
            yield _permuted(output, reach), Reason("known{} as output {} of {}", via, name.index, name.node)
        for argument in self._arguments.get(reach.edge, ()):
            read = self._argument(argument) if self._graph.is_unwritten(reach.edge, argument.reader) else None
            if read is not None:
                number = ".".join(map(str, argument.number))
                reason = Reason(
                    "argument {} of {}, read{} by {}", number, argument.call.node, via, argument.reader
                )
                yield _permuted(read, reach), reason

    def _argument(self, argument: Argument) -> SlotTensor | None:
        node, _ = self._fx.call(argument.call)
        slot = Slot("input", argument.number)
        if node is None or slot not in self._fx.slots[node] or not_a_tensor(self._fx.slots[node][slot]):
            return None
        tensor = self._end(node, slot)
        return tensor if tensor.header is None or tensor.header.shape or not tensor.header.counted else None

    def _end(self, node: Node, slot: Slot) -> SlotTensor:
        return SlotTensor(node, slot, self._fx.slots[node][slot])

    @cached_property
    def _arguments(self) -> Arguments:
        """Arguments of calls that were dumped with all arguments that their operators read."""
        strange = {
            arg.call.node for several in self._reads.values() for arg in several if not self._was_dumped(arg)
        }
        dumped = {
            edge: tuple(arg for arg in several if arg.call.node not in strange)
            for edge, several in self._reads.items()
        }
        return {edge: several for edge, several in dumped.items() if several}

    def _was_dumped(self, argument: Argument) -> bool:
        node, _ = self._fx.call(argument.call)
        return node is not None and Slot("input", argument.number) in self._fx.slots[node]

    @cached_property
    def _stored(self) -> Mapping[Edge, Stored]:
        return stored(self._graph, self._fx, self._arguments)


def _permuted(tensor: SlotTensor, reach: Reached) -> SlotTensor:
    return SlotTensor(tensor.node, tensor.slot, tensor.ref, inverse(reach.order)) if reach.order else tensor


_TURNING = frozenset({"aten.t", "aten.transpose", "aten.permute", "aten.numpy_T"})
_GIVEN, _MADE = Slot("input", (0,)), Slot("output", (0,))


@dataclass(frozen=True, slots=True)
class Stored:
    """A call that transposes a matrix, and the Transpose of the graph that does the same."""

    call: Node
    operator: GeNode


def stored(graph: GraphIndex, fx: FxSide, reads: Arguments) -> Mapping[Edge, Stored]:
    """The FX call that transposes an output of the graph, by that output, before and after."""
    place = {node.path: number for number, node in enumerate(fx.nodes)}
    turning = [node for node in fx.nodes if target_of(node.op_type) in _TURNING]
    sources: dict[Node, Edge] = {}
    turned_by: dict[Edge, Stored] = {}
    for number, shape, operator in sorted(_turned(graph, fx, reads, place), key=lambda read: read[0]):
        source = operator.data_inputs[0]
        fitting = [node for node in turning if place[node.path] < number and _turns_to(shape, fx, node)]
        assigned = [node for node in fitting if sources.get(node) == source]
        free = [node for node in fitting if node not in sources]
        if assigned or len(free) == 1:
            call = assigned[0] if assigned else free[0]
            sources[call] = source
            turned_by.setdefault(source, Stored(call, operator))
            turned_by[Edge(operator.name, 0)] = Stored(call, operator)
    return turned_by


def _turned(
    graph: GraphIndex, fx: FxSide, reads: Arguments, place: Mapping[str, int]
) -> Iterator[tuple[int, tuple[int, ...], GeNode]]:
    """Every Transpose of a matrix that a known call reads: the place of the call, and the shape it reads."""
    for operator in graph.graph.nodes:
        move = move_of(operator, graph.graph)
        for argument in reads.get(Edge(operator.name, 0), ())[:1] if move and move.order == (1, 0) else ():
            call, _ = fx.call(argument.call)
            shape = _shape(fx, call, Slot("input", argument.number)) if call is not None else None
            if call is not None and shape is not None:
                yield place[call.path], shape, operator


def _turns_to(shape: tuple[int, ...], fx: FxSide, node: Node) -> bool:
    return _shape(fx, node, _MADE) == shape and _shape(fx, node, _GIVEN) == shape[::-1]


def _shape(fx: FxSide, node: Node, slot: Slot) -> tuple[int, ...] | None:
    ref = fx.slots[node].get(slot)
    header = SlotTensor(node, slot, ref).header if ref is not None else None
    return header.shape if header is not None else None
