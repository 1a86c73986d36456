"""Tensors as arrays of NumPy, and single elements of them as Python values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .measurement import Scalar

_UNSIGNED = {
    getattr(torch, name): np.dtype(name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)
}
_SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The signed type of a width: torch reads, and gives to NumPy, the bits of unsigned ones as these."""
_NAMES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
_PLAIN = frozenset(getattr(torch, name) for name in _NAMES.split())
"""Types of which every torch gives an element as a Python value."""


def as_array(block: torch.Tensor) -> NDArray[Any]:
    """The values of a 1-D block of a measurable dtype, in a type of NumPy that holds them all."""
    dtype = block.dtype
    block = block.contiguous()
    if dtype in _UNSIGNED:
        array: NDArray[Any] = block.view(_SIGNED[block.element_size()]).numpy().view(_UNSIGNED[dtype])
        return array
    if dtype == torch.complex32:
        return block.to(torch.complex64).numpy()
    # Small floats go by way of float32: not every torch converts fp8 to float64.
    small = dtype.is_floating_point and block.element_size() < 4
    return (block.float() if small else block).numpy()


def scalar(element: torch.Tensor) -> Scalar:
    """The one element of `element` as a Python value of its own kind."""
    dtype = element.dtype
    if dtype in _PLAIN:
        value: Scalar = element.item()
        return value
    if dtype == torch.complex32:
        return complex(element.to(torch.complex64).item())
    if dtype.is_floating_point:
        return float(element.float().item())
    width = element.element_size()
    return int(element.contiguous().view(_SIGNED[width]).item()) & ((1 << 8 * width) - 1)


def raw(block: torch.Tensor) -> NDArray[np.uint8]:
    """The bytes of a 1-D block."""
    # Strides of one element mean nothing and may be 0, which `view` refuses.
    plain = block.contiguous().as_strided((block.numel(),), (1,))
    bytes_: NDArray[np.uint8] = plain.view(torch.uint8).numpy()
    return bytes_
