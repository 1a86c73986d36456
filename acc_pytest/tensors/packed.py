"""Element types torch has not: bytes to values, exactly.

Integers of 1, 2 and 4 bits become whole bytes. Floats of 4 bits become float8_e4m3fn and hifloat8 becomes
bfloat16: the coarsest torch types that hold all their values, so that tolerances derived from the type stay
those of coarse numbers. Where several elements share a byte the first lies in the lowest bits, except of
`uint1`, whose first is the highest bit.
"""

from __future__ import annotations

import functools

from ..base.imports import torch
from . import hifloat8
from .dtypes import DType, by_name

_BLOCK = 1 << 20
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E1M2 = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
_VALUES: dict[str, tuple[str, tuple[float, ...]]] = {
    "int4": ("int8", (*range(8), *range(-8, 0))),
    "int2": ("int8", (0, 1, -2, -1)),
    "uint2": ("uint8", tuple(range(4))),
    "uint1": ("uint8", (0, 1)),
    "float4_e2m1": ("float8_e4m3fn", (*_E2M1, *(-value for value in _E2M1))),
    "float4_e1m2": ("float8_e4m3fn", (*_E1M2, *(-value for value in _E1M2))),
}
"""Type after decoding, and the value of every code in rising order of codes."""


def decoded(dtype: DType) -> DType:
    """The type that tensors of `dtype` have once they are open: itself where torch has it."""
    if dtype.name == "hifloat8":
        return by_name("bfloat16")
    return by_name(_VALUES[dtype.name][0]) if dtype.name in _VALUES else dtype


def is_packed(dtype: DType) -> bool:
    """Whether elements of this type are decoded here."""
    return decoded(dtype) is not dtype


def unpack(stored: torch.Tensor, dtype: DType, count: int) -> torch.Tensor:
    """The first `count` values of the bytes `stored`, 1-D, of the type `decoded(dtype)`."""
    table = _table(dtype.name)
    values = torch.empty(stored.numel() * table.shape[1], dtype=table.dtype)
    # Looked up as bits, for torch cannot index every eight-bit float.
    bits = torch.int16 if table.element_size() == 2 else torch.uint8
    codes, into = table.view(bits), values.view(bits).view(-1, table.shape[1])
    for start in range(0, stored.numel(), _BLOCK):
        into[start : start + _BLOCK] = codes[stored[start : start + _BLOCK].long()]
    return values[:count]


def _shifts(name: str, bits: int) -> list[int]:
    shifts = list(range(0, 8, bits))
    return shifts[::-1] if name == "uint1" else shifts


@functools.cache
def _table(name: str) -> torch.Tensor:
    """The values in every byte: 256 rows of as many as a byte holds."""
    if name == "hifloat8":
        return hifloat8.decode(torch.arange(256)).to(torch.bfloat16)[:, None]
    into, choices = _VALUES[name]
    bits = by_name(name).bits
    shifts = torch.tensor(_shifts(name, bits))
    codes = (torch.arange(256)[:, None] >> shifts) & (2**bits - 1)
    return torch.tensor(choices, dtype=torch.float32)[codes].to(by_name(into).torch_dtype())
