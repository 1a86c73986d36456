"""A tensor that its own side multiplies by a number before it goes on, where the other side's is a multiple
already.

Some models scale their embeddings, some engines scale what experts give when they add it up, and Hugging Face
does either inside the module. The number is that of the side's own next tensor, so one that is wrong stays
wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..lazy_torch import torch
from .operand_shards import OperandShards
from .pair import Operand

_SAMPLE = 1 << 20
"""Elements that are looked at, from the start."""
_LEFT = 0.02
"""What may be left of the next tensor beside the multiple: it is rounded, perhaps to bfloat16."""


def multiplied(side: OperandShards, operand: Operand, other: OperandShards) -> tuple[OperandShards, str]:
    """The side times the number that its own side multiplies it by next, and that in words; as it is where
    that is no nearer to the other side, or where something else happens to it."""
    if not operand.onward:
        return side, ""
    factor = _factor([_total([ref.open() for ref in refs]) for refs in operand.onward])
    if abs(factor - 1) <= _LEFT:
        return side, ""
    whole, wanted = _total(side.shards), _total(other.shards)
    if whole is None or wanted is None or whole.numel() != wanted.numel():
        return side, ""
    if float((factor * whole - wanted).norm()) >= float((whole - wanted).norm()):
        return side, ""
    shards = [(shard.float() * factor).to(shard.dtype) for shard in side.shards]
    return replace(side, shards=shards), f"times {factor:.6g}, as its own side multiplies it next"


def _factor(totals: Sequence[torch.Tensor | None]) -> float:
    """What a tensor is multiplied by to give the next one, beside another one that is added; 1 where that is
    not what happens."""
    known = [total for total in totals if total is not None]
    if len(known) < len(totals) or len({total.numel() for total in known}) > 1:
        return 1.0
    parts, after = torch.stack([known[0], *known[2:]], -1), known[1]
    factors = torch.linalg.lstsq(parts, after[:, None]).solution
    left = float((after - (parts @ factors)[:, 0]).norm())
    if not left <= _LEFT * float(after.norm()) or not float(factors[-1]):
        return 1.0
    return float(factors[0] / factors[-1] if len(known) > 2 else factors[0])


def _total(shards: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The start of a tensor that every rank has, or the sum of summands; `None` where it is no finite one."""
    if len({shard.numel() for shard in shards}) != 1 or not shards[0].is_floating_point():
        return None
    numbers = [shard.reshape(-1)[:_SAMPLE].double() for shard in shards]
    if not all(bool(each.isfinite().all()) for each in numbers):
        return None
    if all(torch.allclose(numbers[0], each, rtol=_LEFT / 4) for each in numbers[1:]):
        return numbers[0]
    return torch.stack(numbers).sum(0)
