"""The standard `default`: T, derived from the dtypes and the place in the model (`derive.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..derive import derived
from ..threshold import JudgeContext, Threshold
from .base import Adjustment, Standard

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement


def derived_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    """The derived bounds, which other standards fall back to where they say nothing."""
    return derived(context, measurement, adjustment.factor, adjustment.origin, adjustment.tolerance)


DEFAULT = Standard(
    "default",
    "T, derived from dtype, length of sums, depth and size of the tensor",
    derived_thresholds,
)
