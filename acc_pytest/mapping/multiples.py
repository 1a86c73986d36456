"""A tensor that its own side multiplies by a number before it goes on, where the other side's is a multiple
already.

Some models scale their embeddings, some engines scale the outputs of experts when they add them up, and
Hugging Face does either inside the module. The number is that of the side's own next tensor, so a wrong one
stays wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..lazy_torch import torch
from .operand_shards import OperandShards
from .pair import Operand

_SAMPLE = 1 << 20
"""Elements that are read, from the start."""
_RESIDUE = 0.02
"""Largest share of the next tensor beside the multiple: it is rounded, perhaps to bfloat16."""


def multiplied(side: OperandShards, operand: Operand, partner: OperandShards) -> tuple[OperandShards, str]:
    """The side times the number that it is multiplied by next, and a note; unchanged where the multiple is no
    nearer to the other side, or where the next tensor is no multiple."""
    if not operand.onward:
        return side, ""
    factor = _factor([_total([ref.open() for ref in refs]) for refs in operand.onward])
    if abs(factor - 1) <= _RESIDUE:
        return side, ""
    total, partner_total = _total(side.shards), _total(partner.shards)
    if total is None or partner_total is None or total.numel() != partner_total.numel():
        return side, ""
    if float((factor * total - partner_total).norm()) >= float((total - partner_total).norm()):
        return side, ""
    shards = [(shard.float() * factor).to(shard.dtype) for shard in side.shards]
    return replace(side, shards=shards), f"times {factor:.6g}, as its own side multiplies it next"


def _factor(totals: Sequence[torch.Tensor | None]) -> float:
    """The factor from a tensor to the next one, to which another tensor may be added; 1 where the next tensor
    is no multiple."""
    tensors = [total for total in totals if total is not None]
    if len(tensors) < len(totals) or len({total.numel() for total in tensors}) > 1:
        return 1.0
    summands, next_tensor = torch.stack([tensors[0], *tensors[2:]], -1), tensors[1]
    factors = torch.linalg.lstsq(summands, next_tensor[:, None]).solution
    residue = float((next_tensor - (summands @ factors)[:, 0]).norm())
    if not residue <= _RESIDUE * float(next_tensor.norm()) or not float(factors[-1]):
        return 1.0
    return float(factors[0] / factors[-1] if len(tensors) > 2 else factors[0])


def _total(shards: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The start of a tensor that every rank has, or the sum of summands; `None` where it is not finite."""
    if len({shard.numel() for shard in shards}) != 1 or not shards[0].is_floating_point():
        return None
    numbers = [shard.reshape(-1)[:_SAMPLE].double() for shard in shards]
    if not all(bool(values.isfinite().all()) for values in numbers):
        return None
    if all(torch.allclose(numbers[0], values, rtol=_RESIDUE / 4) for values in numbers[1:]):
        return numbers[0]
    return torch.stack(numbers).sum(0)
