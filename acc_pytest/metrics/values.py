"""Elements of any dtype as float64 (or complex128), and their differences without rounding.

64-bit integers do not fit a float64, so a block of them carries its upper and lower halves apart:
`high` is a multiple of 2^32, `low` lies in [0, 2^32), both exact. The difference of two such blocks is
exact up to 2^53 and correctly rounded beyond; cast to float32, as is often done, it would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .measurement import Scalar

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Wide = NDArray[Any]
"""float64, or complex128 for complex tensors."""

_NARROW_UNSIGNED = {
    getattr(torch, name): dtype
    for name, dtype in (("uint16", np.dtype(np.uint16)), ("uint32", np.dtype(np.uint32)))
    if hasattr(torch, name)
}
_SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The signed type of a width: torch reads, and gives to NumPy, the bits of unsigned ones as these."""

FEW = 8192
"""Up to so many elements NumPy sums sooner than torch is called."""

_UINT64 = getattr(torch, "uint64", None)
_NAMES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
_PLAIN = frozenset(getattr(torch, name) for name in _NAMES.split())
"""Types of which every torch gives an element as a Python value."""


@dataclass(frozen=True, slots=True)
class Values:
    """A block: `wide` is every element rounded to float64 (complex128); `low` and `high` see above."""

    wide: Wide
    high: Wide
    low: Doubles | None = None

    def pick(self, keep: NDArray[np.bool_]) -> Values:
        """The elements where `keep`."""
        low = None if self.low is None else self.low[keep]
        return Values(self.wide[keep], self.high[keep], low)


def widen(block: torch.Tensor, *, to_complex: bool) -> Values:
    """The values of a 1-D block of a measurable dtype; with `to_complex` as complex numbers."""
    dtype = block.dtype
    block = block.contiguous()
    if to_complex:
        array: Wide = block.to(torch.complex128).numpy()
        return Values(array, array)
    if dtype == torch.int64 or dtype == _UINT64:
        bits = block.view(torch.int64).numpy()
        integers = bits if dtype == torch.int64 else bits.view(np.uint64)
        low = (bits & 0xFFFFFFFF).astype(np.float64)
        high = (integers >> 32).astype(np.float64) * 2.0**32
        return Values(high + low, high, low)
    if dtype in _NARROW_UNSIGNED:
        signed = block.view(_SIGNED[block.element_size()])
        array = signed.numpy().view(_NARROW_UNSIGNED[dtype]).astype(np.float64)
    else:
        # Small floats go by way of float32: not every torch converts fp8 to float64.
        small = dtype.is_floating_point and block.element_size() < 4
        array = (block.float() if small else block).double().numpy()
    return Values(array, array)


def difference(mine: Values, golden: Values) -> Wide:
    """mine - golden, rounded once."""
    upper = mine.high - golden.high
    if mine.low is None and golden.low is None:
        return upper
    lower = (0.0 if mine.low is None else mine.low) - (0.0 if golden.low is None else golden.low)
    result: Wide = upper + lower
    return result


def total(values: Floats) -> float:
    """The sum of all elements, within about 1e-7 of the sum of their sizes.

    Torch sums pairwise, along any axis, and is fast at it. Of a few elements its dispatch is what costs:
    those NumPy sums, in float64.
    """
    if values.size <= FEW:
        return float(np.add.reduce(values, dtype=np.float64))
    return torch.from_numpy(values).sum().item()


def sums(values: Floats, axis: int) -> NDArray[Any]:
    """The sums along an axis, float32 or float64, as `total` takes them."""
    if values.size <= FEW:
        few: Doubles = np.add.reduce(values, axis, dtype=np.float64)
        return few
    return torch.from_numpy(values).sum(axis).numpy()


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
