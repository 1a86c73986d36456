"""A tensor that is wrong by the noise of one run, held against that of several draws of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from .complex_values import in_reals
from .measured_bound import Twice, held
from .recomputation import Recomputation

DRAWS = 8
"""Runs of a module whose inputs are off by roundings: how much its noise varies."""


def asks_for_draws(found: Recomputation) -> bool:
    """Whether the noise of one run may say too little of a tensor that is wrong beside it. A head that looks
    at one token alone rounds nothing, and one that looks at two nearly alike much, so that a few rows may
    have all of the noise, and in one direction."""
    return found.outcome == "wrong" and found.error is not None


def with_draws(twice: Twice, mine: torch.Tensor, made: Sequence[torch.Tensor]) -> Recomputation:
    """What is wrong by the noise of one run, held against that of several draws beside it (`Twice.draws`).
    Draws of another shape, which chose otherwise, tell nothing, nor do fewer than all."""
    same = tuple(one for one in made if one.shape == twice.fine.shape)
    return held(replace(twice, draws=same if len(same) == DRAWS else ()), mine)


def noisier(twice: Twice, other: torch.Tensor | None) -> Twice:
    """The same with the `other` rounded computation where that is further off."""
    if other is None or other.shape != twice.fine.shape:
        return twice
    fine = in_reals(twice.fine).double()
    off, before = (float((in_reals(one).double() - fine).norm()) for one in (other, twice.rounded))
    return replace(twice, rounded=other) if off > before else twice


def stored_as(rounded: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    """A rounded computation as mine stores it. A trace of a golden in float32 may lack the cast that ends it:
    there it gave back what it was given."""
    floats = rounded.is_floating_point() and mine.is_floating_point()
    return rounded.to(mine.dtype) if floats and mine.itemsize < rounded.itemsize else rounded
