"""What the calls of an FX dump were given that no call made: weights, prompts, caches.

FX writes no graph. A tensor that a call read is given where its file is a copy of no result before it, and
the arguments that it is tell what it is. What an operator made that was not dumped would look the same, so a
tensor that computation goes on with is given only where nothing before it had as many elements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ...dumps.base import Slot
from ...tensors.ref import TensorRef
from ...tensors.sampled import sampled
from ...topology.tree import Node
from .fed import strongest
from .fx_side import FxSide, not_a_tensor
from .lowering import fed_word, hands_on, target_of
from .outcome import SlotTensor, class_of

SlotKey = tuple[str, Slot]
_Copy = tuple[int, int]


def given_to_calls(side: FxSide) -> Mapping[SlotKey, str]:
    """The first argument that each tensor is that the run was given, and the word for what it is."""
    walk = _GivenTensors(side)
    for node in side.nodes:
        walk.call(node)
    return walk.found()


class _GivenTensors:
    def __init__(self, side: FxSide) -> None:
        self._side = side
        self._made: set[_Copy] = set()
        self._sizes: set[int] = set()
        self._first: dict[_Copy, SlotKey] = {}
        self._origins: dict[_Copy, _Copy] = {}
        self._words: dict[_Copy, set[str]] = defaultdict(set)
        self._tables: dict[str, int] = {}

    def found(self) -> Mapping[SlotKey, str]:
        known = {place: strongest(self._words[copy]) for copy, place in self._first.items()}
        return {place: word for place, word in known.items() if word}

    def call(self, node: Node) -> None:
        """The next call: what it read, then what it made."""
        slots = [(slot, ref) for slot, ref in self._side.slots[node].items() if not not_a_tensor(ref)]
        handed = None
        for slot, ref in slots:
            copy = sampled(ref.path) if slot.kind == "input" else None
            origin = self._origins.get(copy, copy) if copy is not None else None
            if origin is None or origin in self._made:
                continue
            self._first.setdefault(origin, (node.path, slot))
            if word := self._word(node, slot, ref):
                self._words[origin].add(word)
            if hands_on(node.op_type) and slot.index == (0,):
                handed = origin
        for slot, ref in slots:
            copy = sampled(ref.path) if slot.kind == "output" else None
            if copy is not None and copy not in self._first:
                self._make(copy, ref, handed)

    def _make(self, copy: _Copy, ref: TensorRef, handed: _Copy | None) -> None:
        if handed is not None:
            self._origins.setdefault(copy, handed)
            return
        self._made.add(copy)
        self._sizes.add(ref.header().numel)

    def _word(self, node: Node, slot: Slot, ref: TensorRef) -> str:
        header = SlotTensor(node, slot, ref).header
        number = slot.index[0]
        if header is None or not header.shape or not isinstance(number, int):
            return ""
        word = fed_word(node.op_type, number, len(header.shape), class_of(header) == "integer")
        if target_of(node.op_type) == "aten.embedding" and number == 0:
            self._tables[node.path] = header.shape[0]
        if word == "token ids" and self._tables.get(node.path, 0) < max(self._tables.values(), default=0):
            return "input"
        return "" if word == "input" and header.numel in self._sizes else word
