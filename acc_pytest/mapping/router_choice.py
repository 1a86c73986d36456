"""The choice of a router, from its logits, where the other side's dump holds the choice itself."""

from __future__ import annotations

from dataclasses import replace

from ..errors import Incomparable, NoPayload
from ..lazy_torch import torch
from ..tensors.ref import TensorRef
from .engine_views import Largest, TopPlaces
from .pair import Operand
from .views import View

_ALIKE = 0.98
"""Share of the other side's tokens whose choice must be the largest of its logits; equal ones may swap."""


def largest(logits: torch.Tensor, view: Largest | TopPlaces) -> torch.Tensor:
    """The places of the largest logits of each row.

    Raises `Incomparable` for logits of fewer places, `NoPayload` where the router is known to choose
    otherwise (by groups of experts, or after a correction): the other side's, or that of these logits.
    """
    if not logits.dim() or logits.shape[-1] < view.count:
        raise Incomparable(f"logits of shape {list(logits.shape)} are not of {view.count} experts or more")
    if logits.device.type == "meta":
        return logits.new_empty((*logits.shape[:-1], view.count), dtype=torch.int64)
    if isinstance(view, TopPlaces):
        return _as_often(_largest_places(logits, view.count), view)
    values, chosen = view.values.open(), view.chosen.open().long()
    places = _largest_places(values, view.count)
    if places.shape != chosen.shape or float((places == chosen).all(-1).float().mean()) < _ALIKE:
        raise NoPayload("the other side's router does not choose the largest of its logits")
    return _largest_places(logits, view.count)


def _as_often(places: torch.Tensor, view: TopPlaces) -> torch.Tensor:
    counts = places.flatten().bincount(minlength=len(view.taken))
    if int((counts - torch.tensor(view.taken)).clamp_min(0).sum()) > (1 - _ALIKE) * places.numel():
        raise NoPayload("the experts did not run on the largest of these values")
    return places


def values_beside(view: View, refs: tuple[TensorRef, ...]) -> tuple[TensorRef, ...]:
    """The tensors of the other side that are of the same kind: what a router chose from, for its choice."""
    return (view.values,) if isinstance(view, Largest) else refs


def with_router_choices(golden: Operand, mine: Operand) -> tuple[Operand, Operand]:
    """The operands of a router's choice with the logits that either side chose from."""
    for view, golden_values, mine_values in (
        (mine.view, None, mine.refs[:1]),
        (golden.view, golden.refs[:1], None),
    ):
        if isinstance(view, Largest):
            values = (view.values,)
            return (
                replace(golden, chosen_from=golden_values or values),
                replace(mine, chosen_from=mine_values or values),
            )
    return golden, mine


def _largest_places(logits: torch.Tensor, count: int) -> torch.Tensor:
    return logits.float().topk(min(count, logits.shape[-1]), -1).indices
