"""Sorted positions: of equal values any order is right, so a position is judged by the value it leads to."""

from __future__ import annotations

import torch


def settled(x: torch.Tensor, values: torch.Tensor, golden: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    """`golden` positions; mine's where they lead to the same value of `x` and none is used twice.

    All along the last dimension; `values` are the sorted values.
    """
    if golden.shape != mine.shape:
        return golden
    inside = (mine >= 0) & (mine < x.shape[-1])
    found = x.gather(-1, mine.long().clamp(0, x.shape[-1] - 1))
    ordered = mine.sort(-1).values
    twice = (ordered[..., 1:] == ordered[..., :-1]).any(-1, keepdim=True)
    return torch.where(inside & (found == values) & ~twice, mine, golden)
