"""One block in float32 arithmetic: the fast path, for values of ordinary size and some that are not finite.

Products and sums of a block of float32 values stay within about 1e-7 of the truth because torch sums
pairwise; blocks are added in float64. NumPy does the elementwise work (one thread, no dispatch cost),
torch the conversions (it knows bf16 and fp8), the sums (`values.total`) and what it is faster at.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .double_block import Doubles, Floats, divergence_sums
from .measurement import ElementTolerance
from .pair_sums import BlockSlices, SideSums, SliceSums
from .totals import BlockDivergence, BlockSums, floor_of

_LARGEST = 1e15
_SMALLEST = 1e-12
"""Between these the squares, products and quotients of a block neither overflow nor lose digits."""

_CLOSE = 0.25
"""Up to this |d|^2 / |g|^2 the products with mine follow from those with d without cancellation."""

_PLAIN = 2.0**-100
"""An atol from here on does not tell a subnormal number from 0."""

_FAR = (torch.bfloat16, torch.float32)
"""Types that have values whose squares float32 has not."""

_NAMES = (
    "float16 bfloat16 float32 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz int8 uint8 int16 bool"
)
FITTING = frozenset(getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name))
"""Types whose values float32 holds exactly."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """Positions of a block that are left out, for not both sides are finite there, and what stands there."""

    at: NDArray[np.int64]
    golden: Floats
    mine: Floats


class SingleBlock:
    """Buffers for blocks of up to `size` elements, kept from block to block.

    Of the last block, `sliced` are the sums by row and channel, where `slices` asks for them, and `excluded`
    what is not finite. `exact` asks for the count of unequal elements.
    """

    def __init__(
        self, size: int, tolerance: ElementTolerance, slices: SliceSums | None = None, *, exact: bool
    ) -> None:
        self._tolerance, self._exact, self._slices = tolerance, exact, slices
        self.sliced: BlockSlices | None = None
        self.excluded: Excluded | None = None
        self._buffers = Buffers(size)
        self._divergence = SingleDivergence(self._buffers)
        self._furthest = 0.0
        self._take(size)

    def _take(self, n: int) -> None:
        """Look at the first `n` elements of the buffers alone."""
        self._size = n
        self._views = self._buffers.first(n)
        self._flags = self._buffers.flags[:n]

    def load(self, golden: torch.Tensor, mine: torch.Tensor) -> tuple[SideSums, SideSums] | None:
        """Take in a block of `FITTING` types; extrema of both sides.

        `None` when nothing is finite on both, or a value not of ordinary size, so that float32 will not do.
        """
        if golden.numel() != self._size:
            self._take(golden.numel())
        self._mine = mine
        self._far = golden.dtype in _FAR or mine.dtype in _FAR
        g, m = self._views[:2]
        g.tensor.copy_(golden)
        m.tensor.copy_(mine)
        sides = _side_sums(g.array), _side_sums(m.array)
        self.excluded, self._golden = None, sides[0]
        if not (math.isfinite(sides[0].peak) and math.isfinite(sides[1].peak)):
            sides = self._exclude()
        return sides if _ordinary(sides[0].peak) and _ordinary(sides[1].peak) else None

    def _exclude(self) -> tuple[SideSums, SideSums]:
        """Put zeros on both sides where one is not finite; extrema of what is finite on each.

        Where nothing is finite on both, those of a side are not.
        """
        g, m = (view.array for view in self._views[:2])
        keep = np.isfinite(g) & np.isfinite(m)
        at, first = np.flatnonzero(~keep), int(keep.argmax())
        self.excluded = Excluded(at, g[at], m[at])
        for values in (g, m):
            values[at] = values[first]  # a value that is kept: extrema stay what they are
        self._golden, mine = _side_sums(g), _side_sums(m)
        g[at] = m[at] = 0
        count = self._size - at.size
        return _joined(self._golden, count, self.excluded.golden), _joined(mine, count, self.excluded.mine)

    def sums(self, sides: tuple[SideSums, SideSums], start: int, scaled_peak: float) -> BlockSums | None:
        """Sum the loaded block, which begins at the flat position `start`, and fill in both sides.

        `scaled_peak` is the largest of blocks summed before. `None` when its errors call for float64.
        """
        n = self._size - (0 if self.excluded is None else self.excluded.at.size)
        g, d, _, _ = self._views
        np.subtract(d.array, g.array, out=d.array)  # mine until then
        peak = _side_sums(d.array).peak
        if not _ordinary(peak):
            return None
        golden_sum, difference_sum = g.total(), d.total()
        sides[0].total += golden_sum
        sides[1].total += golden_sum + difference_sum
        # Beside the square of a value from _SMALLEST on a block of subnormal numbers is nothing.
        with Flushed():
            gg, gd, dd = self._products(start, peak)
            # The products with mine of unrelated sides would cancel, so they are summed.
            gm, mm = (gg + gd, gg + 2 * gd + dd) if dd <= _CLOSE * gg else self._with_mine()
        block = BlockSums(
            compared=n,
            golden=golden_sum,
            mine=golden_sum + difference_sum,
            difference=difference_sum,
            golden_squared=gg,
            mine_squared=mm,
            golden_mine=gm,
            golden_difference=gd,
            difference_squared=dd,
            absolute=0.0,
            golden_peak=self._golden.peak,
            peak=peak,
            peak_at=0,
        )
        with Flushed():
            block.divergence = self._kl_sums(block)
        # Float32 has no subnormal steps at what is not near zero.
        with Flushed(floor_of(block.golden_peak) > 0 and self._tolerance.atol >= _PLAIN):
            self._errors(block)
            return block if self._relative_errors(block, scaled_peak) else None

    def _kl_sums(self, block: BlockSums) -> BlockDivergence:
        excluded = None if self.excluded is None else self.excluded.at
        return self._divergence.sums(self._views, self._golden, self._mine, block, excluded, far=self._far)

    def _with_mine(self) -> tuple[float, float]:
        mine = self._views[2]
        mine.tensor.copy_(self._mine)
        if self.excluded is not None:
            mine.array[self.excluded.at] = 0
        return self._buffers.wide_dots(self._views[0], mine)

    def _errors(self, block: BlockSums) -> None:
        """Absolute errors, and elements beyond tolerance. From here on buffers hold |golden| and errors."""
        size, error, allowed, _ = (view.array for view in self._views)
        flags = self._flags
        # The buffer used last is used first: it is still near the core.
        np.abs(error, out=error)
        block.absolute = self._views[1].total()
        if block.peak > self._furthest:
            self._furthest, block.peak_at = block.peak, int(error.argmax())
        np.abs(size, out=size)
        self._smallest = float(np.minimum.reduce(size))
        if block.peak > self._tolerance.atol:
            np.multiply(size, np.float32(self._tolerance.rtol), out=allowed)
            np.add(allowed, np.float32(self._tolerance.atol), out=allowed)
            block.beyond = int(np.count_nonzero(np.greater(error, allowed, out=flags)))
        if self._exact:
            block.mismatches = int(np.count_nonzero(np.greater(error, np.float32(0), out=flags)))

    def _relative_errors(self, block: BlockSums, scaled_peak: float) -> bool:
        """Errors relative to |golden|; false where they do not fit float32."""
        size, error, quotient, _ = self._views
        block.scaled_peak = block.peak
        if block.golden_peak > 1 and block.peak > scaled_peak:
            torch.clamp_min(size.tensor, 1.0, out=quotient.tensor)
            np.divide(error.array, quotient.array, out=quotient.array)
            block.scaled_peak = float(np.maximum.reduce(quotient.array))
        floor = floor_of(block.golden_peak)
        if self._smallest <= floor:
            near = np.less_equal(size.array, np.float32(floor), out=self._flags)
            block.near_zero = int(np.count_nonzero(near)) - (self._size - block.compared)
            torch.threshold_(size.tensor, floor, math.inf)
        if block.peak > 0:
            np.divide(error.array, size.array, out=error.array)
            block.relative_peak = float(np.maximum.reduce(error.array))
            block.relative = error.total()
        return math.isfinite(block.relative)

    def _products(self, start: int, peak: float) -> tuple[float, float, float]:
        """The sums of g*g, g*d and d*d; `peak` is the largest |d|."""
        g, d = (view.array for view in self._views[:2])
        if self._slices is None:
            return self._product(g, g).total(), self._product(g, d).total(), self._product(d, d).total()
        channels = self._slices.width(self._size)
        if self._far:
            # A row of tiny values would vanish: golden, then the difference, has a lever.
            by_golden, by_error = _lever(self._golden.peak), _lever(peak)
            levers = 1 / np.array((by_golden**2, by_golden, by_error**2))
            g_far = np.multiply(g, np.float32(by_golden), out=self._views[3].array)
            pairs = [self._product(g_far, side).sums(channels) for side in (g_far, d)]
            d_far = np.multiply(d, np.float32(by_error), out=self._views[3].array)
            pairs.append(self._product(d_far, d_far).sums(channels))
        else:
            pairs = [self._product(*factors).sums(channels) for factors in ((g, g), (g, d), (d, d))]
        by_row, by_channel = (np.array(sums) for sums in zip(*pairs))
        if self._far:
            by_row, by_channel = by_row * levers[:, None], by_channel * levers[:, None]
        self.sliced = self._slices.of_sums(start, by_row, by_channel)
        return self.sliced.total

    def _product(self, first: Floats, second: Floats) -> Buffer:
        np.multiply(first, second, out=self._views[2].array)
        return self._views[2]


def _lever(peak: float) -> float:
    """A power of two, up to 2^100, that brings `peak` to 2^49: squares of that sum up in float32."""
    return 2.0 ** min(49 - math.frexp(peak)[1], 100) if peak else 1.0


def _side_sums(values: Floats) -> SideSums:
    return SideSums(values.size, float(np.maximum.reduce(values)), float(np.minimum.reduce(values)))


def _joined(side: SideSums, count: int, excluded: Floats) -> SideSums:
    """A side of which so many are kept, and what is finite of the others, which alone is in its sum."""
    alone = excluded[np.isfinite(excluded)]
    if not alone.size:
        return SideSums(count, side.max, side.min)
    largest, smallest = max(side.max, float(alone.max())), min(side.min, float(alone.min()))
    return SideSums(count + alone.size, largest, smallest, float(alone.sum(dtype=np.float64)))


def _ordinary(peak: float) -> bool:
    return peak == 0.0 or _SMALLEST <= peak <= _LARGEST


# Subnormal numbers taken as 0 for a while: on Intel a product with one takes a hundred times as long.
#
# Where that is sound is for the caller to say: an array that holds one loses it when it is computed with.


_SUBNORMAL, _ONE = np.float32(1e-40), np.float32(1)


class Flushed:
    """A block of code whose thread flushes them, in NumPy and torch; with `False` nothing changes.

    Threads that torch starts do not, nor do processors on which torch does not know how.
    """

    __slots__ = ("_changed", "_enabled")

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled

    def __enter__(self) -> None:
        self._changed = self._enabled and bool(_SUBNORMAL * _ONE > 0) and torch.set_flush_denormal(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._changed:
            torch.set_flush_denormal(False)


# The sums of a block's divergence in float32 arithmetic, and in float64 where these would lose digits.


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


# Buffers of a block that begin where vectors do, and are kept for the next pairs.
#
# NumPy takes half the time to add or multiply arrays that begin at a multiple of 64 bytes, which those that
# it makes do not. To get fresh memory takes as long as to fill it three times.


_COUNT = 4
_LINE = 64
"""Bytes of a vector of AVX-512, and of a line of the cache."""
_CHUNK = 1 << 15
"""Elements that are float64 at once: two buffers of these stay near the core beside those of the block."""

FEW = 8192
"""Up to so many elements NumPy sums sooner than torch is called."""

_spare: list[NDArray[np.uint8]] = []
"""Memory that no block is in. A thread takes and leaves one in a step that no other one sees half done."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer of float32, for NumPy and for torch: to make one of the other takes a microsecond."""

    array: Floats
    tensor: torch.Tensor

    def total(self) -> float:
        """The sum of all elements, within about 1e-7 of the sum of their sizes.

        Torch sums pairwise, along any axis, and is fast at it. Of a few elements its dispatch is what costs:
        those NumPy sums, in float64.
        """
        if self.array.size <= FEW:
            return float(np.add.reduce(self.array, dtype=np.float64))
        return self.tensor.sum().item()

    def sums(self, channels: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The sums of each row and of each channel, float32 or float64, taken as `total` is."""
        if self.array.size <= FEW:
            table = self.array.reshape(-1, channels)
            by_row, by_channel = (np.add.reduce(table, axis, dtype=np.float64) for axis in (1, 0))
            return by_row, by_channel
        matrix = self.tensor.view(-1, channels)
        return matrix.sum(1).numpy(), matrix.sum(0).numpy()


class Buffers:
    """Float32 buffers of `size` elements, two of float64 for chunks of them, and flags."""

    def __init__(self, size: int) -> None:
        step = -(-size // _LINE) * _LINE
        chunk = min(_CHUNK, step)
        sizes = _COUNT * 4 * step, 2 * 8 * chunk, step
        self._memory = _memory(sum(sizes))
        begin, first, second = 0, sizes[0], sizes[0] + sizes[1]
        self._floats = self._memory[begin:first].view(np.float32).reshape(_COUNT, step)
        self._doubles = self._memory[first:second].view(np.float64).reshape(2, chunk)
        self.flags = self._memory[second : second + step].view(np.bool_)

    def __del__(self) -> None:
        if hasattr(self, "_memory"):
            _spare.append(self._memory)

    def first(self, n: int) -> list[Buffer]:
        """The first `n` elements of each of the buffers of float32."""
        return [Buffer(array, torch.from_numpy(array)) for array in self._floats[:, :n]]

    def chunks(self, n: int) -> Iterator[tuple[slice, Doubles, Doubles]]:
        """Pieces of a block of `n` elements, and as long ones of the buffers of float64."""
        step = self._doubles.shape[1]
        for start in range(0, n, step):
            stop = min(start + step, n)
            yield slice(start, stop), self._doubles[0, : stop - start], self._doubles[1, : stop - start]

    def wide_dots(self, golden: Buffer, mine: Buffer) -> tuple[float, float]:
        """The sums of golden*mine and mine*mine, in float64."""
        products = squares = 0.0
        for piece, wide_golden, wide_mine in self.chunks(golden.array.size):
            wide = torch.from_numpy(wide_golden), torch.from_numpy(wide_mine)
            wide[0].copy_(golden.tensor[piece])
            wide[1].copy_(mine.tensor[piece])
            products += torch.dot(*wide).item()
            squares += torch.dot(wide[1], wide[1]).item()
        return products, squares


def _memory(nbytes: int) -> NDArray[np.uint8]:
    """At least so many bytes, which begin where a line does."""
    with contextlib.suppress(IndexError):
        spare = _spare.pop()
        if spare.size >= nbytes:
            return spare
    buffer = np.empty(nbytes + _LINE, dtype=np.uint8)
    return buffer[-buffer.ctypes.data % _LINE :]
