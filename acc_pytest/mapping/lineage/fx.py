"""The dataflow of a step of FX, where every call dumps its arguments.

FX writes no graph, but an argument with the bytes of an earlier result came from there. An argument that no
call wrote is an input of the graph: a weight, a prompt, a cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...dumps.base import Rank, Slot, Step
from ...dumps.torchair import AnyDump
from ...tensors.file_bytes import sampled
from ...tensors.ref import TensorRef
from .parents import Flow, SlotName, Upstream

Copy = tuple[int, int]
"""The result of `sampled` for a file."""


def fx_flow(dump: AnyDump, step: Step, rank: Rank, places: Iterable[SlotName]) -> Flow:
    """The flow above `places` of the calls of one step; of several calls that wrote the same bytes the latest
    counts."""
    walk = _CopyTracker(frozenset(places))
    for node in dump.nodes(step, rank):
        walk.call(node.path, dump.tensors(step, rank, node))
    return Flow(walk.upstream, frozenset())


class _CopyTracker:
    """A walk through calls in the order of time. `_by_copy` has the places that stand for a tensor."""

    def __init__(self, compared: frozenset[SlotName]) -> None:
        self.upstream: dict[SlotName, Upstream] = {}
        self._compared = compared
        self._by_copy: dict[Copy, tuple[SlotName, ...]] = {}

    def call(self, path: str, tensors: Mapping[Slot, TensorRef]) -> None:
        """Add the next call, with its arguments and results."""
        read: dict[SlotName, None] = {}
        for kind in ("input", "output"):
            for slot, ref in tensors.items():
                if slot.kind != kind:
                    continue
                place, copy = (path, str(slot)), sampled(ref.path)
                source = tuple(read)
                if kind == "input":
                    source = self._by_copy.get(copy, ()) if copy is not None else ()
                places = self._places(place, source)
                if copy is not None and (kind == "output" or not source):
                    self._by_copy[copy] = places
                if kind == "input":
                    read.update(dict.fromkeys(places))

    def _places(self, place: SlotName, source: tuple[SlotName, ...]) -> tuple[SlotName, ...]:
        """The places that stand for a tensor: its own where it is compared, else those of its source."""
        if place not in self._compared:
            return source
        self.upstream[place] = Upstream(dict.fromkeys(source, False))
        return (place,)
