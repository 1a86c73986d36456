"""`measure`: one streaming pass over a pair, block by block, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import Incomparable
from ..tensors.dtypes import by_torch
from ..tensors.mapped import check_mapped
from ..tensors.source import Source
from ..threads import one_thread
from .custom import CustomMetric, run_custom
from .double_block import double_sums, scaled_sum
from .element_tolerance import ElementTolerance, default_tolerance
from .elements import ElementErrors, ElementSums
from .measurement import Measurement, NonFinite, Scalar, SliceErrors, Worst
from .sides import SideSums, SideTotals
from .single_block import FITTING, SingleBlock
from .slices import SliceSums
from .totals import Totals
from .values import Values, Wide, difference, is_exact, is_measurable, raw, scalar, widen

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
) -> Measurement:
    """Measure `mine` against `golden`, two sources of one shape; see `docs/metrics.md` for definitions.

    `tolerance` bounds a single element; `None` takes the default of the looser dtype. `written` names the
    type that an operator writes: with it, single elements are measured as standards of operators ask
    (`Measurement.elements`), and the tolerance may have any scale. Memory does not grow with the tensors,
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
    run = _Pass(golden, mine, default if written else tolerance or default, elements)
    # Overflow and 0/0 are results here, not accidents: they are looked at where they can arise.
    with one_thread(), np.errstate(all="ignore"):
        for number, (start, stop) in enumerate(_blocks(run.numel, golden.shape[-1] if golden.shape else 1)):
            if number % BLOCKS == 0:
                check_mapped()
            run.block(start, stop)
    return run.result(run_custom(custom, golden, mine))


def _blocks(numel: int, channels: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole rows, or parts of one row where a row is longer than a block."""
    if channels <= BLOCK:
        size = BLOCK // max(1, channels) * max(1, channels)
        yield from ((start, min(start + size, numel)) for start in range(0, numel, size))
        return
    for row in range(0, numel, channels):
        yield from (
            (start, min(start + BLOCK, row + channels)) for start in range(row, row + channels, BLOCK)
        )


class _Pass:
    """The state of one pass: what each block adds to, and what is known at its end."""

    def __init__(
        self, golden: Source, mine: Source, tolerance: ElementTolerance, elements: ElementSums | None
    ) -> None:
        self._golden, self._mine, self._tolerance = golden, mine, tolerance
        self._elements = elements
        self._shape = tuple(int(size) for size in golden.shape)
        self.numel = math.prod(golden.shape)
        self._exact = is_exact(golden.dtype) and is_exact(mine.dtype)
        self._complex = golden.dtype.is_complex or mine.dtype.is_complex
        fitting = golden.dtype in FITTING and mine.dtype in FITTING
        sliced = not self._exact and not self._complex and SliceSums.possible(self._shape)
        self._slices = SliceSums(self._shape) if sliced else None
        self._single = (
            SingleBlock(min(self.numel, BLOCK), tolerance, self._slices, exact=self._exact)
            if fitting
            else None
        )
        self._identical = golden.dtype == mine.dtype
        self._totals = Totals()
        self._sides = SideTotals(), SideTotals()
        self._nonfinite_counts = dict.fromkeys(("common_nan", "common_inf", "new", "lost", "changed"), 0)
        self._first_disagreeing: int | None = None
        self._looked_up: dict[int, tuple[Scalar, Scalar]] = {}

    def block(self, start: int, stop: int) -> None:
        """Add elements `[start, stop)`."""
        golden, mine = self._golden.read(start, stop), self._mine.read(start, stop)
        if self._identical:
            # A sum that nobody rounds is read in a wider type.
            same_type = golden.dtype == mine.dtype
            self._identical = same_type and not np.count_nonzero(raw(golden) != raw(mine))
        if self._single is None or not self._add_single(self._single, golden, mine, start):
            self._add_double(golden, mine, start)
        if self._elements is not None:
            self._elements.add(start, golden, mine)

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
        for totals, side in zip(self._sides, sides):
            totals.add(side)
        return True

    def _add_double(self, golden: torch.Tensor, mine: torch.Tensor, start: int) -> None:
        g, m = widen(golden, to_complex=self._complex), widen(mine, to_complex=self._complex)
        finite = np.isfinite(g.wide), np.isfinite(m.wide)
        for side, values, good in zip(self._sides, (g, m), finite):
            self._add_side(side, values.wide, good)
        keep = finite[0] & finite[1]
        if keep.all():
            positions = None
        else:
            self._add_nonfinite(g, m, finite, start)
            positions = np.flatnonzero(keep)
            if not positions.size:
                return
            g, m = g.pick(keep), m.pick(keep)
        sums = double_sums(g, m, self._totals, self._tolerance, exact=self._exact)
        at = sums.peak_at if positions is None else int(positions[sums.peak_at])
        self._totals.add(sums, start + at)
        if self._slices is not None:
            compared = np.arange(g.wide.size) if positions is None else positions
            self._slices.add(start + compared, g.wide, difference(m, g))

    def _add_side(self, side: SideTotals, values: Wide, good: NDArray[np.bool_]) -> None:
        nan = int(np.count_nonzero(np.isnan(values)))
        side.nan += nan
        side.inf += int(values.size - np.count_nonzero(good)) - nan
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
        for name, flags in zip(self._nonfinite_counts, (common_nan, common_inf, new, lost, changed)):
            self._nonfinite_counts[name] += int(np.count_nonzero(flags))
        disagreeing = new | lost | changed
        if self._first_disagreeing is None and disagreeing.any():
            self._first_disagreeing = start + int(disagreeing.argmax())

    def result(self, custom: dict[str, tuple[float | str, str]]) -> Measurement:
        """The measurement; no block may be added after it."""
        golden, mine = self._sides
        elements = None if self._elements is None else self._elements.result(self._shape)
        metrics = self._metrics()
        nonfinite = NonFinite(golden.nan, golden.inf, mine.nan, mine.inf, **self._nonfinite_counts)
        beyond = self._totals.beyond + nonfinite.disagreeing if elements is None else elements.beyond
        return Measurement(
            shape=self._shape,
            golden_dtype=by_torch(self._golden.dtype).name,
            mine_dtype=by_torch(self._mine.dtype).name,
            numel=self.numel,
            identical=self._identical,
            golden_max=golden.max,
            golden_min=golden.min,
            golden_mean=golden.mean(),
            mine_max=mine.max,
            mine_min=mine.min,
            mine_mean=mine.mean(),
            rtol=self._tolerance.rtol,
            atol=self._tolerance.atol,
            beyond_tolerance=beyond,
            beyond_fraction=beyond / self.numel if self.numel else None,
            worst=self._worst(elements),
            nonfinite=nonfinite,
            custom=custom,
            elements=elements,
            slices=self._slice_errors(metrics["max_absolute_error"] or 0.0),
            **metrics,
        )

    def _metrics(self) -> dict[str, Any]:
        """What is taken over the compared positions."""
        totals = self._totals
        some = totals.compared > 0
        return {
            "compared": totals.compared,
            "cosine_similarity": _defined(totals.cosine()),
            "max_relative_error": _defined(totals.relative_peak) if some else None,
            "mean_relative_error": _defined(totals.mean_relative()),
            "max_absolute_error": self._largest_error() if some else None,
            "mean_absolute_error": _defined(totals.mean_absolute()),
            "max_scaled_error": _defined(totals.scaled_peak) if some else None,
            "kl_divergence": totals.divergence(),
            "relative_euclidean_distance": _defined(totals.euclidean()),
            "golden_rms": totals.golden_rms(),
            "golden_max_abs": totals.golden_peak if some else None,
            "mean_error": None if self._complex else _defined(totals.mean_error()),
            "near_zero": totals.near_zero,
            "mismatches": totals.mismatches if self._exact else None,
            "moments": totals.moments(),
        }

    def _slice_errors(self, largest: float) -> SliceErrors:
        if self._slices is None or not self._totals.compared:
            return SliceErrors()
        return self._slices.result(self._totals.peak_at, largest)

    def _largest_error(self) -> float:
        """The largest absolute error from its two values, free of the rounding of the search."""
        if self._totals.peak_at < 0:
            return 0.0
        golden, mine = self._at(self._totals.peak_at)
        if isinstance(golden, complex) or isinstance(mine, complex):
            return abs(mine - golden)
        if isinstance(golden, int) == isinstance(mine, int):
            return float(abs(mine - golden))
        # An integer against a float: as fractions, because Python would round the integer first.
        return float(abs(Fraction(mine) - Fraction(golden)))

    def _worst(self, elements: ElementErrors | None) -> Worst | None:
        flat = self._totals.peak_at if self._first_disagreeing is None else self._first_disagreeing
        if elements is not None:
            flat = -1 if elements.worst is None else elements.worst
        if flat < 0:
            return None
        index = tuple(int(i) for i in np.unravel_index(flat, self._shape))
        return Worst(flat, index, *self._at(flat))

    def _at(self, flat: int) -> tuple[Scalar, Scalar]:
        if flat not in self._looked_up:
            sides = self._golden.read(flat, flat + 1), self._mine.read(flat, flat + 1)
            self._looked_up[flat] = scalar(sides[0]), scalar(sides[1])
        return self._looked_up[flat]


def _defined(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
