"""Errors of single rows and channels: what a norm of the whole tensor hides behind its largest values.

A row is a vector along the last dimension (of most tensors one token), a channel all elements of one index
of the last dimension. With g golden, d mine - golden and norms taken over one row or channel:

    error = |d| / max(|g|, median over all rows or channels of |g|)

The median keeps rows that are nearly zero from having huge errors. The bias of one row (or channel, or the
whole) is the projection of the error on golden, sum(g*d) / sum(g*g): 0.01 where mine is 1 % too large.
Rounding is nearly orthogonal to golden, a wrong scale is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .measurement import SliceErrors

if TYPE_CHECKING:
    from .values import Doubles

FEWEST = 8
"""Rows and channels of which a median and quartiles say something."""
MOST = 1 << 22
"""Rows, and channels, of which sums are kept: three float64 of each."""
RANKED = 4096
"""Rows, and channels, of which quantiles are taken: of more, as many at even distances."""
_SORTED = 256 if np.__version__.startswith("1.") else RANKED
"""So many are sorted sooner than parted: by NumPy 2, which sorts with vectors, all that are ranked."""
BULK = 4.0
"""Channels of up to this many times the median norm are the bulk."""
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
            row_error_p90=rows.ninth_decile,
            typical_row_error=rows.median,
            worst_channel_error=channels.worst,
            worst_channel=f"[..., {channels.worst_at}]",
            channel_error_p90=channels.ninth_decile,
            bulk_error=self._bulk_error(channels.floor),
            bias=min(three, key=abs) if agree else 0.0,
            bias_deviation=max(rows.bias_deviation, channels.bias_deviation),
            neighbour_error=self._neighbours(worst, largest, error) if worst >= 0 else 0.0,
        )

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
        low, self.bias, high = _ranked(projected / positive, 0.25, 0.5, 0.75)
        self.bias_deviation = (
            (high - low) / _NORMAL_QUARTILES * _MEDIAN / math.sqrt(min(positive.size, RANKED))
        )


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
