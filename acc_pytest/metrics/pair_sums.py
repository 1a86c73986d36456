"""Sums of the blocks of a pair so far."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from .block_result import BlockResult
from .measurement import NonFinite
from .sides import SideTotals
from .slices import SliceSums
from .totals import Totals

_COUNTED = tuple(each.name for each in fields(NonFinite))


@dataclass(slots=True)
class PairSums:
    """`identical` as long as no block had other bytes; `slices` only where rows and channels are measured.

    `counts` are the fields of `NonFinite`, `first_disagreeing` is the flat index of the first position whose
    non-finite values disagree.
    """

    identical: bool
    slices: SliceSums | None
    totals: Totals = field(default_factory=Totals)
    sides: tuple[SideTotals, SideTotals] = field(default_factory=lambda: (SideTotals(), SideTotals()))
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))
    first_disagreeing: int | None = None

    def add(self, block: BlockResult) -> None:
        """Add a block; they come in the order of their elements."""
        self.identical = self.identical and block.identical
        for totals, side in zip(self.sides, block.sides):
            if side is not None:
                totals.add(side)
        for name, count in block.counts.items():
            self.counts[name] += count
        if block.first_disagreeing >= 0 and self.first_disagreeing is None:
            self.first_disagreeing = block.start + block.first_disagreeing
        if block.compared is not None:
            self.totals.add(block.compared, block.start)
        if self.slices is not None and block.slices is not None:
            self.slices.add(block.slices)
