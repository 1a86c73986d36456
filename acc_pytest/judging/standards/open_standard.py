"""The standard `open`: mean relative error below T, largest below 10 T, as Ascend asks of open operators.

The relative error of an element is |error| / (|golden| + 1e-7), for one operator given equal inputs. Whole
numbers have to be equal. The standard `ascend` takes the table for pairs of operators that ATB has not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...metrics.element_tolerance import EXACT, ElementTolerance
from ..threshold import JudgeContext, Threshold
from .base import WHOLE_NUMBERS, Adjustment, Standard, kind_of, of_output, unknown_dtype

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement

MEAN = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-13,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
"""T by the output's type; a type that is not here has no bound."""

LARGEST = 10
"""The largest relative error, as a multiple of T."""


def _open_t(context: JudgeContext, adjustment: Adjustment) -> float | None:
    """T of an output; `None` for whole numbers. Raises `SettingsError` for a type without a bound."""
    if kind_of(context) != "float":
        return None
    if context.written not in MEAN:
        raise unknown_dtype("open", context)
    return MEAN[context.written] * adjustment.factor


def _open_tolerance(
    context: JudgeContext, dtypes: tuple[str, str], adjustment: Adjustment
) -> ElementTolerance:
    t = _open_t(context, adjustment)
    return EXACT if t is None else ElementTolerance(LARGEST * t, scale="relative")


def _open_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    t, dtype = _open_t(context, adjustment), context.written
    if t is None:
        return of_output(measurement, WHOLE_NUMBERS)
    return of_output(
        measurement,
        Threshold("mere", t, False, f"mean relative error of {dtype} below T", strict=True),
        Threshold("mare", LARGEST * t, False, f"largest relative error of {dtype} below 10 T", strict=True),
    )


def _open_requirement(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> str:
    t = _open_t(context, adjustment)
    return f"100%({EXACT})" if t is None else f"MERE < {t:.6g}, MARE < {LARGEST * t:.6g}"


OPEN = Standard(
    "open",
    "the open Ascend operator standard: mean and largest relative error",
    _open_thresholds,
    _open_tolerance,
    _open_requirement,
)
