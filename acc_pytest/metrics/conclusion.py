"""The end of a pass: the measurement that follows from the sums."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..tensors.read_source import StoredSource, element_type
from ..tensors.source import Source
from .element_tolerance import ElementTolerance
from .measurement import Measurement, NonFinite, Scalar, SliceErrors, Worst
from .pair_sums import PairSums

if TYPE_CHECKING:
    from .elements import ElementErrors


class Conclusion:
    """Metrics that follow from the sums of all blocks of two sources."""

    def __init__(
        self,
        golden: Source,
        mine: Source,
        sums: PairSums,
        tolerance: ElementTolerance,
        elements: ElementErrors | None,
    ) -> None:
        self._golden, self._mine, self._sums, self._totals = golden, mine, sums, sums.totals
        self._tolerance, self._elements = tolerance, elements
        self._shape = tuple(int(size) for size in golden.shape)
        self._numel = math.prod(golden.shape)
        self._types = element_type(golden), element_type(mine)
        self._exact = all(dtype.is_exact for dtype in self._types)
        self._complex = any(dtype.kind == "complex" for dtype in self._types)
        self._values: dict[int, tuple[Scalar, Scalar]] = {}

    def measurement(self, custom: dict[str, tuple[float | str, str]]) -> Measurement:
        """The measurement, with the results of custom metrics."""
        golden, mine = self._sums.sides
        elements = self._elements
        metrics = self._metrics()
        nonfinite = NonFinite(**self._sums.counts)
        beyond = self._totals.beyond + nonfinite.disagreeing if elements is None else elements.beyond
        return Measurement(
            shape=self._shape,
            golden_dtype=self._types[0].name,
            mine_dtype=self._types[1].name,
            numel=self._numel,
            identical=self._sums.identical,
            golden_max=golden.max,
            golden_min=golden.min,
            golden_mean=golden.mean(),
            mine_max=mine.max,
            mine_min=mine.min,
            mine_mean=mine.mean(),
            rtol=self._tolerance.rtol,
            atol=self._tolerance.atol,
            beyond_tolerance=beyond,
            beyond_fraction=beyond / self._numel if self._numel else None,
            worst=self._worst(),
            nonfinite=nonfinite,
            custom=custom,
            elements=elements,
            slices=self._slice_errors(metrics["max_absolute_error"] or 0.0),
            **metrics,
        )

    def _metrics(self) -> dict[str, Any]:
        """Metrics over the compared positions."""
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
        if self._sums.slices is None or not self._totals.compared:
            return SliceErrors()
        return self._sums.slices.result(self._totals.peak_at, largest)

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
        first = self._sums.first_disagreeing
        flat = self._totals.peak_at if first is None else first
        if self._elements is not None:
            flat = -1 if self._elements.worst is None else self._elements.worst
        if flat < 0:
            return None
        return Worst(flat, index_of(flat, self._shape), *self._at(flat))

    def _at(self, flat: int) -> tuple[Scalar, Scalar]:
        if flat not in self._values:
            self._values[flat] = _element(self._golden, flat), _element(self._mine, flat)
        return self._values[flat]


def _element(source: Source, flat: int) -> Scalar:
    if isinstance(source, StoredSource):
        return source.element(flat)
    from .tensor_values import scalar  # with torch, which this source has

    return scalar(source.read(flat, flat + 1))


def index_of(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the flat position in a row-major tensor."""
    index = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.append(place)
    return tuple(reversed(index))


def _defined(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
