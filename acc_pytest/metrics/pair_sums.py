"""Sums of the blocks of a pair so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .measurement import NonFinite, SliceErrors
from .totals import BlockSums, Totals, binary_sum, mean

if TYPE_CHECKING:
    from .double_block import Doubles


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


# Ranges of elements that are summed at once.


BLOCK = 128 * 1024
"""Most elements of a block of float32: four buffers of this size stay near the core."""
DOUBLE_BLOCK = 15 * 1024
"""Most elements of a block of float64. Arrays of 128 KiB and more malloc may get from the system anew each
time, which takes three times as long as to fill and sum them."""


def ranges(begin: int, end: int, channels: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of up to `size` elements: whole rows, or parts of one row where a row is longer than that.

    `begin` starts a row, or all lies within one.
    """
    if channels <= size:
        step = size // channels * channels
        yield from ((start, min(start + step, end)) for start in range(begin, end, step))
        return
    for row in range(begin, end, channels):
        last = min(row + channels, end)
        yield from ((start, min(start + size, last)) for start in range(row, last, size))


# Result of one block of a pair, whichever kernel summed it.


@dataclass(slots=True)
class BlockResult:
    """The block from the flat position `start`.

    A side is `None` where nothing of it was finite, `compared` where nothing was on both. `identical` is
    whether both sides have the same bytes. `counts` are those of `NonFinite` that are not 0,
    `first_disagreeing` is the place in the block of the first non-finite value that the other side does not
    have, -1 without one. `slices` are there where rows and channels are measured.
    """

    start: int
    sides: tuple[SideSums | None, SideSums | None]
    compared: BlockSums | None
    identical: bool
    counts: dict[str, int] = field(default_factory=dict)
    first_disagreeing: int = -1
    slices: BlockSlices | None = None


# Record of each side by itself: extrema and mean of its finite elements.


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


# Errors of single rows and channels: what a norm of the whole tensor hides behind its largest values.
#
# A row is a vector along the last dimension (of most tensors one token), a channel all elements of one index
# of the last dimension. With g golden, d mine - golden and norms taken over one row or channel:
#
#     error = |d| / max(|g|, median over all rows or channels of |g|)
#
# The median keeps rows that are nearly zero from having huge errors. The bias of one row (or channel, or the
# whole) is the projection of the error on golden, sum(g*d) / sum(g*g): 0.01 where mine is 1 % too large.
# Rounding is nearly orthogonal to golden, a wrong scale is not.


FEWEST = 8
"""Rows and channels of which quantiles say something: the smallest and the largest of fewer have the median
between them less often than 99 times in 100 (1 - 2 / 2^8)."""
MOST = 1 << 22
"""Rows, and channels, of which sums are kept: three float64 of each."""
RANKED = 4096
"""Rows, and channels, of which quantiles are taken: of more, as many at even distances. That moves a median
by a standard error of 0.8 % of the ranks, 0.5 / sqrt(4096), and the ninth decile by 0.5 %."""
_SORTED = 256 if np.__version__.startswith("1.") else RANKED
"""So many are sorted sooner than parted: by NumPy 2, which sorts with vectors, all that are ranked."""
BULK = 4.0
"""Channels of up to this many times the median norm are the bulk. The norm of 8
normal values is beyond 2.1 times its median once in 10,000 times: none is beyond it by chance."""
_NORMAL_QUARTILES = 1.349
"""The distance of the quartiles of a normal distribution, in standard deviations."""
_MEDIAN = math.sqrt(math.pi / 2)
"""The standard error of a median, in that of a mean."""


@dataclass(slots=True)
class BlockSlices:
    """Sums of g*g, g*d and d*d of one block: [3, rows] from `first`, [3, channels] from `start`."""

    first: int
    start: int
    rows: NDArray[Any]
    channels: NDArray[Any]

    @property
    def total(self) -> tuple[float, float, float]:
        """The sums over the block."""
        gg, gd, dd = np.add.reduce(self.rows, 1, dtype=np.float64).tolist()
        return gg, gd, dd


GAP = 8.0
"""How many times the errors of all others those of the rows are that are called off. The norm of 8 normal
values is 8 times below its median once in two million times, and never so far above."""
_NO_ERROR = 2.0**-52
_RUNS_NAMED = 4


class SliceSums:
    """Sums of g*g, g*d and d*d by row and by channel. A block is whole rows, or a part of one."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape)
        self._rows = np.zeros((3, math.prod(shape[:-1])))
        self._channels = np.zeros((3, shape[-1]))

    @staticmethod
    def possible(shape: Sequence[int]) -> bool:
        """Whether tensors of this shape have enough rows and channels, and not too many."""
        if len(shape) < 2:
            return False
        return FEWEST <= shape[-1] <= MOST and FEWEST <= math.prod(shape[:-1]) <= MOST

    def width(self, elements: int) -> int:
        """Channels of a block of so many `elements`."""
        return min(self._shape[-1], elements)

    def of_sums(self, start: int, rows: NDArray[Any], channels: NDArray[Any]) -> BlockSlices:
        """The sums of the block from the flat position `start`."""
        return BlockSlices(*divmod(start, self._shape[-1]), rows, channels)

    def of_positions(
        self, start: int, elements: int, at: NDArray[np.int64], golden: Doubles, difference: Doubles
    ) -> BlockSlices:
        """The sums of some positions `at` in a block, which ascend; both sides are given there alone."""
        block = self.zeros(start, elements)
        rows, channels = np.divmod(at, block.channels.shape[1])
        products = (golden * golden, golden * difference, difference * difference)
        for of_rows, of_channels, values in zip(block.rows, block.channels, products):
            of_rows += np.bincount(rows, values, minlength=of_rows.size)
            of_channels += np.bincount(channels, values, minlength=of_channels.size)
        return block

    def zeros(self, start: int, elements: int) -> BlockSlices:
        """Sums of no positions in a block of so many `elements`, to be filled in."""
        channels = self.width(elements)
        rows = elements // channels
        return self.of_sums(start, np.zeros((3, rows)), np.zeros((3, channels)))

    def add(self, block: BlockSlices) -> None:
        """Count a block."""
        self._rows[:, block.first : block.first + block.rows.shape[1]] += block.rows
        self._channels[:, block.start : block.start + block.channels.shape[1]] += block.channels

    def result(self, worst: int, largest: float) -> SliceErrors:
        """The errors; the largest absolute one is at the flat position `worst`, -1 where there is none."""
        size, projected, error = np.add.reduce(self._rows, 1).tolist()
        if not 0 < size < math.inf:
            return SliceErrors()
        rows, channels = _Errors(*self._rows), _Errors(*self._channels)
        three = (projected / size, rows.bias, channels.bias)
        agree = min(three) > 0 or max(three) < 0
        index = ", ".join(str(int(i)) for i in np.unravel_index(rows.worst_at, self._shape[:-1]))
        return SliceErrors(
            worst_row_error=rows.worst,
            worst_row=f"[{index}, :]",
            rows_off=_ranges_of(rows.apart, self._shape[-2]),
            row_error_p90=rows.ninth_decile,
            typical_row_error=rows.median,
            worst_channel_error=channels.worst,
            worst_channel=f"[..., {channels.worst_at}]",
            channel_error_p90=channels.ninth_decile,
            bulk_error=self._bulk_error(channels.floor),
            bias=min(three, key=abs) if agree else 0.0,
            bias_deviation=max(rows.bias_deviation, channels.bias_deviation),
            neighbour_error=self._neighbours(worst, largest, error) if worst >= 0 else 0.0,
            last_row_error=self._last_row_error(),
        )

    def _last_row_error(self) -> float | None:
        golden, _, error = self._rows[:, self._shape[-2] - 1 :: self._shape[-2]].sum(1).tolist()
        return math.sqrt(error / golden) if self._shape[-2] > 1 and golden else None

    def _bulk_error(self, median: float) -> float:
        golden, _, error = self._channels
        bulk = golden <= BULK * BULK * median
        return math.sqrt(float(np.add.reduce(error[bulk])) / float(np.add.reduce(golden[bulk])))

    def _neighbours(self, worst: int, largest: float, error: float) -> float:
        row, channel = divmod(worst, self._shape[-1])
        channels, rows = self._channels.shape[1], self._rows.shape[1]

        def mean_square(total: float, count: int) -> float:
            return max(total - largest * largest, 0.0) / (count - 1)

        in_row = mean_square(float(self._rows[2, row]), channels)
        in_channel = mean_square(float(self._channels[2, channel]), rows)
        overall = mean_square(error, rows * channels)
        crossing = in_row * in_channel / overall if overall else 0.0
        return math.sqrt(max(in_row, in_channel, crossing))


class _Errors:
    """Errors and biases of all rows, or of all channels, from their sums of g*g, g*d and d*d."""

    def __init__(self, golden: Doubles, projected: Doubles, error: Doubles) -> None:
        positive = golden
        if np.count_nonzero(golden) < golden.size:
            mask = golden > 0
            projected, positive = projected[mask], golden[mask]
        (self.floor,) = _ranked(golden, 0.5)
        if not self.floor:
            (self.floor,) = _ranked(positive, 0.5)
        errors = np.sqrt(error / np.maximum(golden, self.floor))
        self.worst_at = int(errors.argmax())
        self.worst = float(errors[self.worst_at])
        self.median, self.ninth_decile = _ranked(errors, 0.5, 0.9)
        self._errors = errors
        low, self.bias, high = _ranked(projected / positive, 0.25, 0.5, 0.75)
        self.bias_deviation = (
            (high - low) / _NORMAL_QUARTILES * _MEDIAN / math.sqrt(min(positive.size, RANKED))
        )

    @property
    def apart(self) -> NDArray[Any]:
        """The numbers of those that are apart from the others: across the widest gap between two neighbours
        in the order of their errors, where that is a factor of `GAP`; empty where there is none."""
        none = np.zeros(0, np.int64)
        if not 0 < self.worst < math.inf or self.worst < GAP * float(self._errors.min()):
            return none
        ordered = np.sort(self._errors)
        steps = ordered[1:] / np.maximum(ordered[:-1], self.worst * _NO_ERROR)
        widest = int(steps.argmax())
        return np.flatnonzero(self._errors > ordered[widest]) if steps[widest] >= GAP else none


def _ranges_of(rows: NDArray[Any], size: int) -> str:
    """Rows by their number in the last dimension that counts them, as `20-39 of 40`; empty for all."""
    numbers = np.unique(rows % size)
    if not 0 < numbers.size < size:
        return ""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    texts = [f"{run[0]}-{run[-1]}" if run.size > 1 else f"{run[0]}" for run in runs]
    omitted = ", ..." if len(texts) > _RUNS_NAMED else ""
    return f"{', '.join(texts[:_RUNS_NAMED])}{omitted} of {size}"


def _ranked(values: Doubles, *fractions: float) -> list[float]:
    """The quantiles of values by nearest rank."""
    # An odd distance, so that not always the same head of an attention is met.
    ordered = values[:: values.size // RANKED | 1].copy()
    ranks = [math.ceil(fraction * ordered.size) - 1 for fraction in fractions]
    if ordered.size <= _SORTED:
        ordered.sort()
    else:
        ordered.partition(ranks)
    return [float(ordered[rank]) for rank in ranks]
