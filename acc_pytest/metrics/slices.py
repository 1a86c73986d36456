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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .measurement import SliceErrors
from .values import Doubles, Floats, sums

FEWEST = 8
"""Rows and channels of which a median and quartiles say something."""
MOST = 1 << 22
"""Rows, and channels, of which sums are kept: three float64 of each."""
RANKED = 4096
"""Rows, and channels, of which quantiles are taken: of more, as many at even distances."""
_SORTED = 256
"""So many are sorted sooner than parted."""
BULK = 4.0
"""Channels of up to this many times the median norm are the bulk."""
_NORMAL_QUARTILES = 1.349
"""The distance of the quartiles of a normal distribution, in standard deviations."""
_MEDIAN = math.sqrt(math.pi / 2)
"""The standard error of a median, in that of a mean."""


class SliceSums:
    """Sums of g*g, g*d and d*d by row and by channel; those of a block count once they are kept."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape)
        self._rows = np.zeros((3, math.prod(shape[:-1])))
        self._channels = np.zeros((3, shape[-1]))
        self._first, self._start = 0, 0
        self._of_rows: NDArray[Any] = np.zeros((3, 0))
        self._of_channels: NDArray[Any] = self._of_rows

    @staticmethod
    def possible(shape: Sequence[int]) -> bool:
        """Whether tensors of this shape have enough rows and channels, and not too many."""
        if len(shape) < 2:
            return False
        return FEWEST <= shape[-1] <= MOST and FEWEST <= math.prod(shape[:-1]) <= MOST

    def of_block(self, start: int, products: Floats) -> list[float]:
        """The sums of a block's products, [3, elements], from the flat position `start`.

        A block is whole rows, or a part of one.
        """
        channels, elements = self._shape[-1], products.shape[1]
        self._first, self._start = divmod(start, channels)
        table = products.reshape(3, -1, min(channels, elements))
        self._of_rows, self._of_channels = sums(table, 2), sums(table, 1)
        whole: list[float] = np.add.reduce(self._of_rows, 1, dtype=np.float64).tolist()
        return whole

    def emptied(self, start: int, elements: int) -> tuple[Doubles, Doubles]:
        """Zeros for the sums of a block by row and by channel, [3, rows] and [3, channels], to be filled in.

        The block has so many `elements`, from the flat position `start`.
        """
        channels = min(self._shape[-1], elements)
        self._first, self._start = divmod(start, self._shape[-1])
        self._of_rows, self._of_channels = np.zeros((3, elements // channels)), np.zeros((3, channels))
        return self._of_rows, self._of_channels

    def keep(self) -> None:
        """Count the last block."""
        self._rows[:, self._first : self._first + self._of_rows.shape[1]] += self._of_rows
        self._channels[:, self._start : self._start + self._of_channels.shape[1]] += self._of_channels

    def add(self, positions: NDArray[np.int64], golden: Doubles, difference: Doubles) -> None:
        """Count elements at these flat positions, which ascend."""
        rows, channels = np.divmod(positions, self._shape[-1])
        first = int(rows[0])
        products = (golden * golden, golden * difference, difference * difference)
        for of_rows, of_channels, values in zip(self._rows, self._channels, products):
            sums = np.bincount(rows - first, values)
            of_rows[first : first + sums.size] += sums
            of_channels += np.bincount(channels, values, minlength=of_channels.size)

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
        of_both = in_row * in_channel / overall if overall else 0.0
        return math.sqrt(max(in_row, in_channel, of_both))


class _Errors:
    """Errors and biases of all rows, or of all channels, from their sums of g*g, g*d and d*d."""

    def __init__(self, golden: Doubles, projected: Doubles, error: Doubles) -> None:
        kept = golden
        if np.count_nonzero(golden) < golden.size:
            some = golden > 0
            projected, kept = projected[some], golden[some]
        (self.floor,) = _ranked(golden, 0.5)
        if not self.floor:
            (self.floor,) = _ranked(kept, 0.5)
        errors = np.sqrt(error / np.maximum(golden, self.floor))
        self.worst_at = int(errors.argmax())
        self.worst = float(errors[self.worst_at])
        self.median, self.ninth_decile = _ranked(errors, 0.5, 0.9)
        low, self.bias, high = _ranked(projected / kept, 0.25, 0.5, 0.75)
        self.bias_deviation = (high - low) / _NORMAL_QUARTILES * _MEDIAN / math.sqrt(min(kept.size, RANKED))


def _ranked(values: Doubles, *parts: float) -> list[float]:
    """The quantiles of values by nearest rank."""
    # An odd distance, so that not always the same head of an attention is met.
    ordered = values[:: values.size // RANKED | 1].copy()
    ranks = [math.ceil(part * ordered.size) - 1 for part in parts]
    if ordered.size <= _SORTED:
        ordered.sort()
    else:
        ordered.partition(ranks)
    return [float(ordered[rank]) for rank in ranks]
