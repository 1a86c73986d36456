"""Whether a verdict hangs on how a measurement was rounded: sums of float32 are right to 1e-6."""

from __future__ import annotations

from collections.abc import Sequence

from ..metrics.catalogue import TENSOR_METRICS
from ..metrics.measurement import Measurement
from .verdict import Check

_ROOM = 1e-5
"""Ten times what a metric may be off by."""
_COUNTS = ("mismatches", "new_nonfinite", "lost_nonfinite")
"""Which are exact."""


def is_close(measurement: Measurement, checks: Sequence[Check]) -> bool:
    """Whether a metric of these floats lies within rounding of its bound."""
    if measurement.mismatches is not None or measurement.identical or measurement.elements is not None:
        return False
    return any(_is_close(check, measurement) for check in checks if not check.off)


def _is_close(check: Check, measurement: Measurement) -> bool:
    name, measured, bound = check.metric, check.measured, check.allowed
    if measured is None or name not in TENSOR_METRICS or name in _COUNTS:
        return False
    if name == "beyond_fraction":
        # A block with NaN is counted in float64 by one kernel, and in float32 by another.
        return measurement.compared < measurement.numel
    if check.at_least:
        measured, bound = 1 - measured, 1 - bound
    if measured == bound == 0:
        return False
    # The bias is a sum of errors that may cancel.
    size = measurement.relative_euclidean_distance or 0.0 if name == "bias" else abs(bound)
    return abs(measured - bound) <= _ROOM * size
