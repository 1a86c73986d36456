"""The dataflow of a step of FX, where every call dumps what it was given.

FX writes no graph, but an argument with the bytes of an earlier result came from there. One that no call
wrote is an input of the graph: a weight, a prompt, a cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...dumps.base import Rank, Slot, Step
from ...dumps.fx import FxDump
from ...tensors.ref import TensorRef
from ...tensors.sampled import sampled
from .nearest import Above, SlotName
from .steps import Flow

Copy = tuple[int, int]
"""What `sampled` says of a file."""


def fx_flow(dump: FxDump, step: Step, rank: Rank, places: Iterable[SlotName]) -> Flow:
    """What is above `places` of the calls of one step; of several calls that wrote the same bytes the
    latest."""
    walk = _CopyTracker(frozenset(places))
    for node in dump.nodes(step, rank):
        walk.call(node.path, dump.tensors(step, rank, node))
    return Flow(walk.above, frozenset())


class _CopyTracker:
    """Goes through calls in the order of time. `_seen` says which places stand for a tensor that was met."""

    def __init__(self, wanted: frozenset[SlotName]) -> None:
        self.above: dict[SlotName, Above] = {}
        self._wanted = wanted
        self._seen: dict[Copy, tuple[SlotName, ...]] = {}

    def call(self, path: str, tensors: Mapping[Slot, TensorRef]) -> None:
        """The next call, with its arguments and results."""
        read: dict[SlotName, None] = {}
        for kind in ("input", "output"):
            for slot, ref in tensors.items():
                if slot.kind != kind:
                    continue
                place, copy = (path, str(slot)), sampled(ref.path)
                source = tuple(read)
                if kind == "input":
                    source = self._seen.get(copy, ()) if copy is not None else ()
                shown = self._shown(place, source)
                if copy is not None and (kind == "output" or not source):
                    self._seen[copy] = shown
                if kind == "input":
                    read.update(dict.fromkeys(shown))

    def _shown(self, place: SlotName, source: tuple[SlotName, ...]) -> tuple[SlotName, ...]:
        """The places that stand for a tensor: its own where it is compared, else those of its source."""
        if place not in self._wanted:
            return source
        self.above[place] = Above(dict.fromkeys(source, False))
        return (place,)
