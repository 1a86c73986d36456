"""Replicas and partial sums: the values of ranks, and the tensors after them, say which of both they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import Incomparable
from ..lazy_torch import torch
from ..tensors.dtypes import by_torch
from ..tensors.source import Source, TensorSource
from ..tensors.views import ExactSum
from .engine_views import RowParallel, WithResidual
from .operand_shards import OperandShards
from .views import RankSum, Whole

_SAMPLE = 1 << 20
"""Leading elements that are compared."""


@dataclass(frozen=True, slots=True)
class RankNote:
    """A note on the values of the ranks, and the cause of a failure that they suggest, or empty."""

    note: str = ""
    suspect: str = ""


def settled(side: OperandShards, opposite: OperandShards) -> tuple[OperandShards, RankNote]:
    """The side as one of replicas or of summands, with a note why; other sides as they are."""
    view = side.view
    if not isinstance(view, (RowParallel, WithResidual)):
        return side, RankNote()
    replicas, summands = replace(side, view=Whole()), replace(side, view=RankSum(), settled=True)
    sizes = {shard.numel() for shard in (*side.shards, *opposite.shards)}
    apart = side.count == 1 or len(sizes) > 1
    if apart or side.shards[0].device.type == "meta" or _alike(side.shards):
        return replicas, RankNote()
    difference = f"the tensors of {side.count} ranks differ"
    after = [ref.open() for ref in view.witness]
    fits = _sum_fits(side, opposite)
    if after and _alike(after):
        return summands, RankNote(f"{difference}, what comes after them does not: they are partial sums")
    if fits and not after:
        return summands, RankNote(f"{difference}, and their sum fits the other side: they are partial sums")
    note = f"{difference}, and so does what comes after them" if after else difference
    missing = f"each rank kept its partial sum: {note}, only their sum fits" if fits else ""
    return replicas, RankNote(note, missing)


def with_residual(source: Source, residual: tuple[torch.Tensor, ...], rank: int) -> Source:
    """The summand of a layer plus the stream that it is added to, which every rank holds."""
    stream = TensorSource(residual[min(rank, len(residual) - 1)])
    if math.prod(stream.shape) != math.prod(source.shape):
        raise Incomparable(f"a residual of shape {list(stream.shape)} does not fit {list(source.shape)}")
    return ExactSum([source, stream])


def distance(reference: torch.Tensor, tensor: torch.Tensor) -> float:
    """The L2 error of a tensor relative to a reference; infinite where their shapes differ."""
    if reference.shape != tensor.shape:
        return float("inf")
    norm, error = float(reference.norm()), float((reference - tensor).norm())
    return error / norm if norm else error


def _alike(shards: Sequence[torch.Tensor]) -> bool:
    """Whether all ranks hold the same, but for what rounding may do."""
    first = _numbers(shards[0])
    roundoff = by_torch(shards[0].dtype).roundoff or 0.0
    return all(distance(first, _numbers(shard)) <= 2 * roundoff for shard in shards[1:])


def _sum_fits(side: OperandShards, opposite: OperandShards) -> bool:
    """Whether the sum is much nearer to the other side, or to its sum, than any summand."""
    if opposite.shards[0].numel() != side.shards[0].numel():
        return False
    alike = _alike(opposite.shards)
    if not alike and not isinstance(opposite.view, (RowParallel, WithResidual)):
        return False
    target = _numbers(opposite.shards[0]) if alike else torch.stack([*map(_numbers, opposite.shards)]).sum(0)
    for added, sign in ((opposite.residual, 1), (side.residual, -1)):
        if added and added[0].numel() == side.shards[0].numel():
            target = target + sign * _numbers(added[0])
    summands = [_numbers(shard) for shard in side.shards]
    total = torch.stack(summands).sum(0)
    return distance(target, total) < min(distance(target, summand) for summand in summands) / 4


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.flatten()
    return flat[:_SAMPLE].float()
