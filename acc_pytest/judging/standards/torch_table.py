"""The standard `torch`: every element within the tolerance of `torch.testing.assert_close` for its type.

    |mine - golden| <= atol + rtol * |golden|

with the larger rtol and the larger atol of both dtypes. Integers and booleans have to be equal. NaN equals
NaN, as with `equal_nan=True`, and dtypes may differ, as with `check_dtype=False`. The table is
`metrics/element_tolerance.py`, which adds fp8; the pass counts the elements beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import Incomparable
from ..derive import is_exact, nonfinite_thresholds
from ..threshold import JudgeContext, Threshold
from .base import Asked, ElementTolerance, Standard
from .default import derived_thresholds

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement


def _elements(golden_dtype: str, mine_dtype: str, asked: Asked) -> ElementTolerance:
    from ...metrics.element_tolerance import tolerance_of_names

    found = tolerance_of_names(golden_dtype, mine_dtype)
    return ElementTolerance(found.rtol * asked.factor, found.atol * asked.factor)


def _thresholds(context: JudgeContext, measurement: Measurement, asked: Asked) -> tuple[Threshold, ...]:
    """Raises `Incomparable` for elements that were counted with another tolerance."""
    if is_exact(measurement):
        return derived_thresholds(context, measurement, asked)
    if measurement.golden_max_abs is None:
        return nonfinite_thresholds()
    wanted = _elements(measurement.golden_dtype, measurement.mine_dtype, asked)
    if (measurement.rtol, measurement.atol) != (wanted.rtol, wanted.atol):
        raise Incomparable(
            f"elements were counted with rtol {measurement.rtol:g} and atol {measurement.atol:g}, and the "
            f"standard torch wants rtol {wanted.rtol:g} and atol {wanted.atol:g}; compare the dumps again"
        )
    rows = " and ".join(dict.fromkeys((measurement.golden_dtype, measurement.mine_dtype)))
    before = f"{context.depth} layer{'' if context.depth == 1 else 's'} before not forgiven"
    reason = (
        f"assert_close's row {rows}: every element within atol {wanted.atol:g} + "
        f"rtol {wanted.rtol:g}*|golden| ({before}){asked.words}"
    )
    return (Threshold("beyond_fraction", 0.0, False, reason), *nonfinite_thresholds())


TORCH = Standard(
    "torch", "the tolerances of torch.testing.assert_close, element by element", _thresholds, _elements
)
