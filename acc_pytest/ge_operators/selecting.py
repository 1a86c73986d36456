"""Operators that choose: the largest, the places of these, by a condition.

Among equal values an operator may choose any, so places are compared by what lies there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .registry import REQUIRED, GeCall, Unrounded, ge_operator


@ge_operator("TopK TopKV2", "x k#", sorted=True, dim=-1, largest=True, sort_policy=1, indices_dtype=3)
@ge_operator("TopKD", "x assist_seq~ k#", k=REQUIRED, sorted=True, dim=-1, largest=True)
def _topk(call: GeCall, x: torch.Tensor, count: float) -> list[Unrounded]:
    axis = call.axis(call.attrs["dim"], x.ndim)
    values, places = x.topk(int(count), axis, call.attrs["largest"])
    ordered = bool(call.attrs["sorted"])
    return [
        Unrounded(values, moved=True, image=None if ordered else lambda mine: mine.sort(axis).values),
        Unrounded(places, image=_by_value(x, axis, ordered)),
    ]


@ge_operator("Sort", "x", axis=-1, descending=False, stable=False)
def _sort(call: GeCall, x: torch.Tensor) -> list[Unrounded]:
    axis = call.axis(call.attrs["axis"], x.ndim)
    values, places = x.sort(axis, call.attrs["descending"])
    return [Unrounded(values, moved=True), Unrounded(places, image=_by_value(x, axis, True))]


def _by_value(x: torch.Tensor, axis: int, ordered: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Places to the values there and, beside them, the number of places that were chosen twice."""

    def image(places: torch.Tensor) -> torch.Tensor:
        size = x.shape[axis]
        chosen = places.long()
        outside = (chosen < 0) | (chosen >= size)
        values = x.gather(axis, chosen.clamp(0, size - 1)).masked_fill(outside, torch.nan)
        ranked = chosen.sort(axis).values
        twice = (ranked.diff(dim=axis) == 0).sum(axis, keepdim=True)
        return torch.cat([values if ordered else values.sort(axis).values, twice.to(x.dtype)], axis)

    return image


@ge_operator("ArgMaxV2 ArgMin", "x dimension#", dtype=9)
@ge_operator("ArgMaxD", "x dimension#", dimension=REQUIRED, dtype=9)
@ge_operator("ArgMaxWithValue", "x dimension#", dimension=REQUIRED, keep_dims=False)
def _extreme(call: GeCall, x: torch.Tensor, axis: int) -> list[Unrounded]:
    """The place of the largest or smallest, and of `ArgMaxWithValue` the value there."""
    axis, keep_dims = call.axis(axis, x.ndim), call.attrs.get("keep_dims", False)
    values, places = (torch.min if call.op_type == "ArgMin" else torch.max)(x, axis, keep_dims)

    def image(mine: torch.Tensor) -> torch.Tensor:
        chosen = mine.long() if keep_dims else mine.long().unsqueeze(axis)
        outside = (chosen < 0) | (chosen >= x.shape[axis])
        return x.gather(axis, chosen.clamp(0, x.shape[axis] - 1)).masked_fill(outside, torch.nan)

    outputs = [Unrounded(places, image=image), Unrounded(values, moved=True)]
    return outputs if call.op_type == "ArgMaxWithValue" else outputs[:1]


@ge_operator("Select SelectV2", "condition x1 x2", moves=True)
def _select(call: GeCall, condition: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    call.common(condition, x1, x2)
    if call.op_type == "Select" and condition.ndim < x1.ndim:
        condition = condition.reshape(*condition.shape, *(1,) * (x1.ndim - condition.ndim))
    return torch.where(condition.bool(), x1, x2)


@ge_operator("MaskedFill", "x mask value", moves=True)
def _masked_fill(call: GeCall, x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    call.common(x, mask)
    return torch.where(mask.bool(), value.to(x.dtype), x)


@ge_operator("Tril Triu", "x", moves=True, diagonal=0)
def _triangle(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    return (x.tril if call.op_type == "Tril" else x.triu)(call.attrs["diagonal"])
