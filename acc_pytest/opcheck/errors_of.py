"""`Errors`: what a standard needs to know of two tensors, measured in one pass over blocks of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from ..metrics.ulp import has_ulp, ulp
from ..tensors import hifloat8
from ..threads import one_thread

BLOCK = 1 << 18
_SMALL = 2.0**-23
"""Below this a golden value counts as zero for relative errors, as for the old tool."""
_TINY = 2.0**-900
_RELATIVE = 1e-7
"""What the ecosystem's definition of a relative error adds to the denominator."""
_KEPT = 4096
"""Indices of wrong elements that are kept to say where they lie."""
BUCKETS = (0.5, 1.0, 2.0, 4.0, 16.0, 256.0)
"""Upper ends of the ULP histogram; a last bucket takes the rest."""

Scale = Literal["absolute", "scaled", "relative", "ulp"]


@dataclass(frozen=True, slots=True)
class ElementRule:
    """How far an element may be off: `bound`, times what `scale` says.

    `absolute`: 1. `scaled`: max(1, |golden|). `relative`: |golden|, and 1 where golden is 0 (the old
    tool lets anything pass there). `ulp`: one step of the output's type.
    """

    bound: float
    scale: Scale = "scaled"

    def allowed(self, golden: torch.Tensor, dtype: str) -> torch.Tensor:
        """The largest allowed error of each element."""
        if self.scale == "ulp":
            return self.bound * ulp(golden, dtype)
        if self.scale == "scaled":
            return self.bound * golden.abs().clamp(min=1.0)
        if self.scale == "relative":
            size = golden.abs()
            return self.bound * torch.where(size > _SMALL, size, torch.ones_like(size))
        return torch.full_like(golden, self.bound)

    def __str__(self) -> str:
        if not self.bound:
            return "|error| = 0"
        factor = {"absolute": "", "scaled": " max(1, |golden|)", "relative": " |golden|", "ulp": " ULP"}
        return f"|error| <= {self.bound:.6g}{factor[self.scale]}"


@dataclass(frozen=True, slots=True)
class Errors:
    """Mine against golden, `numel` elements.

    `beyond` counts elements that the rule does not allow, `beyond_absolute` those whose error exceeds the
    number of the rule whatever golden is, `nonfinite` (in both) those where only one
    side is NaN or infinite, or both differently. `worst` is the flat index of the worst element.
    The others are over elements that are finite on both sides: `max_absolute`, `max_scaled`
    (|error| / max(1, |golden|)), `max_relative`, `mean_relative` (|error| / (|golden| + 1e-7)),
    `rmse`, `balance` (|mean of signed scaled errors|), and in steps of the output's type `max_ulp` and
    `histogram` (empty for integers). `box` says in which ranges of indices the elements beyond lie.
    """

    numel: int
    beyond: int
    beyond_absolute: int
    nonfinite: int
    worst: int | None
    worst_ulp: float | None
    max_absolute: float
    max_scaled: float
    max_relative: float
    mean_relative: float
    rmse: float
    balance: float
    max_ulp: float | None
    histogram: Mapping[str, int]
    box: str = ""

    @property
    def absolute_rate(self) -> float:
        """Share of the elements whose error is within the number of the rule, in percent; 100 of none."""
        return 100.0 * (self.numel - self.beyond_absolute) / self.numel if self.numel else 100.0

    @property
    def rate(self) -> float:
        """Share of the elements that the rule allows, in percent; 100 of none."""
        return 100.0 * (self.numel - self.beyond) / self.numel if self.numel else 100.0


def errors_of(golden: torch.Tensor, mine: torch.Tensor, rule: ElementRule, dtype: str) -> Errors:
    """Measure `mine` against `golden`, of one shape; `dtype` names the type that the operator writes."""
    shape = tuple(mine.shape)
    g_flat, m_flat = golden.reshape(-1), mine.reshape(-1)
    sums = _Sums(dtype if has_ulp(dtype) else "")
    with one_thread():
        for start in range(0, m_flat.numel(), BLOCK):
            g, y = g_flat[start : start + BLOCK], m_flat[start : start + BLOCK]
            if _same(g, y):
                sums.equal(g.numel())
            else:
                sums.block(start, _wide(g, dtype), _wide(y, dtype), rule, dtype)
    return sums.result(m_flat.numel(), shape)


def _same(g: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether a block is equal, told without widening it; torch cannot compare types of eight bits."""
    short = g.is_floating_point() and g.element_size() == 1
    return not short and g.dtype == y.dtype and torch.equal(g, y)


def _wide(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    if dtype == "hifloat8" and tensor.dtype == torch.uint8:
        return hifloat8.decode(tensor)
    return tensor if tensor.is_complex() or tensor.dtype in (torch.int64, torch.int32) else tensor.double()


class _Sums:
    """What is carried from block to block."""

    def __init__(self, ulp_type: str) -> None:
        self.ulp_type = ulp_type
        self.beyond = self.beyond_absolute = self.nonfinite = self.finite = 0
        self.worst: int | None = None
        self.worst_ulp: float | None = None
        self._worst_score = 0.0
        self.absolute = self.scaled = self.relative = self.ulps = 0.0
        self.total_relative = self.total_square = self.total_signed = 0.0
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.kept: list[torch.Tensor] = []

    def equal(self, count: int) -> None:
        """Take in elements that are the same on both sides."""
        self.finite += count
        if self.ulp_type:
            self.buckets[0] += count

    def block(self, start: int, g: torch.Tensor, y: torch.Tensor, rule: ElementRule, dtype: str) -> None:
        """Take in elements `start` and following."""
        different = g != y
        same = ~different | (torch.isnan(g) & torch.isnan(y))
        both = torch.isfinite(g) & torch.isfinite(y)
        if g.is_complex():
            # the error is the distance in the plane; sizes are those of the moduli
            d, g, y = (y - g).abs().double(), g.abs().double(), y.abs().double()
        else:
            d = y.double() - g.double()
        if not g.is_floating_point():
            # beyond 2^53 two different integers may be the same double
            d = torch.where(different & (d == 0), torch.ones_like(d), d)
        g, y = g.double(), y.double()
        odd = ~both & ~same
        d = torch.where(both, d, torch.zeros_like(d))
        g = torch.where(both, g, torch.zeros_like(g))
        error = d.abs()
        allowed = rule.allowed(g, dtype)
        beyond = (error > allowed) | odd
        self._find_worst(start, error, allowed, odd, beyond, g)
        self.finite += int(both.sum())
        self.beyond_absolute += int(((error > rule.bound) | odd).sum())
        self.absolute = max(self.absolute, float(error.max()))
        scaled = d / g.abs().clamp(min=1.0)
        self.scaled = max(self.scaled, float(scaled.abs().max()))
        self.total_signed += float(scaled.sum())
        relative = error / (g.abs() + _RELATIVE)
        self.relative = max(self.relative, float(relative.max()))
        self.total_relative += float(relative.sum())
        self.total_square += float(d.square().sum())
        if self.ulp_type:
            steps = error / ulp(g, self.ulp_type)
            self.ulps = max(self.ulps, float(steps.max()))
            found = torch.bucketize(steps[both], torch.tensor(BUCKETS, dtype=torch.float64))
            for number, count in enumerate(torch.bincount(found, minlength=len(self.buckets)).tolist()):
                self.buckets[number] += count

    def _find_worst(
        self,
        start: int,
        error: torch.Tensor,
        allowed: torch.Tensor,
        odd: torch.Tensor,
        beyond: torch.Tensor,
        g: torch.Tensor,
    ) -> None:
        score = torch.where(odd, torch.full_like(error, torch.inf), error / allowed.clamp(min=_TINY))
        place = int(score.argmax())
        if self.worst is None or float(score[place]) > self._worst_score:
            self.worst, self._worst_score = start + place, float(score[place])
            self.worst_ulp = None
            if self.ulp_type and not bool(odd[place]):
                self.worst_ulp = float(error[place] / ulp(g[place : place + 1], self.ulp_type)[0])
        count = int(beyond.sum())
        if count:
            self.beyond += count
            self.nonfinite += int(odd.sum())
            where = beyond.nonzero().reshape(-1) + start
            self.kept.append(torch.cat((where[: _KEPT // 2], where[-_KEPT // 2 :])))

    def result(self, numel: int, shape: tuple[int, ...]) -> Errors:
        """The whole."""
        n = max(1, self.finite)
        ends = [f"<={end:g}" for end in BUCKETS] + [f">{BUCKETS[-1]:g}"]
        return Errors(
            numel=numel,
            beyond=self.beyond,
            beyond_absolute=self.beyond_absolute,
            nonfinite=self.nonfinite,
            worst=self.worst,
            worst_ulp=self.worst_ulp,
            max_absolute=self.absolute,
            max_scaled=self.scaled,
            max_relative=self.relative,
            mean_relative=self.total_relative / n,
            rmse=(self.total_square / n) ** 0.5,
            balance=abs(self.total_signed) / n,
            max_ulp=self.ulps if self.ulp_type else None,
            histogram={end: k for end, k in zip(ends, self.buckets) if k} if self.ulp_type else {},
            box=_box(self.kept, shape),
        )


def _box(kept: list[torch.Tensor], shape: tuple[int, ...]) -> str:
    """The ranges of indices in which elements lie: `[0:2, 17, :]`."""
    if not kept or not shape:
        return ""
    found = np.unravel_index(torch.cat(kept).numpy(), shape)
    parts = []
    for places, size in zip(found, shape):
        low, high = int(places.min()), int(places.max())
        whole = low == 0 and high == size - 1
        parts.append(":" if whole and size > 1 else f"{low}" if low == high else f"{low}:{high + 1}")
    return f"[{', '.join(parts)}]"
