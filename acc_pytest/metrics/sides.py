"""Record of each side by itself: extrema and mean of its finite elements."""

from __future__ import annotations

from dataclasses import dataclass

from .scaled import binary_sum, mean


@dataclass(slots=True)
class SideSums:
    """Finite elements of one side of a block: their count, extrema and sum (times 2**exponent)."""

    count: int
    max: float
    min: float
    total: float = 0.0
    exponent: int = 0

    @property
    def peak(self) -> float:
        """The largest absolute value."""
        return max(abs(self.max), abs(self.min))


class SideTotals:
    """One side of the pair, summed over blocks."""

    def __init__(self) -> None:
        self.max: float | None = None
        self.min: float | None = None
        self._count = 0
        self._total = binary_sum()

    def add(self, block: SideSums) -> None:
        """Add the finite elements of one block, at least one."""
        self.max = block.max if self.max is None else max(self.max, block.max)
        self.min = block.min if self.min is None else min(self.min, block.min)
        self._count += block.count
        self._total.add(block.total, block.exponent)

    def mean(self) -> float | None:
        """Mean of the finite elements, `None` without any."""
        return mean(self._total, self._count) if self._count else None
