"""The calls of a run as its dump shows them: which ran inside which, and which slots held the same tensor.

A call is a module, a function or an operator that ran. Its inputs existed when it began, its outputs when it
ended. Two slots held the same tensor where their bytes are equal, or where one is a view of the storage of
the other that nothing wrote to in between. Both are evidence of the dump: no tensor is read for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..topology.tree import Node
from .base import Slot
from .torch_manifest import SavedTensor


class NodeSlot(NamedTuple):
    """A slot of a node in one step."""

    path: str
    slot: Slot


@dataclass(frozen=True, eq=False, slots=True)
class NodeCall:
    """A node that ran, the call that it ran in (`None` for the outermost), and its slots that were dumped."""

    node: Node
    inside: NodeCall | None
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


class CallEvent(NamedTuple):
    """A call begins, or ends."""

    call: NodeCall
    ends: bool


class Origin(NamedTuple):
    """The first place that held a tensor, and how the later one lies in it (empty: the very same bytes)."""

    place: NodeSlot
    view: tuple[object, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Calls:
    """The calls of one step on one rank in the order of time.

    `dtypes` has every place that was dumped (empty where its dtype is not known), `origins` those whose
    tensor was dumped before: where it was seen first.
    """

    events: tuple[CallEvent, ...]
    dtypes: Mapping[NodeSlot, str]
    origins: Mapping[NodeSlot, Origin]

    def inputs(self) -> dict[str, frozenset[Slot]]:
        """The inputs of each call that were dumped, by the path of its node."""
        return {event.call.node.path: frozenset(event.call.inputs) for event in self.events}


def trace_calls(
    nodes: Sequence[Node],
    began: Callable[[Node], tuple[int, int]],
    slots: Callable[[Node], Sequence[Slot]],
    saved: Callable[[Node, Slot], SavedTensor | None],
    ended: Callable[[Node], int] = lambda node: node.order,
) -> Calls:
    """The calls of `nodes`, each of which ran once.

    A call that began after another and ended before it ran inside it.
    """
    events: list[CallEvent] = []
    running: list[NodeCall] = []
    for node in sorted(nodes, key=began):
        while running and ended(running[-1].node) < ended(node):
            events.append(CallEvent(running.pop(), True))
        node_slots = slots(node)
        call = NodeCall(
            node,
            running[-1] if running else None,
            tuple(slot for slot in node_slots if slot.kind == "input"),
            tuple(slot for slot in node_slots if slot.kind == "output"),
        )
        running.append(call)
        events.append(CallEvent(call, False))
    events += [CallEvent(call, True) for call in reversed(running)]
    origins = _Origins()
    dtypes: dict[NodeSlot, str] = {}
    for call, ends in events:
        for slot in call.outputs if ends else call.inputs:
            place, tensor = NodeSlot(call.node.path, slot), saved(call.node, slot)
            dtypes[place] = tensor.dtype if tensor is not None else ""
            if tensor is not None:
                origins.add(place, tensor)
    return Calls(tuple(events), dtypes, origins.origins)


class _Origins:
    """The tensors that were met, by their bytes and by their storage."""

    def __init__(self) -> None:
        self.origins: dict[NodeSlot, Origin] = {}
        self._by_bytes: dict[tuple[int, str, int], NodeSlot] = {}
        self._by_storage: dict[tuple[int, int, str], list[tuple[NodeSlot, _Stretch]]] = {}

    def add(self, place: NodeSlot, tensor: SavedTensor) -> None:
        """The next tensor in the order of time."""
        if tensor.crc32 is not None and tensor.numel is not None:
            first = self._by_bytes.setdefault((tensor.crc32, tensor.dtype, tensor.numel), place)
            if first != place:
                self.origins[place] = Origin(first)
                return
        stretch = _Stretch.of(tensor)
        if stretch is None or tensor.storage is None or tensor.version is None:
            return
        stored = self._by_storage.setdefault((tensor.storage, tensor.version, tensor.dtype), [])
        for first, container in stored:
            if container.holds(stretch):
                self.origins[place] = Origin(
                    first, (stretch.offset - container.offset, stretch.shape, stretch.stride)
                )
                return
        stored.append((place, stretch))


class _Stretch(NamedTuple):
    """The place of a tensor in its storage, in elements."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    end: int

    @classmethod
    def of(cls, tensor: SavedTensor) -> _Stretch | None:
        offset, shape, stride = tensor.offset, tensor.shape, tensor.stride
        if offset is None or shape is None or stride is None or len(shape) != len(stride):
            return None
        span = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride))
        return cls(offset, shape, stride, offset + span)

    def holds(self, stretch: _Stretch) -> bool:
        """Whether every element of `stretch` is one of this tensor's, seen in another way.

        Seen in the same way it would have the same bytes, unless somebody wrote to it.
        """
        is_dense = self.end - self.offset == math.prod(self.shape)
        inside = self.offset <= stretch.offset and stretch.end <= self.end
        return is_dense and inside and self[:3] != stretch[:3]
