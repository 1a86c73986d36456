"""Errors between two tensors of which only statistics were dumped."""

from __future__ import annotations

import math

from ..tensors.header import Statistics
from .catalogue import STATISTICS
from .totals import NEAR_ZERO


def statistics_errors(golden: Statistics, mine: Statistics) -> dict[str, float | None]:
    """`{max,min,mean,l2norm,l1norm}_stat_{absolute,relative}_error`, in column order.

    Absolute: |m - g|. Relative: |m - g| / max(|g|, 2^-23). `None` where a side does not state the
    statistic. Equal infinities, or NaN on both sides, differ by 0; any other non-finite value by
    infinity.
    """
    errors: dict[str, float | None] = {}
    for name in STATISTICS:
        g, m = getattr(golden, name), getattr(mine, name)
        absolute = relative = None
        if g is not None and m is not None:
            absolute = _distance(float(g), float(m))
            relative = absolute / max(abs(g), NEAR_ZERO) if 0 < absolute < math.inf else absolute
        errors[f"{name}_stat_absolute_error"] = absolute
        errors[f"{name}_stat_relative_error"] = relative
    return errors


def _distance(golden: float, mine: float) -> float:
    if golden == mine or (math.isnan(golden) and math.isnan(mine)):
        return 0.0
    if not (math.isfinite(golden) and math.isfinite(mine)):
        return math.inf
    return abs(mine - golden)
