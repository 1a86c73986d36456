"""One dump at one step: which slots its nodes have, and the tensors in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..dumps.base import Dump, Rank, Slot, Step
from ..dumps.modules import ModuleDump
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node
from .roles.export import Export


class DumpStep:
    """One dump at one step: slots and references of its nodes, remembered.

    `beside` is the dump that it is held against. Calls of functions that chose are left out where that has
    not the same: they were dumped unasked, to tell what both chose.
    """

    def __init__(self, dump: Dump, step: Step, beside: Dump | None = None) -> None:
        self.dump = dump
        self._left_out = frozenset[str]() if beside is None else _choices(dump) - _choices(beside)
        self.step = step
        self.tree = step.tree
        self._slots: dict[tuple[int, Node], Mapping[Slot, TensorRef]] = {}
        self._holds: dict[int, bool] = {}

    def slots(self, node: Node, rank: Rank | None = None) -> Mapping[Slot, TensorRef]:
        """The dumped tensors of a node on a rank (unless told, the first that dumped any)."""
        if rank is None:
            return next(filter(None, (self.slots(node, each) for each in self.dump.ranks)), {})
        key = (rank.index, node)
        if key not in self._slots:
            known = node.path not in self._left_out
            self._slots[key] = self.dump.tensors(self.step, rank, node) if known else {}
        return self._slots[key]

    def inventory(self) -> tuple[tuple[Slot, ...], ...]:
        """What was dumped, node by node: steps with equal ones are matched alike."""
        return tuple(tuple(self.slots(node)) for node in self.tree.walk())

    def holds(self, rank: Rank) -> bool:
        """Whether anything at all was dumped on a rank."""
        if rank.index not in self._holds:
            dumped = (self.dump.tensors(self.step, rank, node) for node in self.tree.walk())
            self._holds[rank.index] = any(dumped)
        return self._holds[rank.index]

    def missing(self, export: Export, ranks: Sequence[Rank]) -> list[str]:
        """The names of the ranks among `ranks` that did not dump an export."""
        return [rank.name for rank in ranks if export.slot not in self.slots(export.node, rank)]

    def partial(self, export: Export, ranks: Sequence[Rank]) -> bool:
        """Whether the dump says that what several ranks hold of an export are summands of it."""
        if len(ranks) < 2 or not isinstance(self.dump, ModuleDump):
            return False
        return self.dump.is_partial(self.step, ranks[0], export.node, export.slot)

    def refs(self, export: Export, ranks: Sequence[Rank]) -> tuple[TensorRef, ...]:
        """The references of an export on every rank given; empty when one of them is missing."""
        refs = [self.slots(export.node, rank).get(export.slot) for rank in ranks]
        return tuple(ref for ref in refs if ref is not None) if all(refs) else ()


def _choices(dump: Dump) -> frozenset[str]:
    return dump.choices(dump.ranks[0]) if isinstance(dump, ModuleDump) else frozenset()


OnRanks = tuple[DumpStep, Sequence[Rank]]
"""One side, and the ranks of it that are meant."""


def width_of(export: Export, side: OnRanks) -> int:
    """The last dimension of an export on the first of the ranks; 0 where it is not known."""
    refs = side[0].refs(export, side[1][:1])
    header = readable(refs[0]) if refs else None
    return header.shape[-1] if header is not None and header.shape else 0
