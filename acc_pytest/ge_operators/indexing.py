"""Reading and writing at places that a tensor holds.

A place below 0 counts from the end where the attribute says so; else, and beyond the end, kernels do as they
like, so that nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .registry import REQUIRED, GeCall, Unrounded, ge_operator

_LOOKUP = {"batch_dims": 0, "is_preprocessed": False, "negative_index_support": False}


def _inside(call: GeCall, places: torch.Tensor, size: int, negative: bool = False) -> torch.Tensor:
    """`places` counted from the front. Raises `OperatorError` for one that is not there."""
    is_integer = not places.is_floating_point() and places.dtype != torch.bool
    call.need(is_integer, f"places of type {places.dtype}")
    indices = places.long()
    if indices.numel():
        low, high = int(indices.min()), int(indices.max())
        call.need(low >= (-size if negative else 0) and high < size, f"place {low} or {high} of {size}")
    return torch.where(indices < 0, indices + size, indices)


@ge_operator("Gather", "x indices", moves=True, validate_indices=True, **_LOOKUP)
@ge_operator("GatherV2", "x indices axis#", moves=True, **_LOOKUP)
@ge_operator("GatherV2D", "x indices axis#", moves=True, axis=REQUIRED)
def _gather(call: GeCall, x: torch.Tensor, indices: torch.Tensor, axis: int = 0) -> torch.Tensor:
    call.need(not call.attrs.get("batch_dims", 0), "batch_dims other than 0")
    axis = call.axis(axis, x.ndim)
    places = _inside(call, indices, x.shape[axis], call.attrs.get("negative_index_support", False))
    call.room((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))
    rows = x.index_select(axis, places.reshape(-1))
    return rows.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])


@ge_operator("GatherElements", "x index", moves=True, dim=0)
def _gather_elements(call: GeCall, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    axis = call.axis(call.attrs["dim"], x.ndim)
    return x.gather(axis, _inside(call, index, x.shape[axis], True))


@ge_operator("GatherNd", "x indices", moves=True, negative_index_support=False)
def _gather_nd(call: GeCall, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    negative = call.attrs["negative_index_support"]
    return x[_columns(call, x, indices, negative)]


def _columns(
    call: GeCall, x: torch.Tensor, indices: torch.Tensor, negative: bool = False
) -> tuple[torch.Tensor, ...]:
    """The last dimension of `indices` as one index for each leading dimension of `x`."""
    call.need(indices.ndim > 0 and 0 < indices.shape[-1] <= x.ndim, "indices do not fit the tensor")
    columns = indices.unbind(-1)
    call.room((*columns[0].shape, *x.shape[len(columns) :]))
    return tuple(_inside(call, column, x.shape[axis], negative) for axis, column in enumerate(columns))


@ge_operator("ScatterElements", "data indices updates", axis=0, reduction="none")
def _scatter_elements(
    call: GeCall, data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor
) -> Unrounded:
    axis = call.axis(call.attrs["axis"], data.ndim)
    places = _inside(call, indices, data.shape[axis], True)
    reduction = call.attrs["reduction"]
    call.need(reduction in ("none", "add"), f"reduction={reduction!r:.100} is not known")
    if reduction == "add":
        value = data.scatter_add(axis, places, updates)
        return Unrounded(value, magnitude=lambda: data.abs().scatter_add(axis, places, updates.abs()))
    counts = torch.zeros(data.shape, dtype=torch.int8).scatter_add(
        axis, places, torch.ones(places.shape, dtype=torch.int8)
    )
    call.need(not bool((counts > 1).any()), "one place is written twice, in an order that nobody knows")
    return Unrounded(data.scatter(axis, places, updates), moved=True)


@ge_operator("ScatterUpdate", "var indices updates", moves=True, use_locking=False)
def _scatter_update(
    call: GeCall, var: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    places = _once(call, _inside(call, indices, var.shape[0]).reshape(-1))
    return var.index_copy(0, places, updates.reshape(places.numel(), *var.shape[1:]))


@ge_operator("ScatterNdUpdate TensorScatterUpdate", "var indices updates", moves=True, use_locking=False)
def _scatter_nd_update(
    call: GeCall, var: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    _once(call, indices.reshape(-1, indices.shape[-1]), rows=True)
    return var.index_put(_columns(call, var, indices), updates)


@ge_operator("IndexPutV2", "x value indexed_sizes[] indexed_strides *indices", accumulate=False)
def _index_put(
    call: GeCall,
    x: torch.Tensor,
    value: torch.Tensor,
    sizes: list[int],
    _strides: torch.Tensor,
    indices: list[torch.Tensor],
) -> Unrounded:
    index = _index(call, x, sizes, indices)
    spots = torch.arange(x.numel()).reshape(x.shape)[index]
    places, values = spots.reshape(-1), value.expand(spots.shape).reshape(-1)

    def added(data: torch.Tensor, addends: torch.Tensor) -> torch.Tensor:
        return data.reshape(-1).index_add(0, places, addends).reshape(x.shape)

    if call.attrs["accumulate"]:
        return Unrounded(added(x, values), magnitude=lambda: added(x.abs(), values.abs()))
    _once(call, places)
    return Unrounded(x.reshape(-1).index_copy(0, places, values).reshape(x.shape), moved=True)


@ge_operator("Index", "x indexed_sizes[] indexed_strides *indices", moves=True)
def _index_by_mask(
    call: GeCall, x: torch.Tensor, sizes: list[int], _strides: torch.Tensor, indices: list[torch.Tensor]
) -> torch.Tensor:
    return x[_index(call, x, sizes, indices)]


@ge_operator("IndexByTensor", "x indices_mask[] *indices", moves=True, indices_mask=())
def _index_by_tensor(
    call: GeCall, x: torch.Tensor, mask: list[int], indices: list[torch.Tensor]
) -> torch.Tensor:
    return x[_index(call, x, mask, indices)]


def _index(call: GeCall, x: torch.Tensor, mask: Sequence[int], indices: Sequence[torch.Tensor]) -> Any:
    """An index of each dimension: a tensor of `indices` where `mask` has a 1, else all of it."""
    mask = mask or [1] * len(indices)
    call.need(len(mask) <= x.ndim and set(mask) <= {0, 1}, "its mask does not fit the tensor")
    call.need(sum(mask) == len(indices), f"{sum(mask)} dimensions are indexed by {len(indices)} tensors")
    remaining = iter(indices)
    index: list[Any] = []
    for axis, indexed in enumerate(mask):
        index.append(_inside(call, next(remaining), x.shape[axis], True) if indexed else slice(None))
    tensors = [entry for entry in index if isinstance(entry, torch.Tensor)]
    elements = math.prod(call.common(*tensors))
    for axis, size in enumerate(x.shape):
        elements *= 1 if axis < len(mask) and mask[axis] else size
    call.room((elements,))
    return tuple(index)


def _once(call: GeCall, places: torch.Tensor, rows: bool = False) -> torch.Tensor:
    """`places`, if each is written once. Raises `OperatorError`."""
    count = places.shape[0] if rows else places.numel()
    distinct = len(torch.unique(places, dim=0)) if count else 0
    call.need(distinct == count, "one place is written twice, in an order that nobody knows")
    return places


# Operators that choose: the largest, the places of these, by a condition.
#
# Among equal values an operator may choose any, so places are compared by what lies there.


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
