"""Units in the last place: how far apart neighbouring values of a type are around a value.

An error of 1 ULP is one step of the type. A result that is computed exactly and rounded once is at most
half a step from the exact value.
"""

from __future__ import annotations

import torch

_FORMATS = {
    "float16": (11, -14),
    "bfloat16": (8, -126),
    "float32": (24, -126),
    "float64": (53, -1022),
    "float8_e5m2": (3, -14),
    "float8_e4m3fn": (4, -6),
}
"""Bits of the significand and the exponent of the smallest normal number."""


def has_ulp(dtype: str) -> bool:
    """Whether values of the type called `dtype` lie at distances that grow with them."""
    return dtype in _FORMATS or dtype == "hifloat8"


def ulp(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """The distance from each of `values` (finite, wide) to the next larger magnitude of `dtype`."""
    exponent = torch.frexp(values).exponent - 1
    exponent = torch.where(values == 0, torch.full_like(exponent, -1100), exponent)
    if dtype == "hifloat8":
        # 3 bits of mantissa up to |exponent| 3, 2 up to 7, 1 up to 15; below 2^-15 powers of two alone
        exponent = exponent.clamp(min=-22)
        size = exponent.abs()
        step = exponent - 3 + (size > 3).int() + (size > 7).int() + (size > 15).int()
    else:
        significand, smallest = _FORMATS[dtype]
        step = exponent.clamp(min=smallest) - (significand - 1)
    return torch.ldexp(torch.ones_like(values), step)
