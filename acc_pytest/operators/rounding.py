"""The one rounding of an output: to nearest, ties to even, whatever dtype it was computed in."""

from __future__ import annotations

import torch


def rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`value` in `dtype`, to nearest, ties to even; integers saturate and NaN becomes 0."""
    if dtype.is_floating_point or not value.is_floating_point():
        narrow = value.dtype == torch.float64 and dtype not in (torch.float32, torch.float64)
        return (_odd(value) if narrow else value).to(dtype)
    limits = torch.iinfo(dtype)
    return value.round().nan_to_num(0.0).clamp(limits.min, limits.max).to(dtype)


def _odd(value: torch.Tensor) -> torch.Tensor:
    """float64 as float32 with the last bit set where it is not exact, so that the next rounding is right.

    torch itself casts float64 to the short types by way of float32, which rounds twice.
    """
    near = value.float()
    wide = near.double()
    even = (near.view(torch.int32) & 1) == 0
    toward = torch.where(value > wide, torch.inf, -torch.inf).float()
    return torch.where((wide != value) & even & near.isfinite(), torch.nextafter(near, toward), near)
