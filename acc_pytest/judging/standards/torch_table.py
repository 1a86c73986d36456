"""The standard `torch`: every element within the tolerance of `torch.testing.assert_close` for its type.

    |mine - golden| <= atol + rtol * |golden|

with the larger rtol and the larger atol of both dtypes. Integers and booleans have to be equal. NaN equals
NaN, as with `equal_nan=True`, and dtypes may differ, as with `check_dtype=False`. The table is
`metrics/element_tolerance.py`, which adds fp8; the pass counts the elements beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import Incomparable
from ...metrics.element_tolerance import ElementTolerance, default_tolerance
from ..derive import is_exact, nonfinite_thresholds
from ..threshold import JudgeContext, Threshold
from .base import Adjustment, Standard
from .default import derived_thresholds

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement


def _torch_tolerance(
    context: JudgeContext, dtypes: tuple[str, str], adjustment: Adjustment
) -> ElementTolerance:
    return default_tolerance(*dtypes).times(adjustment.factor)


def _torch_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    """Raises `Incomparable` for elements that were counted with another tolerance."""
    if is_exact(measurement):
        return derived_thresholds(context, measurement, adjustment)
    if measurement.golden_max_abs is None:
        return nonfinite_thresholds()
    dtypes = (measurement.golden_dtype, measurement.mine_dtype)
    limits = _torch_tolerance(context, dtypes, adjustment)
    if (measurement.rtol, measurement.atol) != (limits.rtol, limits.atol):
        raise Incomparable(
            f"elements were counted with rtol {measurement.rtol:g} and atol {measurement.atol:g}, and the "
            f"standard torch wants rtol {limits.rtol:g} and atol {limits.atol:g}; compare the dumps again"
        )
    rows = " and ".join(dict.fromkeys(dtypes))
    before = f"{context.depth} layer{'' if context.depth == 1 else 's'} before not forgiven"
    reason = (
        f"assert_close's row {rows}: every element within atol {limits.atol:g} + "
        f"rtol {limits.rtol:g}*|golden| ({before}){adjustment.text}"
    )
    return (Threshold("beyond_fraction", 0.0, False, reason), *nonfinite_thresholds())


TORCH = Standard(
    "torch",
    "the tolerances of torch.testing.assert_close, element by element",
    _torch_thresholds,
    _torch_tolerance,
)
