"""Inputs that a module had overwritten before msprobe looked at them.

Up to release 26.1 the inputs of a module were taken when it had run. Where it works in place (fused norms, a
layer that hands its buffers on), its inputs then are its results. Nothing in the files says which release
wrote them, but what a call was given was there before it: an input that nobody saw before the call began, and
that something within the call handed out, is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..tensors.msprobe_records import CallTensor, RecordedTensor
from ..tensors.stored_crc import stored_crc
from .msprobe_names import CallName

_HANDED_ON = ("Identity", "Dropout", "DropPath")
"""Modules that give what they got."""
_INPUTS = frozenset({"input_args", "input_kwargs"})


class TimedCall(NamedTuple):
    """A forward call and when it began; calls come in the order in which they ended."""

    name: CallName
    began: int
    entries: tuple[CallTensor, ...]


Print = tuple[object, ...]


def fingerprint(tensor: RecordedTensor) -> Print | None:
    """A fingerprint: equal for equal tensors and hardly ever for others; `None` where too little was
    recorded."""
    if tensor.digest:
        return tensor.dtype, tensor.shape, tensor.digest
    numbers = [value for value in tensor.stated if isinstance(value, float) and math.isfinite(value)]
    if len(numbers) < 4 or numbers[0] == numbers[1]:
        return None
    return tensor.dtype, tensor.shape, *numbers


def print_of(tensor: RecordedTensor, file: str) -> Print | None:
    """A fingerprint for looking at one run alone: where mean and norm were not computed (`precision: high`,
    float64) that of the bytes in its `file`, else of the largest and the smallest value.
    """
    mark = fingerprint(tensor)
    ends = [value for value in tensor.stated[:2] if isinstance(value, float) and math.isfinite(value)]
    if mark is not None or len(set(ends)) < 2 or tensor.stated[2:] != (None, None):
        return mark
    stored = stored_crc(file) if file else None
    return (tensor.dtype, tensor.shape, *(ends if stored is None else stored))


@dataclass(slots=True)
class _History:
    """The begin of the first call that handed out a tensor, and tensors that came in without one."""

    out: dict[Print, int] = field(default_factory=dict)
    came_in: set[Print] = field(default_factory=set)

    def hand_out(self, prints: Iterable[Print | None], began: int) -> None:
        for mark in prints:
            if mark is not None:
                self.out[mark] = min(self.out.get(mark, began), began)

    def come_in(self, prints: Iterable[Print | None]) -> None:
        """Inputs that nobody handed out were there."""
        self.came_in.update(mark for mark in prints if mark is not None and mark not in self.out)

    def overwritten(self, mark: Print | None, began: int) -> bool:
        """Whether something within the call that began then was the first to hand this out."""
        if mark is None or mark in self.came_in or mark not in self.out:
            return False
        return began <= self.out[mark]


def overwritten_inputs(
    calls: Sequence[TimedCall], mark_of: Callable[[CallTensor], Print | None]
) -> list[frozenset[str]]:
    """The members of each call that are inputs it had overwritten. `mark_of` tells tensors apart."""
    history = _History()
    overwritten: list[frozenset[str]] = []
    for call in calls:
        inputs = {entry.member: mark_of(entry) for entry in call.entries if entry.part in _INPUTS}
        outputs = [mark_of(entry) for entry in call.entries if entry.part == "output"]
        lost: frozenset[str] = frozenset()
        if not call.name.is_module or any(word in call.name.kind for word in _HANDED_ON):
            history.come_in(inputs.values())
            history.hand_out(outputs, call.began)
        else:
            history.hand_out(outputs, call.began)
            lost = frozenset(name for name, mark in inputs.items() if history.overwritten(mark, call.began))
            history.come_in(mark for name, mark in inputs.items() if name not in lost)
        overwritten.append(lost)
    return overwritten
