"""A tensor that is wrong by the noise of one run, held against that of several draws of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from .measured_bound import Twice, held
from .recomputation import Recomputation

FEW_ROWS = 16
"""Rows of a tensor of which one run tells too little."""
DRAWS = 8
"""Runs of a module whose inputs are off by roundings: how much the noise of few rows varies."""


def asks_for_draws(found: Recomputation, mine: torch.Tensor) -> bool:
    """Whether one run says too little of a tensor that it calls wrong."""
    return found.outcome == "wrong" and (_by_rows_alone(found) or _is_small(mine))


def _is_small(mine: torch.Tensor) -> bool:
    """Whether it has so few rows that one run tells little of its noise: a head that looks at one token alone
    rounds nothing, and one that looks at two nearly alike much."""
    return mine.is_floating_point() and mine.numel() <= FEW_ROWS * (mine.shape[-1] if mine.ndim else 1)


def _by_rows_alone(found: Recomputation) -> bool:
    """Whether the whole is right and a row is not."""
    if found.error is None or found.allowed is None or found.row_error is None or found.row_allowed is None:
        return False
    return found.error <= found.allowed and found.row_error > found.row_allowed


def with_draws(
    found: Recomputation, twice: Twice, mine: torch.Tensor, made: Sequence[torch.Tensor]
) -> Recomputation:
    """What is wrong by the noise of one run, with that of several draws beside it.

    A row that is wrong alone may have the noise that it has in the worst of them: of what cancels there is
    much. The whole of few rows may have as much more or less than in one run as the draws differ.
    """
    same = [one for one in made if one.shape == twice.fine.shape]
    if len(same) < DRAWS:
        return found
    if _by_rows_alone(found):
        return held(replace(twice, draws=tuple(same)), mine)
    noises = [float((one - twice.fine).norm()) for one in same]
    if found.error is None or found.allowed is None or not (min(noises) > 0 and found.error > found.allowed):
        return found  # a bias, or what is not finite, is no matter of how large the noise is
    spread = max(noises) / min(noises)
    allowed = found.allowed * spread
    if found.error > allowed:
        return found
    reason = f"{found.reason}, times {spread:.3g} for noise that {DRAWS} draws of it differ by"
    return replace(found, outcome="right", why="", allowed=allowed, reason=reason)
