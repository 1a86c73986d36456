"""Elements of any dtype as float64 (or complex128), and their differences without rounding.

64-bit integers do not fit a float64, so a block of them carries its upper and lower halves apart:
`high` is a multiple of 2^32, `low` lies in [0, 2^32), both exact. The difference of two such blocks is
exact up to 2^53 and correctly rounded beyond; cast to float32, as is often done, it would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Wide = NDArray[Any]
"""float64, or complex128 for complex tensors."""


@dataclass(frozen=True, slots=True)
class Values:
    """A block: `wide` is every element rounded to float64 (complex128); `low` and `high` see above."""

    wide: Wide
    high: Wide
    low: Doubles | None = None

    def pick(self, keep: NDArray[np.bool_]) -> Values:
        """The elements where `keep`."""
        low = None if self.low is None else self.low[keep]
        return Values(self.wide[keep], self.high[keep], low)


def widen(block: NDArray[Any], *, to_complex: bool) -> Values:
    """The values of a 1-D block of numbers; with `to_complex` as complex numbers."""
    if block.dtype not in (np.int64, np.uint64) or to_complex:
        array: Wide = block.astype(np.complex128 if to_complex else np.float64, copy=False)
        return Values(array, array)
    low = (block.view(np.int64) & 0xFFFFFFFF).astype(np.float64)
    high = (block >> np.array(32, block.dtype)).astype(np.float64) * 2.0**32
    return Values(high + low, high, low)


def difference(mine: Values, golden: Values) -> Wide:
    """mine - golden, rounded once."""
    upper = mine.high - golden.high
    if mine.low is None and golden.low is None:
        return upper
    lower = (0.0 if mine.low is None else mine.low) - (0.0 if golden.low is None else golden.low)
    result: Wide = upper + lower
    return result
