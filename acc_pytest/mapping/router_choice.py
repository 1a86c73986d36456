"""What a router chose, from its logits, where the other side's dump holds the choice itself."""

from __future__ import annotations

import torch

from ..errors import Incomparable, NoPayload
from .engine_views import Largest

_ALIKE = 0.98
"""Share of the other side's tokens whose choice must be the largest of its logits; equal ones may swap."""


def largest(logits: torch.Tensor, view: Largest) -> torch.Tensor:
    """The places of the largest logits of each row.

    Raises `Incomparable` for logits of fewer places, `NoPayload` where the other side chose otherwise from
    its own (by groups of experts, or after a correction).
    """
    if not logits.dim() or logits.shape[-1] < view.count:
        raise Incomparable(f"logits of shape {list(logits.shape)} are not of {view.count} experts or more")
    if logits.device.type == "meta":
        return logits.new_empty((*logits.shape[:-1], view.count), dtype=torch.int64)
    values, chosen = view.values.open(), view.chosen.open().long()
    own = _places(values, view.count)
    if own.shape != chosen.shape or float((own == chosen).all(-1).float().mean()) < _ALIKE:
        raise NoPayload("the other side's router does not choose the largest of its logits")
    return _places(logits, view.count)


def _places(logits: torch.Tensor, count: int) -> torch.Tensor:
    return logits.float().topk(min(count, logits.shape[-1]), -1).indices
