"""The metrics a threshold may bound: their names, which way is good, and what each can see.

`kernel.measure` computes the tensor metrics, `statistics.statistics_errors` those of the four numbers that a
statistics dump keeps of a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass


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
