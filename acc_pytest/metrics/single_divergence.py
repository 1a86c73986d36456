"""The sums of a block's divergence in float32 arithmetic, and in float64 where these would lose digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from .aligned import Buffers
from .divergence import BlockDivergence
from .double_block import divergence_sums
from .sides import SideSums
from .totals import BlockSums
from .values import Floats, total

_SERIES = 0.25
"""Up to this |d| the series of expm1(d) - d is short; beyond, the block is done in float64."""

_FAINT = 100.0
"""What lies this far below the largest value, on either side, has no weight beside it: e^-100."""

_NARROW = 10.0
"""Weights e^golden need no shift while the largest golden value is within this of zero."""

_STEEP = 30.0
"""Up to this d, e^d times a weight that float32 does not hold, below 1e-38, is nothing beside 1."""

_SEEN = 1e-8
"""From this sum w*(e^d - 1 - d) / sum w on, e^d - 1 - d of float64 has digits enough: 1e-16 is lost of each."""


class SingleDivergence:
    """Sums of one block after another, in these buffers."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def sums(
        self,
        arrays: Sequence[Floats],
        golden: SideSums,
        mine: torch.Tensor,
        block: BlockSums,
        excluded: NDArray[np.int64] | None,
    ) -> BlockDivergence:
        """KL sums. `arrays` are golden, one to use, the difference, and two more to use.

        `mine` is as it was read, `excluded` are places that are left out: there both sides are 0.
        """
        n, (g, _, d, weights, _) = block.compared, arrays
        top = golden.max
        mean, rms = block.difference / n, math.sqrt(block.difference_squared / n)
        apart = block.peak > _SERIES and (top - golden.min > _FAINT or block.peak > _STEEP / 2)
        if apart or abs(mean) > rms / 2 > 0:
            return self._by_double(arrays, golden, mine, excluded)
        scale = 0.0 if -_NARROW <= top <= _NARROW else top
        shifted = np.subtract(g, np.float32(scale), out=weights) if scale else g
        torch.exp(torch.from_numpy(shifted), out=torch.from_numpy(weights))
        if excluded is not None:
            weights[excluded] = 0
        weight = total(weights)
        if block.peak == 0:
            return BlockDivergence(weight, 0.0, 0.0, scale, scale, 0.0)
        if block.peak > _SERIES:
            found = self._by_powers(d, arrays, weight, scale)
        else:
            found = self._by_series(d, arrays, weight, scale, block.peak)
        return found or self._by_double(arrays, golden, mine, excluded)

    def _by_series(
        self, d: Floats, arrays: Sequence[Floats], weight: float, scale: float, peak: float
    ) -> BlockDivergence | None:
        """For small |d|; `None` where most of it is one offset."""
        power = np.multiply(arrays[3], d, out=arrays[4])
        first, curved = total(power), 0.0
        for order in range(2, _terms(peak) + 1):
            np.multiply(power, d, out=power)
            curved += total(power) / math.factorial(order)
        if first * first > curved * weight:
            return None
        return BlockDivergence(weight, first, curved, scale, scale, 0.0)

    def _by_powers(
        self, d: Floats, arrays: Sequence[Floats], weight: float, scale: float
    ) -> BlockDivergence | None:
        """From its mean d is taken, and raised, in float64; `None` where that mean is most of d."""
        weights = arrays[3]
        first = total(np.multiply(weights, d, out=arrays[4]))
        center, curved = first / weight, 0.0
        for piece, wide, power in self._buffers.chunks(d.size):
            moved, raised = torch.from_numpy(wide), torch.from_numpy(power)
            moved.copy_(torch.from_numpy(d[piece]))
            np.subtract(wide, center, out=wide)
            torch.exp(moved, out=raised)
            np.add(wide, 1.0, out=wide)
            np.subtract(power, wide, out=power)
            moved.copy_(torch.from_numpy(weights[piece]))
            curved += torch.dot(moved, raised).item()
        if curved <= max(_SEEN, center * center) * weight:
            return None
        return BlockDivergence(weight, 0.0, curved, scale, scale, center)

    def _by_double(
        self,
        arrays: Sequence[Floats],
        golden: SideSums,
        mine: torch.Tensor,
        excluded: NDArray[np.int64] | None,
    ) -> BlockDivergence:
        """In float64, where d is large or mostly one common offset: float32 would lose the spread."""
        torch.from_numpy(arrays[1]).copy_(mine)
        sides = list(arrays[:2])
        if excluded is not None:
            sides = [np.delete(side, excluded) for side in sides]
        if golden.max - golden.min > _FAINT:
            seen = [side > float(np.maximum.reduce(side)) - _FAINT for side in sides]
            sides = [side[seen[0] | seen[1]] for side in sides]
        g, m = (side.astype(np.float64) for side in sides)
        return divergence_sums(g, m - g)


def _terms(peak: float) -> int:
    """Order at which the series of expm1(d) - d for |d| <= `peak` <= 1/4 may stop.

    The first term left out, relative to d^2/2, is below 1e-7.
    """
    order = 2
    while 2 * peak ** (order - 1) / math.factorial(order + 1) > 1e-7:
        order += 1
    return order
