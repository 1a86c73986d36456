"""Is a tensor the sum of two that were compared before it? Residual streams, without a model or its names.

Where golden's tensor is the sum of two earlier ones but for its rounding, that is what its module computed,
whatever it is called. If that of mine is the sum of their partners as well, it follows from them: their
errors come together in it, also where large values cancel. Another result says nothing: mine may add
unrounded values, or in another place.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import torch

from ..errors import AccError
from ..judging.tolerance import scatter_of
from ..mapping.pair import Plan
from ..mapping.reconcile import Opened, open_pair
from ..tensors.dtypes import by_torch
from ..tensors.source import Source
from .measured_bound import RATIO
from .projected import whole
from .recomputation import Recomputation, Recomputer, attempted

_SUMMANDS = 16
"""The latest tensors of the same size that are tried."""
_BLOCKS = 16
"""Blocks of as many elements that rule out most pairs of summands."""
_REASON = "twice what rounding of the two summands and the sum makes of a row, by its width"


class WithSums(Recomputer):
    """A recomputer, and sums for what it knows nothing of."""

    def __init__(self, recomputer: Recomputer, plan: Plan, limit: int) -> None:
        self._recomputer = recomputer
        self._plan = plan
        self._limit = limit
        self._sums: dict[int, Recomputation] = {}

    def of_pair(self, number: int) -> Recomputation:
        """See `Recomputer.of_pair`."""
        recomputed = self._recomputer.of_pair(number)
        if recomputed.outcome:
            return recomputed
        if number not in self._sums:
            self._sums[number] = attempted(lambda: self._summed(number), "looking for summands")
        return self._sums[number] if self._sums[number].outcome else recomputed

    def of_operator(self, number: int, path: str) -> Recomputation:
        """See `Recomputer.of_operator`."""
        return self._recomputer.of_operator(number, path)

    def of_golden(self, number: int) -> Recomputation:
        """See `Recomputer.of_golden`."""
        return self._recomputer.of_golden(number)

    def unlike(self, number: int, path: str) -> str:
        """See `Recomputer.unlike`."""
        return self._recomputer.unlike(number, path)

    def _summed(self, number: int) -> Recomputation:
        """Raises `AccError` where a tensor cannot be opened."""
        pair = self._plan.pairs[number]
        parents = [parent for parent in self._plan.parents[number] if not self._plan.pairs[parent].fed]
        if pair.fed or not parents:
            return Recomputation()
        total = open_pair(pair)
        size = math.prod(total.golden.shape)
        if size > self._limit or any(
            by_torch(side.dtype).format is None for side in (total.golden, total.mine)
        ):
            return Recomputation()
        earlier = [
            (str(parent), opened)
            for parent in parents[-_SUMMANDS:]
            if (opened := self._opened(parent)) is not None and opened.golden.shape == total.golden.shape
        ]
        sampled = _sampled(total.golden)
        for addends in (*combinations(earlier, 1), *combinations(earlier, 2)):
            goldens = [opened.golden for _, opened in addends]
            if _is_sum(sampled, *map(_sampled, goldens)) and _is_sum(
                whole(total.golden), *map(whole, goldens)
            ):
                sums = _held_against(whole(total.mine), *(whole(opened.mine) for _, opened in addends))
                return (
                    replace(sums, summands=" ".join(number for number, _ in addends))
                    if sums.outcome
                    else sums
                )
        return Recomputation()

    def _opened(self, number: int) -> Opened | None:
        try:
            opened = open_pair(self._plan.pairs[number])
        except AccError:
            return None
        floats = (by_torch(side.dtype).format is not None for side in (opened.golden, opened.mine))
        return opened if all(floats) else None


def _sampled(source: Source) -> torch.Tensor:
    """Blocks of the elements of a source, evenly spread."""
    size = math.prod(source.shape)
    starts = range(0, size, max(1, size // _BLOCKS))
    return torch.cat([source.read(start, min(start + _BLOCKS, size)) for start in starts])


def _rounding(*tensors: torch.Tensor) -> torch.Tensor:
    """The largest rounding of each element, of all tensors together."""
    return torch.stack([_roundoff(tensor) * tensor.double().abs() for tensor in tensors]).sum(0)


def _roundoff(tensor: torch.Tensor) -> float:
    fmt = by_torch(tensor.dtype).format
    assert fmt is not None
    return fmt.roundoff


def _is_sum(total: torch.Tensor, *summands: torch.Tensor) -> bool:
    """Whether each element is the sum of the others, as all of them are rounded."""
    off = total.double() - sum(
        (summand.double() for summand in summands), torch.zeros((), dtype=torch.float64)
    )
    return bool(total.any()) and bool((off.abs() <= _rounding(total, *summands)).all())


def _held_against(total: torch.Tensor, *summands: torch.Tensor) -> Recomputation:
    """Right where each row [.., width] is off by no more than twice what rounding makes of it; else unknown.

    Rounding to the nearest has a root mean square of at most u / sqrt(3) of the value, u the unit roundoff.
    """
    exact = sum((summand.double() for summand in summands), torch.zeros((), dtype=torch.float64))
    error = (total.double() - exact).reshape(-1, total.shape[-1] if total.ndim else 1)
    squares = [(_roundoff(side) * side.double()).square().reshape(error.shape) for side in (total, *summands)]
    noise = (torch.stack([side.sum(1) for side in squares]).sum(0) / 3).sqrt()
    norm = float(exact.norm())
    if not math.isfinite(norm) or norm == 0.0:
        return Recomputation()
    scatter = RATIO * scatter_of(error.shape[1])
    if bool((error.norm(dim=1) > scatter * noise).any()):
        return Recomputation(why="it is no sum of what golden adds up there")
    relative, level = float(error.norm()) / norm, float(noise.norm()) / norm
    return Recomputation("right", relative, noise=level, allowed=scatter * level, reason=_REASON)
