"""A dump at a step: the slots of its nodes, and the tensors in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..dumps.base import Dump, Rank, Slot, Step
from ..dumps.modules import ModuleDump
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node
from .roles.export import Export


class DumpStep:
    """A dump at a step: slots and references of its nodes, cached.

    `counterpart` is the dump that it is compared with. Calls of functions that chose are omitted where that
    dump has other ones: they were dumped unasked, to compare the choices of both.
    """

    def __init__(self, dump: Dump, step: Step, counterpart: Dump | None = None) -> None:
        self.dump = dump
        self._omitted = frozenset[str]() if counterpart is None else _choices(dump) - _choices(counterpart)
        self.step = step
        self.tree = step.tree
        self._slots: dict[tuple[int, Node], Mapping[Slot, TensorRef]] = {}
        self._holds: dict[int, bool] = {}

    def slots(self, node: Node, rank: Rank | None = None) -> Mapping[Slot, TensorRef]:
        """The dumped tensors of a node on a rank (by default the first that dumped any)."""
        if rank is None:
            return next(filter(None, (self.slots(node, candidate) for candidate in self.dump.ranks)), {})
        key = (rank.index, node)
        if key not in self._slots:
            included = node.path not in self._omitted
            self._slots[key] = self.dump.tensors(self.step, rank, node) if included else {}
        return self._slots[key]

    def inventory(self) -> tuple[tuple[Slot, ...], ...]:
        """The dumped slots, node by node: steps with equal inventories are matched alike."""
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
        """Whether the dump says that the tensors of several ranks are summands of an export."""
        if len(ranks) < 2 or not isinstance(self.dump, ModuleDump):
            return False
        return self.dump.is_partial(self.step, ranks[0], export.node, export.slot)

    def refs(self, export: Export, ranks: Sequence[Rank]) -> tuple[TensorRef, ...]:
        """The references of an export on each of the `ranks`; empty when one of them is missing."""
        refs = [self.slots(export.node, rank).get(export.slot) for rank in ranks]
        return tuple(ref for ref in refs if ref is not None) if all(refs) else ()


def _choices(dump: Dump) -> frozenset[str]:
    return dump.choices(dump.ranks[0]) if isinstance(dump, ModuleDump) else frozenset()


OnRanks = tuple[DumpStep, Sequence[Rank]]
"""A side, and ranks of it."""


def width_of(export: Export, side: OnRanks) -> int:
    """The last dimension of an export on the first of the ranks; 0 where it is not known."""
    refs = side[0].refs(export, side[1][:1])
    header = readable(refs[0]) if refs else None
    return header.shape[-1] if header is not None and header.shape else 0
