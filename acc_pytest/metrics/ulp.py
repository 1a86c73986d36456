"""Units in the last place: how far apart neighbouring values of a type are around a value.

An error of 1 ULP is one step of the type. A result that is computed exactly and rounded once is at most
half a step from the exact value.
"""

from __future__ import annotations

import math

import torch

from ..tensors.dtypes import by_name

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
