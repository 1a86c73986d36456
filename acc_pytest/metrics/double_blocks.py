"""Blocks summed in float64: any values, and whole numbers as arrays, for which torch is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .block_result import BlockResult
from .double_block import double_sums, scaled_sum
from .element_tolerance import ElementTolerance
from .sides import SideSums
from .slices import SliceSums
from .values import Values, Wide, difference, widen


class DoubleBlocks:
    """Kernel that sums blocks in float64; `exact` values are compared for equality."""

    def __init__(self, tolerance: ElementTolerance, slices: SliceSums | None, *, exact: bool) -> None:
        self._tolerance, self._slices, self._exact = tolerance, slices, exact

    def result(self, golden: Values, mine: Values, start: int) -> BlockResult:
        """The result of a block of both sides, from the flat position `start`; `identical` is not known."""
        finite = np.isfinite(golden.wide), np.isfinite(mine.wide)
        result = BlockResult(
            start, (_side(golden.wide, finite[0]), _side(mine.wide, finite[1])), None, identical=False
        )
        keep, elements = finite[0] & finite[1], golden.wide.size
        if keep.all():
            at = np.arange(elements)
        else:
            excluded = np.flatnonzero(~keep)
            note(result, excluded, golden.wide[excluded], mine.wide[excluded])
            at = np.flatnonzero(keep)
            if not at.size:
                return result
            golden, mine = golden.pick(keep), mine.pick(keep)
        result.compared = double_sums(golden, mine, self._tolerance, exact=self._exact)
        result.compared.peak_at = int(at[result.compared.peak_at])
        if self._slices is not None:
            errors = difference(mine, golden)
            result.slices = self._slices.of_positions(start, elements, at, golden.wide, errors)
        return result


class WholeNumbers:
    """Kernel that sums blocks of whole numbers and truth values."""

    def __init__(self, tolerance: ElementTolerance) -> None:
        self._blocks = DoubleBlocks(tolerance, None, exact=True)

    def result(self, golden: NDArray[Any], mine: NDArray[Any], start: int) -> BlockResult:
        """The result of a block of both sides, from the flat position `start`."""
        g, m = widen(golden, to_complex=False), widen(mine, to_complex=False)
        with np.errstate(all="ignore"):  # what overflows is looked at where it can
            result = self._blocks.result(g, m, start)
        is_same_type = golden.dtype == mine.dtype
        result.identical = is_same_type and not np.count_nonzero(golden.view(np.uint8) != mine.view(np.uint8))
        return result


def note(result: BlockResult, at: NDArray[np.int64], golden: Wide, mine: Wide) -> None:
    """Note what stands at positions that are left out, for not both sides are finite there."""
    result.counts, first = nonfinite_counts(golden, mine)
    if first >= 0:
        result.first_disagreeing = int(at[first])


def _side(values: Wide, finite: NDArray[np.bool_]) -> SideSums | None:
    values = values[finite]
    if np.iscomplexobj(values) or not values.size:
        return None
    total, exponent = scaled_sum(values)
    return SideSums(values.size, float(values.max()), float(values.min()), total, exponent)


def nonfinite_counts(golden: Wide, mine: Wide) -> tuple[dict[str, int], int]:
    """The fields of `NonFinite` of values of which at least one side is not finite.

    And the place of the first that the other side does not have, -1 without one.
    """
    g_finite, m_finite = np.isfinite(golden), np.isfinite(mine)
    g_nan, m_nan = np.isnan(golden), np.isnan(mine)
    common_nan, common_inf = g_nan & m_nan, ~g_finite & (golden == mine)
    new, lost = g_finite & ~m_finite, ~g_finite & m_finite
    changed = ~g_finite & ~m_finite & ~common_nan & ~common_inf
    flags = {
        "golden_nan": g_nan,
        "golden_inf": ~g_finite & ~g_nan,
        "mine_nan": m_nan,
        "mine_inf": ~m_finite & ~m_nan,
        "common_nan": common_nan,
        "common_inf": common_inf,
        "new": new,
        "lost": lost,
        "changed": changed,
    }
    disagreeing = new | lost | changed
    first = int(disagreeing.argmax()) if disagreeing.any() else -1
    return {name: int(np.count_nonzero(flagged)) for name, flagged in flags.items()}, first
