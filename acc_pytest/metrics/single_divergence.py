"""The sums of a block's divergence in float32 arithmetic, and in float64 where these would lose digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from .aligned import Buffer, Buffers
from .divergence import BlockDivergence
from .double_block import divergence_sums
from .sides import SideSums
from .totals import BlockSums

_SERIES = 0.25
"""Up to this |d| the series of expm1(d) - d is short; beyond, the block is done in float64."""

_FAINT = 100.0
"""Distance below the largest value, on either side, at which a value has no weight beside it: e^-100."""

_NARROW = 10.0
"""Weights e^golden need no shift while the largest golden value is within this of zero."""

_LOWEST = -87.0
"""Below, e^x is a subnormal number, over which torch takes a hundred times as long; NumPy flushes it."""

_STEEP = 30.0
"""Up to this d, e^d times a weight that float32 does not hold, below 1e-38, is nothing beside 1."""

_RESOLVED = 1e-8
"""From this mean of e^d - 1 - d on, the 1e-16 that float64 loses of each is nothing beside it."""


class SingleDivergence:
    """Sums of one block after another, in these buffers."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def sums(
        self,
        views: Sequence[Buffer],
        golden: SideSums,
        mine: torch.Tensor,
        block: BlockSums,
        excluded: NDArray[np.int64] | None,
        *,
        far: bool,
    ) -> BlockDivergence:
        """KL sums. The buffers hold golden and the difference; two more are free.

        `mine` is as it was read, `excluded` are places that are left out: there both sides are 0. `far` is
        whether values may be so small that their squares are subnormal, over which torch takes long too.
        """
        n, (g, d, weights, products) = block.compared, views
        top, reach = golden.max, golden.max - golden.min
        mean, rms = block.difference / n, math.sqrt(block.difference_squared / n)
        apart = block.peak > _SERIES and (reach > _FAINT or block.peak > _STEEP / 2)
        if apart or abs(mean) > rms / 2 > 0:
            return self._by_double(views, golden, mine, excluded)
        scale = 0.0 if -_NARROW <= top <= _NARROW else top
        _exponentials(g, scale, weights, plain=not far and golden.min - scale >= _LOWEST)
        if excluded is not None:
            weights.array[excluded] = 0
        weight = weights.total()
        if block.peak == 0:
            return BlockDivergence(weight, 0.0, 0.0, scale, scale, 0.0)
        if block.peak > _SERIES:
            np.multiply(weights.array, d.array, out=products.array)
            curved = self._by_powers(d, weights, center := products.total() / weight)
            if curved > max(_RESOLVED, center * center) * weight:
                return BlockDivergence(weight, 0.0, curved, scale, scale, center)
        else:
            np.multiply(weights.array, d.array, out=weights.array)
            first = weights.total()
            curved = _by_series(d, weights, block.peak)
            if first * first <= curved * weight:
                return BlockDivergence(weight, first, curved, scale, scale, 0.0)
        return self._by_double(views, golden, mine, excluded)

    def _by_powers(self, d: Buffer, weights: Buffer, center: float) -> float:
        """The sum of w*(e^d - 1 - d) with d from its mean, in float64."""
        result = 0.0
        for piece, wide, power in self._buffers.chunks(d.array.size):
            shifted, raised = torch.from_numpy(wide), torch.from_numpy(power)
            shifted.copy_(d.tensor[piece])
            np.subtract(wide, center, out=wide)
            torch.exp(shifted, out=raised)
            np.add(wide, 1.0, out=wide)
            np.subtract(power, wide, out=power)
            shifted.copy_(weights.tensor[piece])
            result += torch.dot(shifted, raised).item()
        return result

    def _by_double(
        self,
        views: Sequence[Buffer],
        golden: SideSums,
        mine: torch.Tensor,
        excluded: NDArray[np.int64] | None,
    ) -> BlockDivergence:
        """In float64, where d is large or mostly one common offset: float32 would lose the spread."""
        views[3].tensor.copy_(mine)
        sides = [views[0].array, views[3].array]
        if excluded is not None:
            sides = [np.delete(side, excluded) for side in sides]
        if golden.max - golden.min > _FAINT:
            masks = [side >= float(np.maximum.reduce(side)) - _FAINT for side in sides]
            sides = [side[masks[0] | masks[1]] for side in sides]
        g, m = (side.astype(np.float64) for side in sides)
        return divergence_sums(g, m - g)


def _exponentials(golden: Buffer, scale: float, weights: Buffer, *, plain: bool) -> None:
    """e^(golden - scale), by torch where it is `plain`: twice as fast where no number is subnormal."""
    shifted = golden
    if scale:
        np.subtract(golden.array, np.float32(scale), out=weights.array)
        shifted = weights
    if plain:
        torch.exp(shifted.tensor, out=weights.tensor)
    else:
        np.exp(shifted.array, out=weights.array)


def _by_series(d: Buffer, power: Buffer, peak: float) -> float:
    """The sum of w*(e^d - 1 - d) for small |d|, from w*d, which is lost.

    A plain sum of n products in float32, which torch.dot takes, is off by up to 2e-5. That is nothing to the
    last of four or more terms, which is below 1e-3 of all.
    """
    curved, last = 0.0, _terms(peak)
    for order in range(2, last + 1):
        if order == last > 3:
            return curved + torch.dot(power.tensor, d.tensor).item() / math.factorial(order)
        np.multiply(power.array, d.array, out=power.array)
        curved += power.total() / math.factorial(order)
    return curved


def _terms(peak: float) -> int:
    """Order at which the series of expm1(d) - d for |d| <= `peak` <= 1/4 may stop.

    The first term left out, relative to d^2/2, is below 1e-7.
    """
    order = 2
    while 2 * peak ** (order - 1) / math.factorial(order + 1) > 1e-7:
        order += 1
    return order
