"""The calls of modules in one step of a dump of mine, with what each was given and gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...capture.torch_hooks.values import Key
from ...dumps.base import Rank, Step
from ...dumps.modules import ModuleDump
from ...tensors.ref import TensorRef
from ...topology.tree import Node

BARE: Key = (0,)
"""The key of a result that is one tensor, in dumps."""


@dataclass(eq=False, slots=True)
class ModuleCall:
    """One call of a module of mine: the tensors that it was given and gave by key, the call that it ran in,
    and the dumped calls that ran directly in it, in their order.

    `module` is the name of its module, which may be called several times in a step. `bare`: its result is
    known to be one tensor and nothing else.
    """

    path: str
    module: str
    inputs: Mapping[Key, TensorRef]
    outputs: Mapping[Key, TensorRef]
    bare: bool
    inside: ModuleCall | None = None
    called: list[ModuleCall] = field(default_factory=list)


def module_calls(dump: ModuleDump, step: Step, rank: Rank) -> dict[str, ModuleCall]:
    """The calls of a step on a rank, by the paths of their nodes."""
    recorded_calls = {event.call.node.path: event.call for event in dump.calls(step).events}
    calls: dict[str, ModuleCall] = {}
    for path, recorded in recorded_calls.items():
        tensors = dump.tensors(step, rank, recorded.node)
        inputs = {slot.index: ref for slot, ref in tensors.items() if slot.kind == "input"}
        outputs = {slot.index: ref for slot, ref in tensors.items() if slot.kind == "output"}
        bare = tuple(outputs) == (BARE,) and dump.is_bare(outputs[BARE])
        calls[path] = ModuleCall(path, _module_of(recorded.node), inputs, outputs, bare)
    for event in dump.calls(step).events:
        around = event.call.inside
        if not event.ends and around is not None:
            call = calls[event.call.node.path]
            call.inside = calls[around.node.path]
            call.inside.called.append(call)
    return calls


def _module_of(node: Node) -> str:
    """`root.mlp` of a later call `root.mlp.call1`."""
    stem, _, last = node.path.rpartition(".")
    return stem if stem and last.startswith("call") and last[4:].rstrip("_").isdecimal() else node.path
