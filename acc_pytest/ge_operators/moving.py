"""Operators that move values: shapes, transpositions, joins, cuts, casts."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..errors import CannotDecode, OperatorError
from ..tensors.dtypes import by_name
from ..topology.ge_graph import GeConstant
from .registry import REQUIRED, GeCall, Unrounded, ge_operator


@ge_operator("Identity TensorMove ReadVariableOp NextIteration", "x", moves=True)
@ge_operator("Assign", "ref~ value", moves=True, validate_shape=True, use_locking=False)
@ge_operator(
    "TransData", "src", moves=True, src_format="", dst_format="", src_subformat=0, dst_subformat=0, groups=1
)
def _identity(_call: GeCall, x: torch.Tensor) -> torch.Tensor:
    """The input as it is: TransData changes the device's layout alone, and logical tensors are compared."""
    return x


@ge_operator("Cast", "x", moves=True, dst_type=REQUIRED, truncate=False)
def _cast(call: GeCall, x: torch.Tensor) -> Unrounded:
    """Wide floats as they are, to be rounded by whoever holds the output; whole numbers wrap."""
    dtype = _CODES.get(call.attrs["dst_type"])
    call.need(dtype is not None, f"dst_type {call.attrs['dst_type']} is not a dtype of torch")
    assert dtype is not None
    if dtype == torch.bool:
        return Unrounded(x != 0)
    if x.is_floating_point():
        return Unrounded(x.double())
    return Unrounded(x.double() if dtype.is_floating_point else x.to(dtype))


@ge_operator("Transpose", "x perm[]", moves=True)
@ge_operator("TransposeD", "x perm[]", moves=True, perm=REQUIRED)
@ge_operator("Permute", "x order[]", moves=True, order=REQUIRED)
def _transpose(_call: GeCall, x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    return x.permute(axes)


@ge_operator("Reshape", "x shape[]", moves=True, axis=0, num_axes=-1)
def _reshape(call: GeCall, x: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """`num_axes` dimensions from `axis` on are replaced, of -1 all of them; a 0 keeps a size."""
    first, count = call.attrs["axis"], call.attrs["num_axes"]
    first = first if first >= 0 else x.ndim + 1 + first
    last = x.ndim if count < 0 else first + count
    call.need(0 <= first <= last <= x.ndim, f"axis {first} and num_axes {count} do not fit {x.ndim}")
    sizes = [x.shape[first + at] if size == 0 and x.numel() else size for at, size in enumerate(shape)]
    return x.reshape([*x.shape[:first], *sizes, *x.shape[last:]])


@ge_operator("ExpandDims UnsqueezeV3", "x axes[]", moves=True)
@ge_operator("Unsqueeze", "x axes[]", moves=True, axes=())
@ge_operator("UnsqueezeV2", "x axis[]", moves=True, axis=())
def _unsqueeze(call: GeCall, x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    for axis in sorted(call.axis(axis, x.ndim + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


@ge_operator("Squeeze SqueezeV2", "x axis[]", moves=True, axis=())
@ge_operator("SqueezeV3", "x axes[]?", moves=True)
def _squeeze(call: GeCall, x: torch.Tensor, axes: list[int] | None) -> torch.Tensor:
    if not axes:
        return x.squeeze()
    for axis in sorted((call.axis(axis, x.ndim) for axis in axes), reverse=True):
        call.need(x.shape[axis] == 1, f"dimension {axis} has {x.shape[axis]} elements, not 1")
        x = x.squeeze(axis)
    return x


@ge_operator("Flatten", "x", moves=True, axis=1)
def _flatten(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    axis = call.attrs["axis"]
    axis = axis + x.ndim if axis < 0 else axis
    rows = math.prod(x.shape[:axis])
    return x.reshape(rows, x.numel() // max(1, rows))


@ge_operator("FlattenV2", "x", moves=True, axis=1, end_axis=-1)
def _flatten_v2(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    return x.flatten(call.attrs["axis"], call.attrs["end_axis"])


@ge_operator("Concat", "concat_dim# *x", moves=True, N=1)
def _concat(call: GeCall, axis: int, x: list[torch.Tensor]) -> torch.Tensor:
    return _concat_v2(call, x, axis)


@ge_operator("ConcatV2", "*x concat_dim#", moves=True, N=1)
@ge_operator("ConcatD ConcatV2D", "*x concat_dim#", moves=True, concat_dim=REQUIRED, N=1)
def _concat_v2(call: GeCall, x: list[torch.Tensor], axis: int) -> torch.Tensor:
    call.need(bool(x), "nothing to join")
    return torch.cat(x, call.axis(axis, x[0].ndim))


@ge_operator("Pack", "*x", moves=True, axis=0, N=0)
def _pack(call: GeCall, x: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(x, call.axis(call.attrs["axis"], x[0].ndim + 1))


@ge_operator("Unpack", "x", moves=True, num=0, axis=0)
def _unpack(call: GeCall, x: torch.Tensor) -> list[torch.Tensor]:
    return list(x.unbind(call.axis(call.attrs["axis"], x.ndim)))


@ge_operator("Split", "split_dim# x", moves=True, num_split=REQUIRED)
@ge_operator("SplitD", "split_dim# x", moves=True, split_dim=REQUIRED, num_split=REQUIRED)
def _split(call: GeCall, axis: int, x: torch.Tensor) -> list[torch.Tensor]:
    axis, count = call.axis(axis, x.ndim), call.attrs["num_split"]
    call.need(count > 0 and x.shape[axis] % count == 0, f"{x.shape[axis]} are no {count} equal parts")
    return list(torch.split(x, x.shape[axis] // count, axis))


@ge_operator("SplitV", "x size_splits[] split_dim#", moves=True, num_split=0)
@ge_operator(
    "SplitVD", "x size_splits[] split_dim#", moves=True, size_splits=REQUIRED, split_dim=REQUIRED, num_split=0
)
def _split_v(call: GeCall, x: torch.Tensor, sizes: list[int], axis: int) -> list[torch.Tensor]:
    """Parts of the given sizes; a -1 takes what the others leave."""
    axis = call.axis(axis, x.ndim)
    rest = x.shape[axis] - sum(size for size in sizes if size >= 0)
    call.need(sum(size < 0 for size in sizes) <= 1, "several sizes are left open")
    return list(torch.split(x, [rest if size < 0 else size for size in sizes], axis))


@ge_operator("Slice", "x offsets[] size[]", moves=True)
@ge_operator("SliceD", "x offsets[] size[]", moves=True, offsets=REQUIRED, size=REQUIRED)
def _slice(call: GeCall, x: torch.Tensor, offsets: list[int], sizes: list[int]) -> torch.Tensor:
    call.need(len(offsets) == len(sizes) == x.ndim, "offsets and sizes are not one a dimension")
    for axis, (offset, size) in enumerate(zip(offsets, sizes)):
        x = x.narrow(axis, offset, x.shape[axis] - offset if size == -1 else size)
    return x


_MASKS = {"begin_mask": 0, "end_mask": 0, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}


_SPANS = "x begin[] end[] strides[]"


@ge_operator("StridedSliceV2", "x begin[] end[] axes[]? strides[]?", moves=True, **_MASKS)
def _strided_slice_v2(
    call: GeCall,
    x: torch.Tensor,
    begin: list[int],
    end: list[int],
    axes: list[int] | None,
    strides: list[int] | None,
) -> torch.Tensor:
    return _strided_slice(call, x, begin, end, [1] * len(begin) if strides is None else strides, axes)


@ge_operator("StridedSlice", _SPANS, moves=True, **_MASKS)
@ge_operator("StridedSliceD", _SPANS, moves=True, begin=REQUIRED, end=REQUIRED, strides=REQUIRED, **_MASKS)
def _strided_slice(
    call: GeCall,
    x: torch.Tensor,
    begin: list[int],
    end: list[int],
    strides: list[int],
    axes: list[int] | None = None,
) -> torch.Tensor:
    """Numpy's slices. Bit i of a mask leaves the begin or end of entry i open, or takes one element."""
    call.need(not call.attrs["ellipsis_mask"] and not call.attrs["new_axis_mask"], "masks for new dimensions")
    axes = list(range(len(begin))) if axes is None else axes
    fits = len(begin) == len(end) == len(strides) == len(axes)
    call.need(fits, "begin, end and strides differ in length")
    index: list[Any] = [slice(None)] * x.ndim
    for entry, (axis, first, last, step) in enumerate(zip(axes, begin, end, strides)):
        call.need(step > 0, f"stride {step}")
        axis, bit = call.axis(axis, x.ndim), 1 << entry
        if call.attrs["shrink_axis_mask"] & bit:
            index[axis] = first
            continue
        start = None if call.attrs["begin_mask"] & bit else first
        index[axis] = slice(start, None if call.attrs["end_mask"] & bit else last, step)
    return x[tuple(index)]


@ge_operator("ReverseV2", "x axis[]", moves=True)
def _reverse(call: GeCall, x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    return x.flip([call.axis(axis, x.ndim) for axis in axes])


@ge_operator("Roll", "x", moves=True, shifts=REQUIRED, dims=())
def _roll(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    return x.roll(tuple(call.attrs["shifts"]), tuple(call.attrs["dims"]))


# Element types and constants of graph texts as torch knows them.


_NAMES = {
    "DT_FLOAT": "float32",
    "DT_DOUBLE": "float64",
    "DT_FLOAT16": "float16",
    "DT_BF16": "bfloat16",
    "DT_BOOL": "bool",
}
_CODES = {
    0: torch.float32, 1: torch.float16, 2: torch.int8, 3: torch.int32, 4: torch.uint8, 6: torch.int16,
    9: torch.int64, 11: torch.float64, 12: torch.bool, 27: torch.bfloat16,
}  # fmt: skip
"""Element types by their number in attributes such as `dst_type` (`ge::DataType`)."""


def constant_tensor(constant: GeConstant) -> torch.Tensor:
    """The tensor of a constant. Raises `OperatorError` where its bytes are not those of its shape."""
    desc = constant.desc
    name = _NAMES.get(desc.dtype, desc.dtype.removeprefix("DT_").lower())
    try:
        dtype = by_name(name).torch_dtype()
    except (CannotDecode, ValueError, KeyError) as error:
        raise OperatorError(f"a constant of type {desc.dtype or 'unknown'} cannot be read") from error
    shape = desc.shape or ()
    elements = math.prod(shape)
    if min(shape, default=0) < 0 or elements * dtype.itemsize != len(constant.data):
        raise OperatorError(
            f"a constant {desc.dtype} {list(shape)} has the wrong size: {len(constant.data)} bytes"
        )
    if not elements:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(constant.data), dtype=dtype).reshape(shape)


# Operators that repeat values or make them from nothing but numbers.


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
    dtype = _CODES.get(call.attrs["dtype"])
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
