"""The standard `msit`: the old tool's share of elements within a relative error, by the output's type.

Its mistakes are not kept: a bool output can pass (the share has to reach 100, not exceed it), `±1` of
integers means a difference and not a relative error of 100 %, and where golden is 0 an element is held
to the same number instead of passing whatever it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...metrics.element_tolerance import EXACT, ElementTolerance
from ..threshold import JudgeContext, Threshold
from .base import Adjustment, Standard, of_output, unknown_dtype

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement

_MSIT_RULES = {
    "float32": (ElementTolerance(2.0**-20, scale="relative"), 99.99),
    "float16": (ElementTolerance(2.0**-10, scale="relative"), 99.9),
    "bfloat16": (ElementTolerance(2.0**-8, scale="relative"), 99.9),
    **dict.fromkeys(
        ("float64", "int32", "uint32", "int64", "uint64"), (ElementTolerance(1e-4, scale="relative"), 99.99)
    ),
    **dict.fromkeys(("int8", "int16", "uint16"), (ElementTolerance(1.0), 99.9)),
    "uint8": (ElementTolerance(1.0), 99.0),
    "bool": (EXACT, 100.0),
}


def _msit_rule(context: JudgeContext, adjustment: Adjustment) -> tuple[ElementTolerance, float]:
    if context.written not in _MSIT_RULES:
        raise unknown_dtype("msit", context)
    tolerance, rate = _MSIT_RULES[context.written]
    return tolerance.times(adjustment.factor), rate


def _msit_tolerance(
    context: JudgeContext, dtypes: tuple[str, str], adjustment: Adjustment
) -> ElementTolerance:
    return _msit_rule(context, adjustment)[0]


def _msit_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    tolerance, rate = _msit_rule(context, adjustment)
    reason = f"share of elements of {context.written} with {tolerance}{adjustment.text}"
    return of_output(measurement, Threshold("rel_precision_rate", rate, True, reason))


def _msit_requirement(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> str:
    tolerance, rate = _msit_rule(context, adjustment)
    return f"{rate}%(error<{tolerance.atol})"


MSIT = Standard(
    "msit",
    "the old tool's share of elements within a relative error",
    _msit_thresholds,
    _msit_tolerance,
    _msit_requirement,
)
