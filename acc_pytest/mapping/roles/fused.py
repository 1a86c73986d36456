"""What modules that engines fuse hand out: told by how many tensors they take and give, and by their shapes.

Serving engines keep names of Hugging Face for modules that do more: `act_fn` multiplies by the other half of
what it is handed, `rotary_emb` turns query and key, and a layer returns what it adds and what it adds it to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ...dumps.base import Slot
from ...topology.tree import Node
from ..tables import ModuleRole
from .export import Export

ShapeOf = Callable[[Node, Slot], "tuple[int, ...] | None"]
"""The shape of a tensor by its header; `None` where it is not known."""

_MULTIPLIES = ("*AndMul", "SwiGLU*", "Swiglu*", "GeGLU*")
_QUERY_AND_KEY = (frozenset({(1,), (2,)}), frozenset({("query",), ("key",)}), frozenset({("q",), ("k",)}))


@dataclass(frozen=True, slots=True)
class Fused:
    """What was dumped of a module: all its slots, and its outputs by number."""

    node: Node
    dumped: Sequence[Slot]
    flat: Sequence[Slot]
    shape: ShapeOf

    def of_kind(self, kind: str) -> list[Slot]:
        """Its inputs or its outputs."""
        return [slot for slot in self.dumped if slot.kind == kind]

    def multiplies(self) -> bool:
        """Whether an activation gives half of what it is handed: it multiplies one half by the other."""
        given, made = self._width(Slot("input", (0,))), self._width(Slot("output", (0,)))
        if given and made:
            return given == 2 * made
        if any(fnmatchcase(self.node.op_type, glob) for glob in _MULTIPLIES):
            return True
        return not given and bool(made) and 2 * made == self._packed_width()

    def _packed_width(self) -> int:
        """How wide what a neighbour packs is, where this is all that says what an activation is handed."""
        above = self.node.parent
        neighbours = above.children if above is not None else ()
        packs = [node for node in neighbours if node.path.rpartition(".")[2] == "gate_up_proj"]
        shape = self.shape(packs[0], Slot("output", (0,))) if packs else None
        return shape[-1] if shape else 0

    def turns(self) -> bool:
        """Whether a rotary module is handed query and key; where no input tells, by what it gives."""
        given = {slot.index for slot in self.dumped if slot.kind == "input"}
        if given:
            return any(names <= given for names in _QUERY_AND_KEY)
        shapes = [self.shape(self.node, slot) for slot in self.flat[:2]]
        known = [shape for shape in shapes if shape is not None]
        return len(known) == 2 and (known[0] != known[1] or len(known[0]) == 2)

    def result(self, slot: Slot, role: str, rule: ModuleRole) -> Export:
        """The export of the first output."""
        if rule.residual_beside and len(self.flat) > 1:
            other = self.flat[1]
            if self._alike(slot, other):
                return Export(self.node, slot, role, "split", companions=(Export(self.node, other, role),))
        return Export(self.node, slot, role, "repeated" if rule.repeats else "plain")

    def _alike(self, slot: Slot, other: Slot) -> bool:
        """Whether two outputs are as wide; one may have less rows, where tokens are split over ranks."""
        one, two = self.shape(self.node, slot), self.shape(self.node, other)
        return one is not None and two is not None and (len(one), one[-1:]) == (len(two), two[-1:])

    def _width(self, slot: Slot) -> int:
        shape = self.shape(self.node, slot) if slot in self.dumped else None
        return shape[-1] if shape else 0
