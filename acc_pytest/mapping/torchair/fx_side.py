"""The calls that FX ran at one step, looked up by the names that GE graphs use for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ...dumps.base import Rank, Slot, Step
from ...dumps.fx import FxDump
from ...errors import AccError
from ...tensors.numpy_file import stored_dtype
from ...tensors.ref import TensorRef
from ...topology.ge_graph import FxName
from ...topology.tree import Node
from .outcome import SlotTensor


class FxSide:
    """The calls of one group. A tensor without numbers is recognised by its header and never opened."""

    def __init__(self, dump: FxDump, step: Step, rank: Rank) -> None:
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
            return calls[0], f"{calls[0].op_type} was optimised to {name.target} (view->reshape)"
        if calls:
            return None, f"FX dumped several calls named {name.node}, none of target {name.target}"
        return None, f"FX dumped no call {name.node} ({name.target})"

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
            return None, f"FX dumped no output {name.index} of {name.node}"
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
