"""Whether a verdict hangs on how a measurement was rounded: sums of float32 are right to 1e-6."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from ..metrics.catalogue import TENSOR_METRICS
from ..metrics.measurement import Measurement
from .verdict import Check

_ROOM = 1e-5
"""Ten times what a metric may be off by."""
_ROUNDED = TENSOR_METRICS.keys() - {"mismatches", "new_nonfinite", "lost_nonfinite"}
"""Those that are sums; counts are exact."""


def is_close(measurement: Measurement, checks: Sequence[Check]) -> bool:
    """Whether a metric of these floats lies within rounding of its bound."""
    if measurement.mismatches is not None or measurement.identical or measurement.elements is not None:
        return False
    for name, measured, bound, at_least, _, _ in checks:
        if measured is None or name not in _ROUNDED or isinf(bound):
            continue
        if name == "beyond_fraction":
            # A block with NaN is counted in float64 by one kernel, and in float32 by another.
            if measurement.compared < measurement.numel:
                return True
            continue
        if at_least:
            measured, bound = 1 - measured, 1 - bound
        # The bias is a sum of errors that may cancel.
        size = measurement.relative_euclidean_distance or 0.0 if name == "bias" else abs(bound)
        if abs(measured - bound) <= _ROOM * size and not measured == bound == 0:
            return True
    return False
