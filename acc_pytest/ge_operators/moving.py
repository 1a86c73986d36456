"""Operators that move values: shapes, transpositions, joins, cuts, casts."""

from __future__ import annotations

from typing import Any

import torch

from .constants import dtype_of
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
    dtype = dtype_of(call.attrs["dst_type"])
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
    rows = 1
    for size in x.shape[:axis]:
        rows *= size
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
