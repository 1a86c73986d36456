"""The fractal-NZ layout and the forms in which operands of a family may come.

NZ stores a matrix `[m, n]` as `[n1, m', n0]`: columns in groups of n0 (16 elements, 32 of int8), rows
padded to 16.
"""

from __future__ import annotations

import torch

from ..tensors.device_layouts import TILE, nz
from ..tensors.dtypes import by_atb_code
from ..tensors.hifloat8 import encode
from .registry import As, OperatorCall, Outputs


def nz_to_nd(tensor: torch.Tensor, rows: int | None = None, columns: int | None = None) -> torch.Tensor:
    """`[..., n1, m', n0]` -> `[..., rows, columns]`; the padding is cut where sizes are given."""
    stored = tuple(tensor.shape)
    *_, n1, m, n0 = stored
    height = m if rows is None else min(rows, m)
    width = n1 * n0 if columns is None else min(columns, n1 * n0)
    return nz(stored, height, width).to_logical(tensor)


def nd_to_nz(tensor: torch.Tensor, group: int = 16) -> torch.Tensor:
    """`[..., m, n]` -> `[..., n1, m', group]`, zero padded to whole groups of columns and 16 rows."""
    *lead, rows, columns = tensor.shape
    stored = (*lead, -(-columns // group), -(-rows // TILE) * TILE, group)
    return nz(stored, rows, columns).to_stored(tensor)


def group_of(dtype: torch.dtype) -> int:
    """Columns in one NZ group: 32 bytes' worth."""
    return 32 if dtype == torch.int8 else 16


def nz_in_logical_dims(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor dumped with format NZ but logical dims `[..., m, n]` (aligned) in row-major order."""
    group = group_of(tensor.dtype)
    rows, columns = tensor.shape[-2:]
    return nz_to_nd(tensor.reshape(*tensor.shape[:-2], columns // group, rows, group)).contiguous()


HIFLOAT8 = 34


def as_type(value: torch.Tensor, code: int, default: torch.dtype) -> As:
    """Wide `value` as an output of the type that an `outTensorType` means; hifloat8 as its bytes."""
    if code == HIFLOAT8:
        return As(value, torch.uint8, encode)
    return As(value, torch_dtype(code, default))


def torch_dtype(code: int, default: torch.dtype) -> torch.dtype:
    """The dtype that an `outDataType` means, `default` for -1. Raises `CannotDecode` for raw types."""
    return default if code == -1 else by_atb_code(code).torch_dtype()


# Quantisation that several families share: dynamic scales, packed scales, int8 products.


def quantise_dynamic(call: OperatorCall, value: torch.Tensor, *, asymmetric: bool) -> Outputs:
    """Quantise each row of wide `value` by its own scale: int8, scale float32[, offset float32].

    Symmetric: scale = max|x| / 127. Asymmetric: scale = (max - min) / 255, offset = -(max + min) / (2
    scale). A row of zeros has scale 0 and quantises to 0.
    """
    if not asymmetric:
        scale = value.abs().amax(-1) / 127
        return As(value / scale[..., None], torch.int8), As(scale, torch.float32)
    high, low = value.amax(-1), value.amin(-1)
    scale = (high - low) / 255
    offset = -(high + low) / (2 * scale)
    quantised = value / scale[..., None] + offset[..., None]
    return As(quantised, torch.int8), As(scale, torch.float32), As(offset, torch.float32)


def quantise_static(
    call: OperatorCall, value: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None
) -> As:
    """value * scale + offset, int8."""
    shift = 0 if offset is None else call.wide(offset)
    return As(value * call.wide(scale) + shift, torch.int8)


def descale(call: OperatorCall, scale: torch.Tensor) -> torch.Tensor:
    """A dequantisation scale, wide: int64/uint64 hold the bits of a float32 in their low half."""
    if scale.dtype in (torch.int64, getattr(torch, "uint64", torch.int64)):
        pairs = scale.contiguous().reshape(-1).view(torch.float32)
        return call.wide(pairs[::2].reshape(scale.shape))
    return call.wide(scale)


def int8_weight(call: OperatorCall, weight: torch.Tensor, name: str, dims: int) -> torch.Tensor:
    """A weight of int8 with `dims` dimensions, its NZ tiles undone."""
    call.need(weight.dtype == torch.int8, f"{name} is {weight.dtype} and not int8")
    if weight.ndim > dims:
        call.need(
            weight.shape[-1] == group_of(weight.dtype),
            f"{name} {list(weight.shape)} is not an int8 weight in NZ format",
        )
        weight = nz_to_nd(weight)
        weight = weight[0] if weight.ndim > dims else weight
    return weight


def integer_matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product of integer matrices, exact, as float64: |sum| < 2^53 for any int8 operands."""
    return torch.matmul(x.double(), y.double())
