"""`measure`: one streaming pass over a pair, block by block, in constant memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import Incomparable
from ..tensors.dtypes import by_torch
from ..tensors.mapped import check_mapped
from ..tensors.source import Source
from ..threads import one_thread
from .conclusion import Conclusion
from .custom import CustomMetric, run_custom
from .double_block import double_sums, scaled_sum
from .element_tolerance import ElementTolerance, default_tolerance
from .elements import ElementSums
from .measurement import Measurement
from .native.library import chosen
from .native.native_block import TYPES, NativeBlock
from .pair_sums import PairSums
from .sides import SideSums, SideTotals
from .single_block import FITTING, SingleBlock
from .slices import SliceSums
from .values import Values, Wide, difference, is_exact, is_measurable, raw, widen

BLOCK = 128 * 1024
"""Most elements per block: eight float32 buffers of this size stay near the core."""
BLOCKS = 8
"""Blocks between two looks at whether mapped files are whole, which take microseconds."""


def measure(
    golden: Source,
    mine: Source,
    *,
    tolerance: ElementTolerance | None = None,
    custom: Sequence[CustomMetric] = (),
    written: str = "",
    double: bool = False,
) -> Measurement:
    """Measure `mine` against `golden`, two sources of one shape; see `docs/metrics.md` for definitions.

    `tolerance` bounds a single element; `None` takes the default of the looser dtype. `written` names the
    type that an operator writes: with it, single elements are measured as standards of operators ask
    (`Measurement.elements`), and the tolerance may have any scale. With `double` every block is summed in
    float64, which takes ten times as long. Memory does not grow with the tensors,
    except that `custom` metrics get both as float32 vectors. Torch's thread count is set to 1 during the
    pass and restored after it.

    Raises `Incomparable` when the shapes differ or a dtype holds no numbers, `SettingsError` for whatever
    goes wrong with a custom metric, `FormatError` for a mapped file that becomes shorter meanwhile.
    """
    if tuple(golden.shape) != tuple(mine.shape):
        raise Incomparable(f"shapes differ: golden {list(golden.shape)}, mine {list(mine.shape)}")
    for side, source in (("golden", golden), ("mine", mine)):
        if not is_measurable(source.dtype):
            raise Incomparable(f"{side} is {source.dtype}, whose elements are not numbers")
    default = default_tolerance(*(by_torch(source.dtype).name for source in (golden, mine)))
    elements = ElementSums(tolerance or default, written) if written else None
    run = _Pass(golden, mine, default if written else tolerance or default, elements, double=double)
    # Overflow and 0/0 are results here, not accidents: they are looked at where they can arise.
    with one_thread(), np.errstate(all="ignore"):
        for start, stop in _blocks(0, run.numel, run.channels, BLOCKS * BLOCK):
            check_mapped()
            run.stretch(start, stop)
    found = None if elements is None else elements.result(tuple(golden.shape))
    conclusion = Conclusion(golden, mine, run.sums, run.tolerance, found)
    return conclusion.measurement(run_custom(custom, golden, mine))


def _blocks(begin: int, end: int, channels: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of up to `size` elements: whole rows, or parts of one row where a row is longer than that.

    `begin` starts a row, or all lies within one.
    """
    if channels <= size:
        step = size // channels * channels
        yield from ((start, min(start + step, end)) for start in range(begin, end, step))
        return
    for row in range(begin, end, channels):
        last = min(row + channels, end)
        yield from ((start, min(start + size, last)) for start in range(row, last, size))


class _Pass:
    """The state of one pass: what each block adds to, and what is known at its end."""

    def __init__(
        self,
        golden: Source,
        mine: Source,
        tolerance: ElementTolerance,
        elements: ElementSums | None,
        *,
        double: bool,
    ) -> None:
        self._golden, self._mine, self.tolerance = golden, mine, tolerance
        self._elements = elements
        shape = tuple(int(size) for size in golden.shape)
        self.numel = math.prod(golden.shape)
        self.channels = max(1, shape[-1]) if shape else 1
        self._exact = is_exact(golden.dtype) and is_exact(mine.dtype)
        self._complex = golden.dtype.is_complex or mine.dtype.is_complex
        fitting = golden.dtype in FITTING and mine.dtype in FITTING and not double
        sliced = not self._exact and not self._complex and SliceSums.possible(shape)
        self._slices = SliceSums(shape) if sliced else None
        self._fitting = fitting
        self._native = self._native_block() if fitting and elements is None else None
        self.sums = PairSums(golden.dtype == mine.dtype, self._slices)
        self._totals = self.sums.totals

    def _native_block(self) -> NativeBlock | None:
        kernel = chosen() if {self._golden.dtype, self._mine.dtype} <= TYPES.keys() else None
        return None if kernel is None else NativeBlock(kernel, self.tolerance, self._slices)

    @functools.cached_property
    def _single(self) -> SingleBlock | None:
        if not self._fitting:
            return None
        return SingleBlock(min(self.numel, BLOCK), self.tolerance, self._slices, exact=self._exact)

    def stretch(self, start: int, stop: int) -> None:
        """Add elements `[start, stop)`: whole rows, or a part of one."""
        pieces = _blocks(start, stop, self.channels, BLOCK)
        if self._native is None:
            for first, last in pieces:
                self._block(self._golden.read(first, last), self._mine.read(first, last), first)
            return
        golden, mine = self._golden.read(start, stop), self._mine.read(start, stop)
        if not self._add_native(self._native, golden, mine, start):
            for first, last in pieces:
                piece = slice(first - start, last - start)
                self._block(golden[piece], mine[piece], first)

    def _block(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> None:
        if self.sums.identical:
            # A sum that nobody rounds is read in a wider type.
            same_type = golden.dtype == mine.dtype
            self.sums.identical = same_type and not np.count_nonzero(raw(golden) != raw(mine))
        if self._single is None or not self._add_single(self._single, golden, mine, start):
            self._add_double(golden, mine, start)
        if self._elements is not None:
            self._elements.add(start, golden, mine)

    def _add_native(self, native: NativeBlock, golden: torch.Tensor, mine: torch.Tensor, start: int) -> bool:
        block = native.sums(golden, mine, self._totals, start)
        if block is None:
            return False
        self.sums.identical = self.sums.identical and block.identical
        for totals, side in zip(self.sums.sides, block.sides):
            if side is not None:
                totals.add(side)
        for name, count in block.counts.items():
            self.sums.counts[name] += count
        if block.first_disagreeing >= 0:
            self.sums.disagree(start + block.first_disagreeing)
        if block.compared is not None:
            self._totals.add(block.compared, start + block.compared.peak_at)
            if self._slices is not None:
                self._slices.keep()
        return True

    def _add_single(self, single: SingleBlock, golden: torch.Tensor, mine: torch.Tensor, start: int) -> bool:
        sides = single.load(golden, mine)
        if sides is None:
            return False
        sums = single.sums(sides, self._totals, start)
        if sums is None:
            return False
        if self._slices is not None:
            self._slices.keep()
        self._totals.add(sums, start + sums.peak_at)
        for totals, side in zip(self.sums.sides, sides):
            totals.add(side)
        return True

    def _add_double(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> None:
        g, m = widen(golden, to_complex=self._complex), widen(mine, to_complex=self._complex)
        finite = np.isfinite(g.wide), np.isfinite(m.wide)
        for name, side, values, good in zip(("golden", "mine"), self.sums.sides, (g, m), finite):
            self._add_side(name, side, values.wide, good)
        keep = finite[0] & finite[1]
        if keep.all():
            positions = None
        else:
            self._add_nonfinite(g, m, finite, start)
            positions = np.flatnonzero(keep)
            if not positions.size:
                return
            g, m = g.pick(keep), m.pick(keep)
        sums = double_sums(g, m, self._totals, self.tolerance, exact=self._exact)
        at = sums.peak_at if positions is None else int(positions[sums.peak_at])
        self._totals.add(sums, start + at)
        if self._slices is not None:
            compared = np.arange(g.wide.size) if positions is None else positions
            self._slices.add(start + compared, g.wide, difference(m, g))

    def _add_side(self, name: str, side: SideTotals, values: Wide, good: NDArray[np.bool_]) -> None:
        nan = int(np.count_nonzero(np.isnan(values)))
        self.sums.counts[f"{name}_nan"] += nan
        self.sums.counts[f"{name}_inf"] += int(values.size - np.count_nonzero(good)) - nan
        values = values[good]
        if values.size and not self._complex:
            total, exponent = scaled_sum(values)
            side.add(SideSums(values.size, float(values.max()), float(values.min()), total, exponent))

    def _add_nonfinite(
        self, g: Values, m: Values, finite: tuple[NDArray[np.bool_], NDArray[np.bool_]], start: int
    ) -> None:
        common_nan = np.isnan(g.wide) & np.isnan(m.wide)
        common_inf = ~finite[0] & (g.wide == m.wide)
        new, lost = finite[0] & ~finite[1], ~finite[0] & finite[1]
        changed = ~finite[0] & ~finite[1] & ~common_nan & ~common_inf
        flags = {
            "common_nan": common_nan,
            "common_inf": common_inf,
            "new": new,
            "lost": lost,
            "changed": changed,
        }
        for name, flagged in flags.items():
            self.sums.counts[name] += int(np.count_nonzero(flagged))
        disagreeing = new | lost | changed
        if disagreeing.any():
            self.sums.disagree(start + int(disagreeing.argmax()))
