"""Element types and constants of graph texts as torch knows them."""

from __future__ import annotations

import math

import torch

from ..errors import CannotDecode, OperatorError
from ..tensors.dtypes import by_name
from ..topology.ge_graph import GeConstant

_NAMES = {
    "DT_FLOAT": "float32",
    "DT_DOUBLE": "float64",
    "DT_FLOAT16": "float16",
    "DT_BF16": "bfloat16",
    "DT_BOOL": "bool",
}
_CODES = {
    0: torch.float32,
    1: torch.float16,
    2: torch.int8,
    3: torch.int32,
    4: torch.uint8,
    6: torch.int16,
    9: torch.int64,
    11: torch.float64,
    12: torch.bool,
    27: torch.bfloat16,
}
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


def dtype_of(code: int) -> torch.dtype | None:
    """The element type that an attribute means; `None` for one that torch has not."""
    return _CODES.get(code)
