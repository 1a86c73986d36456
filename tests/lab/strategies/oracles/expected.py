"""What an oracle says of one output: its exact value, its dtype and how far a float32 computation may be off.

The allowed distance is one rounding to the dtype, half a spacing, plus `error`: the sum of what each
float32 operation on the way can lose, first order, from the magnitudes that went in. Nothing is tuned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

U = 2.0**-24
"""Half the spacing of float32 at 1: what one operation in float32 can lose, relative to its result."""

TINY = 2.0**-126
"""Below this float32 keeps no relative precision."""

SPACING = {torch.float16: (-10, -24), torch.bfloat16: (-7, -133), torch.float32: (-23, -149)}
"""By dtype: log2 of the spacing at 1 and of the spacing of the smallest numbers."""


@dataclass(frozen=True)
class Expected:
    """One output: float64 `value`, the `dtype` it is written in, and the `error` of float32 sums before that.

    `error` `None` means that the output is a copy, a count or a position, and must be equal.
    """

    value: torch.Tensor
    dtype: torch.dtype
    error: torch.Tensor | None = None

    def disagreement(self, mine: torch.Tensor) -> str:
        """What is wrong with `mine`, empty when nothing is."""
        if tuple(mine.shape) != tuple(self.value.shape):
            return f"shape {list(mine.shape)} is not {list(self.value.shape)}"
        if mine.dtype != self.dtype:
            return f"dtype {mine.dtype} is not {self.dtype}"
        if not mine.numel():
            return ""
        a, b = mine.double().flatten(), self.value.double().flatten()
        for test in (torch.isnan, torch.isposinf, torch.isneginf):
            if not torch.equal(test(a), test(self._written().double().flatten())):
                return f"{test.__name__} at different places"
        off = (a - b).abs().nan_to_num(0.0)
        over = off - self._allowed().flatten()
        worst = int(over.argmax())
        if float(over[worst]) <= 0:
            return ""
        place = np.unravel_index(worst, tuple(mine.shape))
        return (
            f"element {[int(i) for i in place]} is {float(a[worst]):.9g}, not {float(b[worst]):.9g} "
            f"within {float(self._allowed().flatten()[worst]):.3g}"
        )

    def rounded(self) -> torch.Tensor:
        """The value as it would be written: the nearest of its dtype."""
        return self._written()

    def _written(self) -> torch.Tensor:
        if self.dtype.is_floating_point or not self.value.is_floating_point():
            return self.value.to(self.dtype)
        limits = torch.iinfo(self.dtype)
        return self.value.round().clamp(limits.min, limits.max).to(self.dtype)

    def _allowed(self) -> torch.Tensor:
        if self.error is None:
            return torch.zeros(self.value.shape, dtype=torch.float64)
        error = self.error.double().expand(self.value.shape)
        if not self.dtype.is_floating_point:
            limits = torch.iinfo(self.dtype)
            beyond = (self.value - self.value.clamp(limits.min, limits.max)).abs()
            return 0.5 + error + beyond
        return error + half_spacing(self.value.abs() + error, self.dtype)


def written(
    value: torch.Tensor, error: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a kernel hands on as `dtype`, in float64, and how far what another computed may be from it.

    Between value - error and value + error any number may have been rounded; whole numbers saturate.
    """
    ends = (value, value - error, value + error)
    middle, low, high = (Expected(end, dtype)._written().double() for end in ends)
    return middle, torch.maximum(middle - low, high - middle)


def half_spacing(size: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half the distance of neighbours of `dtype` at numbers of this `size`."""
    at_one, least = SPACING[dtype]
    exponent = torch.frexp(size.double()).exponent - 1 + at_one
    exponent = exponent.where(size > 0, least)  # frexp calls the exponent of 0 that of 1/2
    return torch.exp2(exponent.clamp(min=least).double() - 1)


def same(value: torch.Tensor) -> Expected:
    """An output that must be equal, element by element."""
    return Expected(value, value.dtype)
