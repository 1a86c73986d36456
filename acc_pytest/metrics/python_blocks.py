"""Blocks summed in Python, by NumPy and torch: in float32 where that holds their values, else in float64."""

from __future__ import annotations

import math
import threading

import numpy as np
import torch
from numpy.typing import NDArray

from ..tensors.read_source import element_type
from ..tensors.source import Source
from .block_result import BlockResult
from .double_block import double_sums, scaled_sum
from .element_tolerance import ElementTolerance
from .elements import ElementSums
from .nonfinite import nonfinite_counts
from .sides import SideSums
from .single_block import FITTING, SingleBlock
from .slices import SliceSums
from .values import Wide, difference, raw, widen


class PythonBlocks:
    """Blocks of two sources of one shape. Several threads may sum them, each with buffers of its own.

    A result does not depend on the blocks summed before it, but for what the totals do not look at any more.
    `elements` is offered every block; then they have to be summed in order. With `double` all are summed in
    float64. `most` is how many elements a block has at most.
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
        most: int,
    ) -> None:
        self._most = most
        self._golden, self._mine, self._tolerance = golden, mine, tolerance
        self._elements, self._slices = elements, slices
        types = element_type(golden), element_type(mine)
        self._exact = all(dtype.is_exact for dtype in types)
        self._complex = any(dtype.kind == "complex" for dtype in types)
        self._single = {golden.dtype, mine.dtype} <= FITTING and not double
        self._buffers = threading.local()
        self._identical = types[0] == types[1]
        self._scaled_peak = 0.0

    def read(self, start: int, stop: int) -> BlockResult:
        """The result of elements `[start, stop)`."""
        return self.result(self._golden.read(start, stop), self._mine.read(start, stop), start)

    def result(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> BlockResult:
        """The result of a block of both sides, from the flat position `start`."""
        # Overflow and 0/0 are results here, not accidents: they are looked at where they can arise.
        with np.errstate(all="ignore"):
            result = self._by_single(golden, mine, start) if self._single else None
            if result is None:
                result = self._by_double(golden, mine, start)
        result.identical = self._identical and _same_bytes(golden, mine)
        if not result.identical:
            self._identical = False
        if self._elements is not None:
            self._elements.add(start, golden, mine)
        return result

    def _by_single(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> BlockResult | None:
        single = getattr(self._buffers, "single", None)
        if single is None:
            size = min(math.prod(self._golden.shape), self._most)
            single = SingleBlock(size, self._tolerance, self._slices, exact=self._exact)
            self._buffers.single = single
        sides = single.load(golden, mine)
        sums = None if sides is None else single.sums(sides, start, self._scaled_peak)
        if sides is None or sums is None:
            return None
        self._scaled_peak = max(self._scaled_peak, sums.scaled_peak)
        result = BlockResult(start, sides, sums, identical=False, slices=single.sliced)
        if single.excluded is not None:
            _note(result, single.excluded.at, single.excluded.golden, single.excluded.mine)
        return result

    def _by_double(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> BlockResult:
        g, m = widen(golden, to_complex=self._complex), widen(mine, to_complex=self._complex)
        finite = np.isfinite(g.wide), np.isfinite(m.wide)
        sides = self._side(g.wide, finite[0]), self._side(m.wide, finite[1])
        result = BlockResult(start, sides, None, identical=False)
        keep, elements = finite[0] & finite[1], g.wide.size
        if keep.all():
            at = np.arange(elements)
        else:
            excluded = np.flatnonzero(~keep)
            _note(result, excluded, g.wide[excluded], m.wide[excluded])
            at = np.flatnonzero(keep)
            if not at.size:
                return result
            g, m = g.pick(keep), m.pick(keep)
        result.compared = double_sums(g, m, self._tolerance, exact=self._exact)
        result.compared.peak_at = int(at[result.compared.peak_at])
        if self._slices is not None:
            result.slices = self._slices.of_positions(start, elements, at, g.wide, difference(m, g))
        return result

    def _side(self, values: Wide, finite: NDArray[np.bool_]) -> SideSums | None:
        values = values[finite]
        if self._complex or not values.size:
            return None
        total, exponent = scaled_sum(values)
        return SideSums(values.size, float(values.max()), float(values.min()), total, exponent)


def _same_bytes(golden: torch.Tensor, mine: torch.Tensor) -> bool:
    """A sum that nobody rounds is read in a wider type, which is another."""
    return golden.dtype == mine.dtype and not np.count_nonzero(raw(golden) != raw(mine))


def _note(result: BlockResult, at: NDArray[np.int64], golden: Wide, mine: Wide) -> None:
    """Note what stands at positions that are left out, for not both sides are finite there."""
    result.counts, first = nonfinite_counts(golden, mine)
    if first >= 0:
        result.first_disagreeing = int(at[first])
