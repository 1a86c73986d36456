"""`measure`: one streaming pass over a pair, block by block, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import Incomparable
from ..tensors.mapped import check_mapped
from ..tensors.source import Source
from ..threads import one_thread
from .custom import CustomMetric, run_custom
from .double_block import double_sums, scaled_sum
from .element_tolerance import Tolerance, choose_tolerance, dtype_name
from .measurement import Measurement, NonFinite, Scalar, Worst
from .sides import Extent, Side
from .single_block import FITTING, SingleBlock
from .totals import Totals
from .values import Values, Wide, is_complex, is_exact, is_measurable, raw, scalar, widen

BLOCK = 64 * 1024
"""Elements per block: five float32 buffers of this size stay near the core."""
RANGE = 16 * BLOCK
"""Elements between two looks at whether mapped files are whole, which take microseconds."""


def measure(
    golden: Source,
    mine: Source,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    custom: Sequence[CustomMetric] = (),
) -> Measurement:
    """Measure `mine` against `golden`, two sources of one shape; see `docs/metrics.md` for definitions.

    `rtol` and `atol` bound a single element (`|mine - golden| <= atol + rtol * |golden|`); `None`
    takes the default of the looser dtype. Memory does not grow with the tensors, except that
    `custom` metrics get both as float32 vectors. Torch's thread count is set to 1 during the pass and
    restored after it.

    Raises `Incomparable` when the shapes differ or a dtype holds no numbers, `SettingsError` for a
    negative tolerance and whatever goes wrong with a custom metric, `FormatError` for a mapped file that
    becomes shorter meanwhile.
    """
    if tuple(golden.shape) != tuple(mine.shape):
        raise Incomparable(f"shapes differ: golden {list(golden.shape)}, mine {list(mine.shape)}")
    for side, source in (("golden", golden), ("mine", mine)):
        if not is_measurable(source.dtype):
            raise Incomparable(f"{side} is {source.dtype}, whose elements are not numbers")
    tolerance = choose_tolerance(rtol, atol, golden.dtype, mine.dtype)
    run = _Pass(golden, mine, tolerance)
    # Overflow and 0/0 are results here, not accidents: they are looked at where they can arise.
    with one_thread(), np.errstate(all="ignore"):
        for start in range(0, run.numel, BLOCK):
            if start % RANGE == 0:
                check_mapped()
            run.block(start, min(start + BLOCK, run.numel))
    return run.result(run_custom(custom, golden, mine))


class _Pass:
    """The state of one pass: what each block adds to, and what is known at its end."""

    def __init__(self, golden: Source, mine: Source, tolerance: Tolerance) -> None:
        self._golden, self._mine, self._tolerance = golden, mine, tolerance
        self.numel = math.prod(golden.shape)
        self._exact = is_exact(golden.dtype) and is_exact(mine.dtype)
        self._complex = is_complex(golden.dtype) or is_complex(mine.dtype)
        fitting = golden.dtype in FITTING and mine.dtype in FITTING
        self._single = SingleBlock(min(self.numel, BLOCK)) if fitting else None
        self._identical = golden.dtype == mine.dtype
        self._totals = Totals()
        self._sides = Side(), Side()
        self._common_nan = self._common_inf = self._new = self._lost = self._changed = 0
        self._first_disagreeing: int | None = None

    def block(self, start: int, stop: int) -> None:
        """Add elements `[start, stop)`."""
        golden, mine = self._golden.read(start, stop), self._mine.read(start, stop)
        if self._identical:
            self._identical = np.array_equal(raw(golden), raw(mine))
        if self._single is None or not self._add_single(self._single, golden, mine, start):
            self._add_double(golden, mine, start)

    def _add_single(self, single: SingleBlock, golden: torch.Tensor, mine: torch.Tensor, start: int) -> bool:
        extents = single.load(golden, mine)
        if extents is None:
            return False
        sums = single.sums(extents, self._totals, self._tolerance, exact=self._exact)
        if sums is None:
            return False
        self._totals.add(sums, start + sums.peak_at)
        for side, extent in zip(self._sides, extents):
            side.add(extent)
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

    def _add_side(self, side: Side, values: Wide, good: NDArray[np.bool_]) -> None:
        nan = int(np.count_nonzero(np.isnan(values)))
        side.nan += nan
        side.inf += int(values.size - np.count_nonzero(good)) - nan
        values = values[good]
        if values.size and not self._complex:
            total, exponent = scaled_sum(values)
            side.add(Extent(values.size, float(values.max()), float(values.min()), total, exponent))

    def _add_nonfinite(
        self, g: Values, m: Values, finite: tuple[NDArray[np.bool_], NDArray[np.bool_]], start: int
    ) -> None:
        g_nan, m_nan = np.isnan(g.wide), np.isnan(m.wide)
        common_nan = g_nan & m_nan
        common_inf = ~finite[0] & (g.wide == m.wide)
        new, lost = finite[0] & ~finite[1], ~finite[0] & finite[1]
        changed = ~finite[0] & ~finite[1] & ~common_nan & ~common_inf
        self._common_nan += int(np.count_nonzero(common_nan))
        self._common_inf += int(np.count_nonzero(common_inf))
        self._new += int(np.count_nonzero(new))
        self._lost += int(np.count_nonzero(lost))
        self._changed += int(np.count_nonzero(changed))
        disagreeing = new | lost | changed
        if self._first_disagreeing is None and disagreeing.any():
            self._first_disagreeing = start + int(disagreeing.argmax())

    def result(self, custom: dict[str, tuple[float | str, str]]) -> Measurement:
        """The measurement; no block may be added after it."""
        totals, (golden, mine) = self._totals, self._sides
        some = totals.compared > 0
        nonfinite = NonFinite(
            golden.nan,
            golden.inf,
            mine.nan,
            mine.inf,
            self._common_nan,
            self._common_inf,
            self._new,
            self._lost,
            self._changed,
        )
        beyond = totals.beyond + nonfinite.disagreeing
        return Measurement(
            shape=tuple(int(size) for size in self._golden.shape),
            golden_dtype=dtype_name(self._golden.dtype),
            mine_dtype=dtype_name(self._mine.dtype),
            numel=self.numel,
            compared=totals.compared,
            identical=self._identical,
            cosine_similarity=_defined(totals.cosine()),
            max_relative_error=_defined(totals.relative_peak) if some else None,
            mean_relative_error=_defined(totals.mean_relative()),
            max_absolute_error=self._largest_error() if some else None,
            mean_absolute_error=_defined(totals.mean_absolute()),
            max_scaled_error=_defined(totals.scaled_peak) if some else None,
            kl_divergence=totals.divergence(),
            relative_euclidean_distance=_defined(totals.euclidean()),
            golden_max=golden.max,
            golden_min=golden.min,
            golden_mean=golden.mean(),
            mine_max=mine.max,
            mine_min=mine.min,
            mine_mean=mine.mean(),
            golden_rms=totals.golden_rms(),
            golden_max_abs=totals.golden_peak if some else None,
            mean_error=None if self._complex else _defined(totals.mean_error()),
            near_zero=totals.near_zero,
            mismatches=totals.mismatches if self._exact else None,
            rtol=self._tolerance.rtol,
            atol=self._tolerance.atol,
            beyond_tolerance=beyond,
            beyond_fraction=beyond / self.numel if self.numel else None,
            worst=self._worst(),
            nonfinite=nonfinite,
            moments=totals.moments(),
            custom=custom,
        )

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

    def _worst(self) -> Worst | None:
        flat = self._totals.peak_at if self._first_disagreeing is None else self._first_disagreeing
        if flat < 0:
            return None
        index = tuple(int(i) for i in np.unravel_index(flat, tuple(self._golden.shape)))
        return Worst(flat, index, *self._at(flat))

    def _at(self, flat: int) -> tuple[Scalar, Scalar]:
        return scalar(self._golden.read(flat, flat + 1)), scalar(self._mine.read(flat, flat + 1))


def _defined(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
