"""Blocks summed in Python, by NumPy and torch: in float32 where that holds their values, else in float64."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import numpy as np
import torch

from ..tensors.read_source import element_type
from ..tensors.source import Source
from .block_ranges import BLOCK, DOUBLE_BLOCK, ranges
from .block_result import BlockResult
from .double_blocks import DoubleBlocks, note
from .element_tolerance import ElementTolerance
from .elements import ElementSums
from .single_block import FITTING, SingleBlock
from .slices import SliceSums
from .tensor_values import as_array, raw
from .values import Values, widen


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
        self._double = DoubleBlocks(tolerance, slices, exact=self._exact)
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
