"""Calls that files of SGLang's dumper show, and when each began and ended.

A module begins with its first input and ends with its last output. Where the tool wrote none (a filter,
values that it does not look at), it began before all that ran in it, and ended after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..tensors.ref import TensorRef
from ..topology.torch_modules import UNKNOWN_TYPE
from .base import Slot
from .recorded import ROOT, Record

_APART = frozenset({"backward", "recompute", "parameters_grad"})


@dataclass(slots=True, eq=False)
class SglangCall:
    """One call of a node: its slots, the places in time of its first and last file, what it ran in."""

    path: str
    number: int
    slots: dict[Slot, TensorRef] = field(default_factory=dict)
    began: int = 0
    ended: int = 0
    inside: SglangCall | None = None
    op_type: str = UNKNOWN_TYPE

    @property
    def apart(self) -> bool:
        """Whether it is a gradient, or ran again to get one: when the model had run."""
        return self.path.rpartition(".")[2] in _APART

    @property
    def node(self) -> str:
        """The path of its node."""
        path = f"{ROOT}.{self.path}" if self.path else ROOT
        return f"{path}.call{self.number}" if self.number else path

    def record(self) -> Record:
        """The same for a dump."""
        inside = self.inside.node if self.inside is not None else None
        return Record(
            self.path, self.op_type, self.slots, self.began, self.ended, self.number, self.apart, inside
        )

    def holds(self, kind: Literal["input", "output"]) -> bool:
        """Whether an input or output of it was dumped."""
        return any(slot.kind == kind for slot in self.slots)


def in_order(calls: Iterable[SglangCall]) -> list[SglangCall]:
    """The calls in the order in which they began, each with its places in time."""
    found = sorted(calls, key=lambda call: call.began)
    for call, around in _open(found, "output"):
        around.ended = max(around.ended, call.ended)
    for call, around in _open(found[::-1], "input"):
        around.began = min(around.began, call.began)
    # Of two that end or begin with one file the longer one is around the other.
    for place, call in enumerate(sorted(found, key=lambda call: (call.ended, -call.began))):
        call.ended = place
    found.sort(key=lambda call: (call.began, -call.ended))
    for place, call in enumerate(found):
        call.began = place
    return found


def _open(
    calls: Sequence[SglangCall], kind: Literal["input", "output"]
) -> Iterator[tuple[SglangCall, SglangCall]]:
    """Each call with the modules around it that have no tensors of a kind, in the order of `calls`.

    What is inside of a call is met before another call of its module.
    """
    open_modules: dict[str, SglangCall] = {}
    for call in calls:
        if call.apart:
            continue
        for path in _modules_around(call):
            if path in open_modules and open_modules[path] is not call:
                yield call, open_modules[path]
        if call.op_type == UNKNOWN_TYPE and not call.holds(kind):
            open_modules[call.path] = call
        else:
            open_modules.pop(call.path, None)


def _modules_around(call: SglangCall) -> Iterator[str]:
    """The paths of the modules that a call is in, the model first."""
    if call.inside is None and not call.path:
        return
    yield ""
    path = call.inside.path if call.inside is not None else call.path.rpartition(".")[0]
    yield from (path[:place] for place, sign in enumerate(path) if sign == ".")
    if path:
        yield path
