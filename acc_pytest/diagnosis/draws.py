"""A tensor that is wrong by the noise of one run, held against that of several draws of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from .measured_bound import Twice, held
from .recomputation import Recomputation

DRAWS = 8
"""Runs of a module whose inputs are off by roundings: how much its noise varies."""


def asks_for_draws(found: Recomputation) -> bool:
    """Whether the noise of one run may say too little of a tensor that is wrong beside it: as a whole, or a
    row of it. A head that looks at one token alone rounds nothing, and one that looks at two nearly alike
    much, so that a few rows may have all of the noise."""
    return found.outcome == "wrong" and (_by_rows_alone(found) or _as_a_whole(found))


def _as_a_whole(found: Recomputation) -> bool:
    return found.error is not None and found.allowed is not None and found.error > found.allowed


def _by_rows_alone(found: Recomputation) -> bool:
    """Whether the whole is right and a row is not."""
    if found.error is None or found.allowed is None or found.row_error is None or found.row_allowed is None:
        return False
    return found.error <= found.allowed and found.row_error > found.row_allowed


def with_draws(
    found: Recomputation, twice: Twice, mine: torch.Tensor, made: Sequence[torch.Tensor]
) -> Recomputation:
    """What is wrong by the noise of one run, held against that of several draws beside it (`Twice.draws`)."""
    same = tuple(one for one in made if one.shape == twice.fine.shape)
    return found if len(same) < DRAWS else held(replace(twice, draws=same), mine)
