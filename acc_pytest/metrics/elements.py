"""`ElementErrors`: what published standards of operators ask of single elements, in float64.

Relative errors are those of these standards, |error| / (|golden| + 1e-7), and differ from the metrics of a
pair. Where the errors lie, and how many steps of the output's type they are, is for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ..base.threads import one_thread
from ..tensors.dtypes import by_name
from .measurement import ElementTolerance
from .totals import NEAR_ZERO

BLOCK = 1 << 18
_TINY = 2.0**-900
_ADDED = 1e-7
"""Addend to the denominator in the published definition of a relative error."""
_LISTED = 4096
"""Indices of wrong elements of a block that are kept to say where they lie."""
BUCKETS = (0.5, 1.0, 2.0, 4.0, 16.0, 256.0)
"""Upper ends of the ULP histogram; a last bucket takes the rest."""


@dataclass(frozen=True, slots=True)
class ElementErrors:
    """Mine against golden, `numel` elements.

    `beyond` counts elements that the tolerance does not allow, `beyond_absolute` those whose error exceeds
    its number whatever golden is; both count elements that are NaN or infinite on one side only, or
    differently. `worst` is the flat index of the element furthest beyond its tolerance, `None` where both
    sides are the same, `worst_ulp` its error in steps of the output's type.
    The others are over elements that are finite on both sides: `max_scaled_error` in float64, `mare` and
    `mere` (the largest and the mean of |error| / (|golden| + 1e-7)), `rmse`, `error_balance` (|mean of signed
    scaled errors|), and in steps of the output's type `max_ulp_error` and `histogram` (empty for integers).
    `box` says in which ranges of indices the elements beyond lie.
    """

    numel: int
    beyond: int
    beyond_absolute: int
    worst: int | None
    worst_ulp: float | None
    max_scaled_error: float
    mare: float
    mere: float
    rmse: float
    error_balance: float
    max_ulp_error: float | None
    histogram: Mapping[str, int]
    box: str

    @property
    def abs_precision_rate(self) -> float:
        """Share of the elements whose error is within the number of the tolerance, in percent."""
        return 100.0 * (self.numel - self.beyond_absolute) / self.numel if self.numel else 100.0

    @property
    def rel_precision_rate(self) -> float:
        """Share of the elements that the tolerance allows, in percent; 100 of none."""
        return 100.0 * (self.numel - self.beyond) / self.numel if self.numel else 100.0


def element_errors(
    golden: torch.Tensor, mine: torch.Tensor, tolerance: ElementTolerance, dtype: str
) -> ElementErrors:
    """The errors of single elements alone, of tensors of one shape. See `ElementSums`."""
    sums = ElementSums(tolerance, dtype)
    g_flat, m_flat = golden.reshape(-1), mine.reshape(-1)
    with one_thread():
        for start in range(0, m_flat.numel(), BLOCK):
            sums.add(start, g_flat[start : start + BLOCK], m_flat[start : start + BLOCK])
    return sums.result(tuple(mine.shape))


class ElementSums:
    """Sums carried from block to block. `dtype` names the type that the operator writes."""

    def __init__(self, tolerance: ElementTolerance, dtype: str) -> None:
        self._tolerance, self._dtype = tolerance, dtype
        self._has_ulp = has_ulp(dtype)
        self._beyond = self._beyond_absolute = self._finite = 0
        self._worst: int | None = None
        self._worst_ulp: float | None = None
        self._worst_score = 0.0
        self._scaled = self._mare = self._ulps = 0.0
        self._relative = self._squares = self._signed = 0.0
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._positions: list[torch.Tensor] = []

    def add(self, start: int, golden: torch.Tensor, mine: torch.Tensor) -> None:
        """Take in elements `start` and following of both sides, flattened."""
        short = golden.is_floating_point() and golden.element_size() == 1
        if not short and golden.dtype == mine.dtype and torch.equal(golden, mine):
            self._finite += mine.numel()
            if self._has_ulp:
                self._buckets[0] += mine.numel()
            return
        g, y = _wide(golden), _wide(mine)
        equal = g == y
        finite = torch.isfinite(g) & torch.isfinite(y)
        nonfinite = ~finite & ~(equal | (torch.isnan(g) & torch.isnan(y)))
        if g.is_complex():
            # the error is the distance in the plane; sizes are those of the moduli
            size, error = g.abs().double(), (y - g).abs().double()
        else:
            size, error = g.double(), y.double() - g.double()
        if not g.is_floating_point() and not g.is_complex():
            # beyond 2^53 two different integers may be the same double
            error = torch.where(~equal & (error == 0), torch.ones_like(error), error)
        zero = torch.zeros((), dtype=torch.float64)
        size, error = torch.where(finite, size, zero).abs(), torch.where(finite, error, zero)
        self._add_finite(size, error, finite)
        self._add_beyond(start, size, torch.where(nonfinite, torch.inf, error.abs()), nonfinite)

    def _add_finite(self, size: torch.Tensor, signed: torch.Tensor, finite: torch.Tensor) -> None:
        error = signed.abs()
        self._finite += int(finite.sum())
        scaled = signed / size.clamp(min=1.0)
        self._scaled = max(self._scaled, float(scaled.abs().max()))
        self._signed += float(scaled.sum())
        relative = error / (size + _ADDED)
        self._mare = max(self._mare, float(relative.max()))
        self._relative += float(relative.sum())
        self._squares += float(signed.square().sum())
        if self._has_ulp:
            steps = error / ulp(size, self._dtype)
            self._ulps = max(self._ulps, float(steps.max()))
            buckets = torch.bucketize(steps[finite], torch.tensor(BUCKETS, dtype=torch.float64))
            for number, count in enumerate(torch.bincount(buckets, minlength=len(self._buckets)).tolist()):
                self._buckets[number] += count

    def _add_beyond(
        self, start: int, size: torch.Tensor, error: torch.Tensor, nonfinite: torch.Tensor
    ) -> None:
        """Count and locate elements beyond the tolerance; the error of `nonfinite` ones is infinite."""
        allowed = _allowed(self._tolerance, size, self._dtype)
        beyond = error > allowed
        self._beyond_absolute += int((error > self._tolerance.atol).sum())
        score = error / allowed.clamp(min=_TINY)
        place = int(score.argmax())
        if self._worst is None or float(score[place]) > self._worst_score:
            self._worst, self._worst_score = start + place, float(score[place])
            self._worst_ulp = None
            if self._has_ulp and not bool(nonfinite[place]):
                self._worst_ulp = float(error[place] / ulp(size[place : place + 1], self._dtype)[0])
        count = int(beyond.sum())
        if count:
            self._beyond += count
            where = beyond.nonzero().reshape(-1) + start
            self._positions.append(torch.cat((where[: _LISTED // 2], where[-_LISTED // 2 :])))

    def result(self, shape: tuple[int, ...]) -> ElementErrors:
        """The errors of all blocks of a tensor of this shape."""
        n = max(1, self._finite)
        ends = [f"<={end:g}" for end in BUCKETS] + [f">{BUCKETS[-1]:g}"]
        return ElementErrors(
            numel=math.prod(shape),
            beyond=self._beyond,
            beyond_absolute=self._beyond_absolute,
            worst=self._worst,
            worst_ulp=self._worst_ulp,
            max_scaled_error=self._scaled,
            mare=self._mare,
            mere=self._relative / n,
            rmse=(self._squares / n) ** 0.5,
            error_balance=abs(self._signed) / n,
            max_ulp_error=self._ulps if self._has_ulp else None,
            histogram={end: k for end, k in zip(ends, self._buckets) if k} if self._has_ulp else {},
            box=_box(self._positions, shape),
        )


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_complex() or tensor.dtype in (torch.int64, torch.int32) else tensor.double()


def _allowed(tolerance: ElementTolerance, size: torch.Tensor, dtype: str) -> torch.Tensor:
    """The largest allowed error of elements of golden of this size."""
    if tolerance.scale == "ulp":
        unit = ulp(size, dtype)
    elif tolerance.scale == "scaled":
        unit = size.clamp(min=1.0)
    else:
        unit = torch.ones_like(size)
        if tolerance.scale == "relative":
            unit = torch.where(size > NEAR_ZERO, size, unit)
    return tolerance.atol * unit + tolerance.rtol * size


def _box(positions: list[torch.Tensor], shape: tuple[int, ...]) -> str:
    """The ranges of indices in which elements lie: `[0:2, 17, :]`."""
    if not positions or not shape:
        return ""
    ranges = []
    for places, size in zip(np.unravel_index(torch.cat(positions).numpy(), shape), shape):
        low, high = int(places.min()), int(places.max())
        is_full = low == 0 and high == size - 1
        ranges.append(":" if is_full and size > 1 else f"{low}" if low == high else f"{low}:{high + 1}")
    return f"[{', '.join(ranges)}]"


# Units in the last place: how far apart neighbouring values of a type are around a value.
#
# An error of 1 ULP is one step of the type. A result that is computed exactly and rounded once is at most
# half a step from the exact value.


_HIFLOAT8 = "hifloat8"


def has_ulp(dtype: str) -> bool:
    """Whether values of the type called `dtype` lie at distances that grow with them."""
    return by_name(dtype).kind == "float" or dtype == _HIFLOAT8


def ulp(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """The distance from each of `values` (finite, wide) to the next larger magnitude of `dtype`."""
    exponent = torch.frexp(values).exponent - 1
    exponent = torch.where(values == 0, torch.full_like(exponent, -1100), exponent)
    if dtype == _HIFLOAT8:
        # 3 bits of mantissa up to |exponent| 3, 2 up to 7, 1 up to 15; below 2^-15 powers of two alone
        exponent = exponent.clamp(min=-22)
        size = exponent.abs()
        step = exponent - 3 + (size > 3).int() + (size > 7).int() + (size > 15).int()
    else:
        fmt = by_name(dtype).format
        assert fmt is not None, f"{dtype} has no steps"
        smallest, roundoff = (int(math.log2(value)) for value in (fmt.smallest_normal, fmt.roundoff))
        step = exponent.clamp(min=smallest) + roundoff + 1
    return torch.ldexp(torch.ones_like(values), step)
