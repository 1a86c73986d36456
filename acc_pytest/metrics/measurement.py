"""`Measurement`: everything the streaming pass learns of one pair, as plain Python values.

No NumPy or torch scalar is ever stored: one inside a test report ends an xdist session.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Union

from ..errors import SettingsError

if TYPE_CHECKING:
    from .elements import ElementErrors


@dataclass(frozen=True, slots=True)
class MetricKind:
    """Properties of a metric that judging needs.

    `at_least`: larger is better, a bound is a floor. `sizes_error`: grows with every kind of error,
    so that a bound on it alone is a gate; cosine is not such a metric (it is blind to scale and to
    one bad row in a million), nor are counts of NaN and Inf (blind to finite errors), KL (softmax
    removes constant offsets), and errors of rows and channels (small tensors have none). `relative`:
    divided by golden, undefined where golden is all zero.
    """

    at_least: bool = False
    sizes_error: bool = True
    relative: bool = False


TENSOR_METRICS: dict[str, MetricKind] = {
    "cosine_similarity": MetricKind(at_least=True, sizes_error=False, relative=True),
    "max_relative_error": MetricKind(relative=True),
    "mean_relative_error": MetricKind(relative=True),
    "max_absolute_error": MetricKind(),
    "mean_absolute_error": MetricKind(),
    "max_scaled_error": MetricKind(),
    "kl_divergence": MetricKind(sizes_error=False),
    "relative_euclidean_distance": MetricKind(relative=True),
    "worst_row_error": MetricKind(sizes_error=False, relative=True),
    "typical_row_error": MetricKind(sizes_error=False, relative=True),
    "worst_channel_error": MetricKind(sizes_error=False, relative=True),
    "bulk_error": MetricKind(sizes_error=False, relative=True),
    "bias": MetricKind(sizes_error=False, relative=True),
    "last_row_error": MetricKind(sizes_error=False, relative=True),
    "beyond_fraction": MetricKind(),
    "mismatches": MetricKind(),
    "new_nonfinite": MetricKind(sizes_error=False),
    "lost_nonfinite": MetricKind(sizes_error=False),
}
"""Metrics of two tensors, in the order in which checks are listed."""

SLICE_METRICS = (
    "worst_row_error",
    "typical_row_error",
    "worst_channel_error",
    "bulk_error",
    "bias",
    "last_row_error",
)
"""Metrics of single rows and channels, which tensors with few of either lack."""

COLUMN_METRICS = (
    "cosine_similarity",
    "max_relative_error",
    "mean_relative_error",
    "max_absolute_error",
    "mean_absolute_error",
    "kl_divergence",
    "relative_euclidean_distance",
)
"""The seven metrics in the column order of the old report."""

STATISTICS = ("max", "min", "mean", "l2norm", "l1norm")
"""Statistics of a tensor in a statistics dump."""

STATISTICS_METRICS: dict[str, MetricKind] = {
    f"{statistic}_stat_{error}_error": MetricKind(relative=error == "relative")
    for statistic in STATISTICS
    for error in ("absolute", "relative")
}
"""Metrics of two tensors of which only statistics were dumped (names of the old tool's CSV columns)."""

METRICS: dict[str, MetricKind] = {**TENSOR_METRICS, **STATISTICS_METRICS}


Scalar = Union[bool, int, float, complex]
"""A tensor element as the Python value of its own kind."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that differs most: its place in golden's shape and both values.

    The first position whose non-finite values disagree, else the largest absolute difference.
    """

    flat_index: int
    index: tuple[int, ...]
    golden: Scalar
    mine: Scalar


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Counts of NaN and infinity.

    `common_*` are positions where both sides hold NaN, or the same infinity. The other positions
    with a non-finite value disagree: `new` where only mine has it, `lost` where only golden has it,
    `changed` where both have one but not the same.
    """

    golden_nan: int = 0
    golden_inf: int = 0
    mine_nan: int = 0
    mine_inf: int = 0
    common_nan: int = 0
    common_inf: int = 0
    new: int = 0
    lost: int = 0
    changed: int = 0

    @property
    def disagreeing(self) -> int:
        """Positions where the sides do not hold the same non-finite value."""
        return self.new + self.lost + self.changed


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over the compared positions: what the averaged metrics are made of.

    Sums of squares of values beyond 1e154 do not fit a float and read `inf`, below 1e-162 0; the
    metrics themselves are computed from scaled sums and stay right.
    """

    golden: float = 0.0
    mine: float = 0.0
    difference: float = 0.0
    golden_squared: float = 0.0
    mine_squared: float = 0.0
    golden_times_mine: float = 0.0
    golden_times_difference: float = 0.0
    difference_squared: float = 0.0
    absolute_difference: float = 0.0
    relative_error: float = 0.0


@dataclass(frozen=True, slots=True)
class SliceErrors:
    """Relative errors of rows and channels, and the bias; `None` where the tensor has too few of either.

    `worst_row` and `worst_channel` say where: `[0, 7, :]`, `[..., 33]`. `row_error_p90` and
    `channel_error_p90` are the ninth deciles. `bulk_error` is the relative L2 distance over the channels that
    are not among golden's largest (up to 4 times the median norm). `bias` is the smallest of three: of
    the whole, the median over rows, the median over channels; 0 where their signs differ. `bias_deviation` is
    the larger standard error of the two medians. `neighbour_error` is what the other errors in the row and
    the channel of the largest one say of it: the root mean square of either, or, where both are larger than
    that of the whole tensor, their product over it. `rows_off` are the rows whose errors are apart from those
    of all others, by their numbers in the last dimension but one: `20-39 of 40`; empty where none are.
    `last_row_error` is the relative L2 distance over the last rows of that dimension, the last tokens; `None`
    without others, or where golden is 0 there.
    """

    worst_row_error: float | None = None
    worst_row: str = ""
    row_error_p90: float | None = None
    typical_row_error: float | None = None
    worst_channel_error: float | None = None
    worst_channel: str = ""
    channel_error_p90: float | None = None
    bulk_error: float | None = None
    bias: float | None = None
    bias_deviation: float | None = None
    neighbour_error: float | None = None
    rows_off: str = ""
    last_row_error: float | None = None


_FIELDS = frozenset((*COLUMN_METRICS, "max_scaled_error", "mean_error", "beyond_fraction"))
"""The fields of a `Measurement` that are metrics."""
_OF_SLICES = frozenset(SLICE_METRICS) - {"bias"}
"""Metrics of its `slices`, but the one whose sign is left out."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One pair, measured. `docs/metrics.md` defines every field; `None` means undefined.

    `compared` positions hold a finite value on both sides; the metrics, `mean_error`,
    `max_scaled_error` (|mine - golden| / max(1, |golden|), absolute below 1 and relative above),
    `golden_rms`, `golden_max_abs` and `moments` are taken over them. Maximum, minimum and mean are
    taken over the finite elements of their own side. `mismatches` is the number of unequal
    elements, for integer and bool tensors only. `beyond_tolerance` counts elements with
    `|mine - golden| > atol + rtol * |golden|` and disagreeing non-finite ones, `beyond_fraction`
    divides it by `numel`. `identical`: same dtype and the same bits.

    Of single operators, `elements` has what standards of operators ask of single elements; elements beyond
    tolerance and the worst one are then those of its tolerance. `further` are numbers by name that take more
    than these two tensors: errors as multiples of a second golden's, tests of samples. `slices` are the
    errors of single rows and channels.
    """

    shape: tuple[int, ...]
    golden_dtype: str
    mine_dtype: str
    numel: int
    compared: int
    identical: bool
    cosine_similarity: float | None
    max_relative_error: float | None
    mean_relative_error: float | None
    max_absolute_error: float | None
    mean_absolute_error: float | None
    max_scaled_error: float | None
    kl_divergence: float | None
    relative_euclidean_distance: float | None
    golden_max: float | None
    golden_min: float | None
    golden_mean: float | None
    mine_max: float | None
    mine_min: float | None
    mine_mean: float | None
    golden_rms: float | None
    golden_max_abs: float | None
    mean_error: float | None
    near_zero: int
    mismatches: int | None
    rtol: float
    atol: float
    beyond_tolerance: int
    beyond_fraction: float | None
    worst: Worst | None
    nonfinite: NonFinite
    moments: Moments
    custom: Mapping[str, tuple[float | str, str]] = field(default_factory=dict)
    elements: ElementErrors | None = None
    further: Mapping[str, float] = field(default_factory=dict)
    slices: SliceErrors = SliceErrors()

    def value(self, metric: str) -> float | None:
        """The value of a metric by name, custom ones included; `None` where it has none.

        A position where both sides are non-finite but differ counts as new: mine put it there.
        """
        if self.elements is None and metric not in self.custom:
            plain: float | None
            if metric in _FIELDS:
                plain = getattr(self, metric)
                return plain
            if metric in _OF_SLICES:
                plain = getattr(self.slices, metric)
                return plain
        counts = self.nonfinite
        if metric == "new_nonfinite":
            return float(counts.new + counts.changed)
        if metric == "lost_nonfinite":
            return float(counts.lost)
        if metric == "nonfinite_mismatch":
            return float(counts.disagreeing)
        if metric == "bias":
            return None if self.slices.bias is None else abs(self.slices.bias)
        if metric in self.custom:
            value: object = self.custom[metric][0]
        elif metric in self.further:
            value = self.further[metric]
        else:
            records = (self.elements, self, self.slices)
            value = next((getattr(record, metric) for record in records if hasattr(record, metric)), None)
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def empty(self) -> bool:
        """True for a tensor without elements, whose metrics are all undefined."""
        return self.numel == 0


# Tolerance of one element, with which elements beyond it are counted.
#
# The default is the table that `torch.testing.assert_close` publishes
# (https://pytorch.org/docs/stable/testing.html). Types it does not list compare exactly, except fp8, which
# gets its spacing relative to the value and, near zero, its smallest subnormal.


Scale = Literal["absolute", "scaled", "relative", "ulp"]
_UNITS = {"absolute": "", "scaled": " max(1, |golden|)", "relative": " |golden|", "ulp": " ULP"}


@dataclass(frozen=True, slots=True)
class ElementTolerance:
    """An element agrees when `|mine - golden| <= atol * scale + rtol * |golden|`.

    `scale` is the unit of `atol`. `absolute`: 1. `scaled`: max(1, |golden|). `relative`: |golden|, and 1
    where golden is near 0. `ulp`: one step of the type that the operator writes.
    Raises `SettingsError` for a bound that is negative or NaN.
    """

    atol: float
    rtol: float = 0.0
    scale: Scale = "absolute"

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if not value >= 0:
                raise SettingsError(f"{name} must be >= 0, got {value}")

    def times(self, factor: float) -> ElementTolerance:
        """The tolerance stretched by `factor`."""
        return ElementTolerance(self.atol * factor, self.rtol * factor, self.scale)

    def __str__(self) -> str:
        return f"|error| <= {self.atol:.6g}{_UNITS[self.scale]}" if self.atol else "|error| = 0"


EXACT = ElementTolerance(0.0)
_HALF, _SINGLE, _DOUBLE = (
    ElementTolerance(atol, rtol) for atol, rtol in ((1e-5, 1e-3), (1e-5, 1.3e-6), (1e-7, 1e-7))
)
_BY_NAME = {
    "float16": _HALF,
    "bfloat16": ElementTolerance(1e-5, 1.6e-2),
    "float32": _SINGLE,
    "float64": _DOUBLE,
    "complex32": _HALF,
    "complex64": _SINGLE,
    "complex128": _DOUBLE,
    "float8_e4m3fn": ElementTolerance(2.0**-9, 2.0**-3),
    "float8_e4m3fnuz": ElementTolerance(2.0**-10, 2.0**-3),
    "float8_e5m2": ElementTolerance(2.0**-16, 2.0**-2),
    "float8_e5m2fnuz": ElementTolerance(2.0**-17, 2.0**-2),
}


@functools.cache
def default_tolerance(*dtypes: str) -> ElementTolerance:
    """The loosest rtol and the loosest atol of dtypes by name."""
    rows = [_BY_NAME.get(dtype, EXACT) for dtype in dtypes]
    return ElementTolerance(max(row.atol for row in rows), max(row.rtol for row in rows))
