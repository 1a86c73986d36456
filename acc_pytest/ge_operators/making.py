"""Operators that repeat values or make them from nothing but numbers."""

from __future__ import annotations

import torch

from .constants import dtype_of
from .registry import REQUIRED, GeCall, Unrounded, ge_operator


@ge_operator("BroadcastTo Expand", "x shape[]", moves=True)
@ge_operator("BroadcastToD ExpandD", "x shape[]", moves=True, shape=REQUIRED)
def _broadcast(call: GeCall, x: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """To `shape`, in which -1 keeps a size; a 1 may stay as wide as it is (`Expand`)."""
    missing = len(shape) - x.ndim
    call.need(missing >= 0, f"{x.ndim} dimensions do not become {len(shape)}")
    sizes = [1] * missing + list(x.shape)
    target = [size if length in (-1, 1) else length for length, size in zip(shape, sizes)]
    return x.expand(call.room(target))


@ge_operator("TileWithAxis", "x axis# tiles#", moves=True, axis=1, tiles=REQUIRED)
def _tile_with_axis(call: GeCall, x: torch.Tensor, axis: int, tiles: int) -> torch.Tensor:
    times = [1] * x.ndim
    times[call.axis(axis, x.ndim)] = tiles
    return _tile(call, x, times)


@ge_operator("Tile", "x multiples[]", moves=True)
@ge_operator("TileD", "x multiples[]", moves=True, multiples=REQUIRED)
def _tile(call: GeCall, x: torch.Tensor, times: list[int]) -> torch.Tensor:
    call.need(len(times) == x.ndim, "not one multiple a dimension")
    call.room([size * multiple for size, multiple in zip(x.shape, times)])
    return x.repeat(*times) if times else x


@ge_operator("Fill", "dims[] value", moves=True)
@ge_operator("FillD", "dims[] value", moves=True, dims=REQUIRED)
def _fill(call: GeCall, dims: list[int], value: torch.Tensor) -> torch.Tensor:
    call.scalar(value, "value")
    return value.reshape(()).expand(call.room(dims))


@ge_operator("FillV2", "dims[] value#", value=0.0)
def _fill_v2(call: GeCall, dims: list[int], value: float) -> torch.Tensor:
    return torch.full(call.room(dims), value, dtype=torch.float64)


@ge_operator("ZerosLike OnesLike", "x", moves=True)
def _alike(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x) if call.op_type == "ZerosLike" else torch.ones_like(x)


@ge_operator("Range", "start limit delta", is_closed=False)
def _range(call: GeCall, start: torch.Tensor, limit: torch.Tensor, delta: torch.Tensor) -> Unrounded:
    call.need(not call.attrs["is_closed"], "a closed range")
    first, end, step = (call.scalar(bound, "its bounds") for bound in (start, limit, delta))
    call.need(
        step != 0 and abs(end - first) / abs(step) <= call.max_elements, "as many steps as no dump holds"
    )
    steps = torch.arange(first, end, step, dtype=torch.float64)
    return Unrounded(steps if start.is_floating_point() else steps.long(), magnitude=lambda: steps.abs())


@ge_operator("OneHot", "x depth# on_value off_value", axis=-1)
def _one_hot(call: GeCall, x: torch.Tensor, count: int, on: torch.Tensor, off: torch.Tensor) -> torch.Tensor:
    """Places beyond the depth have no element."""
    call.room((*x.shape, count))
    axis = call.axis(call.attrs["axis"], x.ndim + 1)
    places = torch.arange(count).reshape(count, *(1,) * (x.ndim - axis))
    return torch.where(x.unsqueeze(axis) == places, on, off)


@ge_operator("Shape", "x", moves=True, dtype=3)
def _shape(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    dtype = dtype_of(call.attrs["dtype"])
    call.need(dtype is not None, f"dtype {call.attrs['dtype']} is not a dtype of torch")
    return torch.tensor(tuple(x.shape), dtype=dtype)


@ge_operator("Pad", "x paddings[]", moves=True)
@ge_operator("PadV3", "x paddings[] constant_values#?", moves=True, mode="constant", paddings_contiguous=True)
def _pad(call: GeCall, x: torch.Tensor, sizes: list[int], value: float | None = None) -> torch.Tensor:
    call.need(call.attrs.get("mode", "constant") == "constant", "only mode constant is known")
    ends = list(zip(sizes[::2], sizes[1::2]))
    if not call.attrs.get("paddings_contiguous", True):
        ends = list(zip(sizes[: x.ndim], sizes[x.ndim :]))
    call.need(len(ends) == x.ndim and all(min(pair) >= 0 for pair in ends), "not two paddings a dimension")
    shape = call.room([low + size + high for size, (low, high) in zip(x.shape, ends)])
    result = torch.full(shape, 0 if value is None else value, dtype=x.dtype)
    result[tuple(slice(low, low + size) for size, (low, _) in zip(x.shape, ends))] = x
    return result
