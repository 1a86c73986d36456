"""Where golden's values belong in the tensors that an ATB dump has of mine.

A pair says how two tensors are brought to one shape. The same with the places of elements instead of their
values tells where each of them stood: in a piece of a packed tensor, in the shard of a rank, in the rows of a
cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..errors import OperatorError
from ..mapping.engine_views import RowParallel, WithResidual
from ..mapping.operand_shards import open_shards, shards_of
from ..mapping.pair import Operand, Pair
from ..mapping.reconcile import open_pair, reconcile
from .projected_pairs import whole

_STARTS = 64
"""Places in a cache at which what was stored there is looked for."""


@dataclass(frozen=True, slots=True)
class GoldenValues:
    """Where golden's values belong in a tensor of mine: `mine` is that tensor, flat, and `values` of it stand
    at `places`."""

    mine: torch.Tensor
    places: torch.Tensor
    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return self.mine.nbytes + self.places.nbytes + self.values.nbytes

    def put(self, given: torch.Tensor, into: torch.Tensor) -> bool:
        """Put the values into the flat tensor that `given` becomes, if it holds those of mine; whether it
        does."""
        flat = given.reshape(-1)
        if given.dtype != self.mine.dtype or flat.numel() < self.mine.numel():
            return False
        for start in self._starts(flat):
            if torch.equal(flat[start + self.places], self.mine[self.places]):
                into[start + self.places] = self.values
                return True
        return False

    def _starts(self, given: torch.Tensor) -> list[int]:
        """Where in a longer tensor (a cache of keys) all of this one may begin."""
        room = given.numel() - self.mine.numel() + 1
        if room == 1:
            return [0]
        place = int(self.places[0])
        return (given[place : place + room] == self.mine[place]).nonzero()[:_STARTS, 0].tolist()


def golden_values(pair: Pair) -> Iterator[GoldenValues]:
    """By numbers instead of values: what is compared tells at which places it stood. It must hold the values
    that stand there, or it is a sum, and no place."""
    tensors = [ref.open() for ref in pair.mine.refs]
    alike = isinstance(pair.mine.view, (RowParallel, WithResidual))  # told by the values: all ranks have them
    starts = [0 if alike else sum(one.numel() for one in tensors[:rank]) for rank in range(len(tensors))]
    numbered = [
        torch.arange(start, start + one.numel(), dtype=torch.float64).reshape(one.shape)
        for start, one in zip(starts, tensors)
    ]
    values = open_pair(pair).comparisons
    places = reconcile(open_shards(pair.golden), shards_of(pair.mine, numbered)).comparisons
    for value, place in zip(values, places):
        at, seen = whole(place.mine).reshape(-1).long(), whole(value.mine).reshape(-1)
        golden = whole(value.golden).reshape(-1)
        for rank, (start, tensor) in enumerate(zip(starts, tensors)):
            flat = tensor.reshape(-1)
            here = (at >= start) & (at < start + flat.numel())
            own, numbers = at[here] - start, golden[here].double()
            scale = scale_of(pair.mine, rank)
            if scale is not None:
                stands = ((flat[own].float() - scale[1]) * scale[0]).to(seen.dtype)
                numbers = numbers / scale[0].double() + scale[1].double()
            else:
                stands = flat[own]
            if own.numel() and torch.equal(stands, seen[here].to(stands.dtype)):
                yield GoldenValues(flat, own, numbers)


def scale_of(operand: Operand, rank: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Scale and offset of whole numbers that stand for others; `None` of other tensors.

    Raises `OperatorError` where each channel has its own.
    """
    if not operand.scales or operand.refs[rank].open().dtype != torch.int8:
        return None
    scale, offset = (ref.open().float().reshape(-1) for ref in operand.scales[rank])
    if scale.numel() != 1 or offset.numel() > 1:
        raise OperatorError("each channel has a scale of its own")
    return scale, offset if offset.numel() else torch.zeros(1)
