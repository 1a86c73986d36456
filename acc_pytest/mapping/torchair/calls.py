"""FX against FX: call by call, by the names of the nodes, as long as both graphs count them alike.

Names are numbered (`mul`, `mul_1`, ...), so where one side has a call more than the other, as another
decomposition makes, equal names need not be equal calls. Then the sequences of calls are aligned instead.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...base.reason import Reason
from ...dumps.base import Slot
from ...tensors.file_bytes import sampled
from ...tensors.ref import TensorRef
from ...topology.tree import Node
from .fx import FxSide, not_a_tensor
from .lowering import FED_FIRST, fed_word, hands_on, strongest, target_of
from .outcome import Matched, Outcome, SlotTensor, Unmatched, class_of

_CONTRACTIONS = ("mm", "conv", "attention", "linear", "einsum")
_PER_LAYER = 9
"""Products of a transformer's layer: query, key, value, scores, context, output, gate, up, down."""
_LEAST_RUN = 3
"""Calls in a row that must agree in target and shapes before an alignment is believed."""


class FxWithFx:
    """The mapping of one group."""

    def __init__(self, golden: FxSide, mine: FxSide) -> None:
        self._golden = golden
        self._mine = mine
        self._used: set[tuple[str, Slot]] = set()
        self._partners = dict(_partners(golden, mine))
        self._inputs = run_inputs(mine)
        self._golden_inputs = run_inputs(golden)

    def outcomes(self) -> Iterator[Outcome]:
        """One outcome for each tensor of mine, then one for each tensor of golden that was not matched."""
        products = 0
        for order, node in enumerate(self._mine.nodes):
            entry = self._partners.get(node)
            for number, (slot, ref) in enumerate(self._mine.slots[node].items()):
                why = not_a_tensor(ref)
                if entry is None or why:
                    reason = f"{slot}: {why}" if why else self._why(node)
                    yield Unmatched("mine", node, slot, reason)
                    continue
                partner, policy, basis = entry
                yield self._slot(
                    partner, node, slot, ref, policy, basis, (order, number), products // _PER_LAYER
                )
            segments = node.op_type.split(".")
            products += len(segments) > 1 and any(word in segments[1] for word in _CONTRACTIONS)
        yield from self._leftovers()

    def _slot(
        self,
        partner: Node,
        node: Node,
        slot: Slot,
        ref: TensorRef,
        policy: str,
        reason: str,
        place: tuple[int, ...],
        depth: int,
    ) -> Outcome:
        golden = self._golden.slots[partner].get(slot)
        if golden is None:
            return Unmatched("mine", node, slot, Reason("golden's {} has no {}", partner.path, slot))
        self._used.add((partner.path, slot))
        if why := not_a_tensor(golden):
            return Unmatched("mine", node, slot, Reason("golden's is {}", why))
        matched = Matched(
            SlotTensor(partner, slot, golden), SlotTensor(node, slot, ref), policy, reason, place, depth
        )
        word = self._inputs.get((node.path, slot), "")
        if not word or (partner.path, slot) not in self._golden_inputs:
            return matched
        return replace(matched, place=(FED_FIRST, *place), source=matched.mine.label, fed=word)

    def _why(self, node: Node) -> str:
        sides = (self._golden, self._mine)
        counts = [sum(call.op_type == node.op_type for call in side.nodes) for side in sides]
        if not counts[0]:
            return Reason("golden dumped no call of {}", node.op_type)
        if counts[0] != counts[1]:
            return Reason(
                "golden calls {} {} times, mine {} times, so that "
                "equal names need not be equal calls, and no run of calls around it agrees",
                node.op_type,
                counts[0],
                counts[1],
            )
        return Reason("golden dumped no call {} of {}", node.name, node.op_type)

    def _leftovers(self) -> Iterator[Outcome]:
        for node in self._golden.nodes:
            for slot, ref in self._golden.slots[node].items():
                if (node.path, slot) not in self._used:
                    why = not_a_tensor(ref)
                    yield Unmatched("golden", node, slot, why or "no call of mine is known to be this one")


def _partners(golden: FxSide, mine: FxSide) -> Iterator[tuple[Node, tuple[Node, str, str]]]:
    counts = [Counter(node.op_type for node in side.nodes) for side in (golden, mine)]
    alike = {target for target in counts[1] if counts[0][target] == counts[1][target]}
    renamed = _renamed(golden, mine)
    for node in mine.nodes:
        partner = golden.by_path.get(node.path)
        if partner is not None and node.op_type in alike:
            yield node, (partner, "name", "the call of this name")
        elif node.op_type not in counts[0] and node in renamed:
            kind = renamed[node].op_type
            renaming = Reason("the call of this name; {} on the golden side (view->reshape)", kind)
            yield node, (renamed[node], "name", renaming)
    if alike != set(counts[1]) or alike != set(counts[0]):
        for golden_node, mine_node in _aligned(golden, mine):
            if mine_node.op_type not in alike:
                reason = "same target and shapes at the same place; the sides number their calls differently"
                yield mine_node, (golden_node, "order", reason)


def _renamed(golden: FxSide, mine: FxSide) -> Mapping[Node, Node]:
    """Calls of one name and two targets that differ in the word for a view alone."""
    partners = {}
    views = ("view", "reshape", "_unsafe_view")
    by_name = {node.name: node for node in golden.nodes}
    for node in mine.nodes:
        partner = by_name.get(node.name)
        if partner is None or partner.op_type == node.op_type:
            continue
        if all(any(f".{view}." in call.op_type for view in views) for call in (node, partner)):
            partners[node] = partner
    return partners


def _aligned(golden: FxSide, mine: FxSide) -> Iterator[tuple[Node, Node]]:
    """Calls in runs that agree in target and shapes on both sides, in one order."""
    golden_calls, mine_calls = ([_word(side, node) for node in side.nodes] for side in (golden, mine))
    matcher = difflib.SequenceMatcher(None, golden_calls, mine_calls, autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.size >= _LEAST_RUN:
            for step in range(block.size):
                yield golden.nodes[block.a + step], mine.nodes[block.b + step]


def _word(side: FxSide, node: Node) -> tuple[str, Sequence[tuple[str, tuple[int, ...]]]]:
    """The key that two calls must have in common: the target, and the slots with their shapes."""
    shapes = []
    for slot, ref in side.slots[node].items():
        header = SlotTensor(node, slot, ref).header
        shapes.append((str(slot), header.shape if header is not None else (-1,)))
    return node.op_type, tuple(shapes)


SlotKey = tuple[str, Slot]
_Copy = tuple[int, int]


def run_inputs(side: FxSide) -> Mapping[SlotKey, str]:
    """The first argument that each input of the run is, with the kind of input."""
    walk = _RunInputs(side)
    for node in side.nodes:
        walk.call(node)
    return walk.kinds()


class _RunInputs:
    def __init__(self, side: FxSide) -> None:
        self._side = side
        self._results: set[_Copy] = set()
        self._sizes: set[int] = set()
        self._first: dict[_Copy, SlotKey] = {}
        self._origins: dict[_Copy, _Copy] = {}
        self._kinds: dict[_Copy, set[str]] = defaultdict(set)
        self._tables: dict[str, int] = {}

    def kinds(self) -> Mapping[SlotKey, str]:
        kinds = {place: strongest(self._kinds[copy]) for copy, place in self._first.items()}
        return {place: word for place, word in kinds.items() if word}

    def call(self, node: Node) -> None:
        """The next call: what it read, then what it made."""
        slots = [(slot, ref) for slot, ref in self._side.slots[node].items() if not not_a_tensor(ref)]
        handed = None
        for slot, ref in slots:
            copy = sampled(ref.path) if slot.kind == "input" else None
            origin = self._origins.get(copy, copy) if copy is not None else None
            if origin is None or origin in self._results:
                continue
            self._first.setdefault(origin, (node.path, slot))
            if word := self._word(node, slot, ref):
                self._kinds[origin].add(word)
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
        self._results.add(copy)
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
