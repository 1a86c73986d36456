"""Blocks summed in Python, by NumPy and torch: in float32 where that holds their values, else in float64."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..tensors.read_source import element_type
from ..tensors.source import Source
from .double_block import DoubleBlocks, Values, note, widen
from .elements import ElementSums
from .measurement import ElementTolerance, Scalar
from .pair_sums import BLOCK, DOUBLE_BLOCK, BlockResult, SliceSums, ranges
from .single_block import FITTING, SingleBlock


class PythonBlocks:
    """Blocks of two sources of one shape. Several threads may sum them, each with buffers of its own.

    A result does not depend on the blocks summed before it, but for what the totals do not look at any more.
    `elements` is offered every block; then they have to be summed in order. With `double` all are summed in
    float64.
    """

    def __init__(
        self,
        golden: Source,
        mine: Source,
        tolerance: ElementTolerance,
        elements: ElementSums | None,
        slices: SliceSums | None,
        *,
        double: bool,
    ) -> None:
        self._golden, self._mine, self._tolerance = golden, mine, tolerance
        self._elements, self._slices = elements, slices
        types = element_type(golden), element_type(mine)
        self._exact = all(dtype.is_exact for dtype in types)
        self._double = DoubleBlocks(tolerance, slices)
        self._complex = any(dtype.kind == "complex" for dtype in types)
        self._single = {golden.dtype, mine.dtype} <= FITTING and not double
        self._channels = max(1, int(golden.shape[-1])) if golden.shape else 1
        self._buffers = threading.local()
        self._identical = types[0] == types[1]
        self._scaled_peak = 0.0

    def read(self, start: int, stop: int) -> list[BlockResult]:
        """The results of elements `[start, stop)`, a block of float32."""
        return self.results(self._golden.read(start, stop), self._mine.read(start, stop), start)

    def results(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> list[BlockResult]:
        """The result of a block of both sides, from the flat position `start`; several where it takes
        float64."""
        # Overflow and 0/0 are results here, not accidents: they are looked at where they can arise.
        with np.errstate(all="ignore"):
            single = self._by_single(golden, mine, start) if self._single else None
            results = [single] if single is not None else list(self._by_double(golden, mine, start))
        if self._elements is not None:
            self._elements.add(start, golden, mine)
        return results

    def _by_double(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> Iterator[BlockResult]:
        for first, last in ranges(start, start + golden.numel(), self._channels, DOUBLE_BLOCK):
            g, m = golden[first - start : last - start], mine[first - start : last - start]
            result = self._double.result(self._wide(g), self._wide(m), first)
            result.identical = self._same_bytes(g, m)
            yield result

    def _wide(self, block: torch.Tensor) -> Values:
        return widen(as_array(block), to_complex=self._complex)

    def _by_single(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> BlockResult | None:
        single = getattr(self._buffers, "single", None)
        if single is None:
            size = min(math.prod(self._golden.shape), BLOCK)
            single = SingleBlock(size, self._tolerance, self._slices, exact=self._exact)
            self._buffers.single = single
        sides = single.load(golden, mine)
        sums = None if sides is None else single.sums(sides, start, self._scaled_peak)
        if sides is None or sums is None:
            return None
        self._scaled_peak = max(self._scaled_peak, sums.scaled_peak)
        result = BlockResult(start, sides, sums, identical=False, slices=single.sliced)
        if single.excluded is not None:
            note(result, single.excluded.at, single.excluded.golden, single.excluded.mine)
        result.identical = self._same_bytes(golden, mine)
        return result

    def _same_bytes(self, golden: torch.Tensor, mine: torch.Tensor) -> bool:
        """Whether a block is the same on both sides; not asked any more where one before was not. A sum that
        nobody rounds is read in a wider type, which is another."""
        is_identical = self._identical and golden.dtype == mine.dtype
        if not is_identical or np.count_nonzero(raw(golden) != raw(mine)):
            self._identical = False  # and never true again, whatever other threads find meanwhile
            return False
        return True


# Tensors as arrays of NumPy, and single elements of them as Python values.


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
