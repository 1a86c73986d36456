"""The standard `ascend`: the published bounds of Ascend for single operators, also held against pairs.

    an ATB operator       max_scaled_error <= the row of its class and type (`atb_bounds.py`)
    any other operator    mean_relative_error <= T, max_relative_error <= 10 T of its type (`open_standard`)
    whole numbers         equal; int8 of a quantising class one step
    NaN and infinities    where golden has them

Both tables are for one operator that is given equal inputs. An operator check does that, and knows the
class under the operator's parameters and the length of its sums. Other than ATB's suite we ask NaN and
infinities to be in the same places (it sets them to 0 on both sides), and treat the integer outputs of
operators that compute with floats (indices) as exact.

For pairs the tables are applied as published: nothing is added for layers before. Where they cannot mean
anything between two runs the derived T stands: results that only move or cast what came before (exact on
equal inputs, and no more exact than their inputs here), layers and other composites, golden all zero, types
without a row. The parameters of a pair are not known, so the loosest class that they choose between is
taken, and the length of sums is golden's last dimension. Elements of golden near zero have no relative
error here (docs/metrics.md), where the open standard divides by 1e-7.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...metrics.element_tolerance import EXACT as EQUAL
from ...metrics.element_tolerance import ElementTolerance
from ..derive import is_exact, is_zero, nonfinite_thresholds
from ..threshold import JudgeContext, Threshold
from ..tolerance import coarser
from .atb_bounds import EXACT, STEPPED, element_bound
from .atb_classes import class_by_name
from .base import Adjustment, Standard, kind_of, of_output
from .default import derived_thresholds
from .open_standard import LARGEST, MEAN

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement

_COMPONENTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_SUMMING = {"LinearOperation": 1, "LinearParallelOperation": 2}
"""Operators whose sums ATB counts, and how many addends for each of the shared dimension."""
_ONE_STEP = "one step of the quantised value"
_METRICS = {"absolute": "max_absolute_error", "scaled": "max_scaled_error", "ulp": "max_ulp_error"}
"""The metric that bounds every element, by the scale of the tolerance."""


def atb_operator(context: JudgeContext) -> str:
    """The ATB operator of a pair, that of mine before that of golden; empty where neither is one."""
    for op_type in (context.mine_op_type, context.golden_op_type):
        if op_type.endswith("Operation"):
            return op_type
    return ""


def _of_operator(context: JudgeContext, adjustment: Adjustment) -> tuple[ElementTolerance, str]:
    """The bound of each element of an operator's output, and why."""
    kind, dtype = context.op_class, context.written
    if kind in EXACT:
        return EQUAL, f"{kind}: the result is exact"
    if dtype in STEPPED:
        return ElementTolerance(1.0, scale="ulp"), f"{kind}, {dtype}: one step of the type"
    if dtype == "int8" and kind == "COMPUTE_QUANT":
        return ElementTolerance(1.0), f"{kind}, int8: {_ONE_STEP}"
    if kind_of(context) != "float":
        return EQUAL, f"{kind}, {dtype}: whole numbers are exact"
    bound = element_bound(kind, dtype, context.length)
    reason = f"{kind}, {dtype}{_sums(context.length)}: {_power(bound)}{adjustment.text}"
    return ElementTolerance(bound * adjustment.factor, scale="scaled"), reason


def _elements(
    context: JudgeContext, dtypes: tuple[str, str], adjustment: Adjustment
) -> ElementTolerance | None:
    return _of_operator(context, adjustment)[0] if context.written else None


def requirement(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> str:
    """The bound of an operator's output in the words of the old result sheet."""
    return f"100%({_of_operator(context, adjustment)[0]})"


def _thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    if context.written:
        tolerance, reason = _of_operator(context, adjustment)
        bound = Threshold(_METRICS[tolerance.scale], tolerance.atol, False, reason)
        return of_output(measurement, bound)
    operator = atb_operator(context)
    kind = class_by_name(operator) if operator else ""
    if is_exact(measurement):
        if kind == "COMPUTE_QUANT" and measurement.golden_dtype == measurement.mine_dtype == "int8":
            reason = f"{kind}, int8: {_ONE_STEP}{adjustment.text}"
            return (Threshold("max_absolute_error", 1.0 * adjustment.factor, False, reason),)
        return derived_thresholds(context, measurement, adjustment)
    if measurement.golden_max_abs is None:
        return nonfinite_thresholds()
    dtype = coarser(measurement.golden_dtype, measurement.mine_dtype).name
    dtype = _COMPONENTS.get(dtype, dtype)
    silent = _silent(context, measurement, kind, dtype)
    if silent:
        derived = derived_thresholds(context, measurement, adjustment)
        return tuple(threshold._replace(reason=f"{silent}; {threshold.reason}") for threshold in derived)
    bounds = (
        _by_class(context, operator, kind, dtype, adjustment) if kind else _open(dtype, context, adjustment)
    )
    return (*bounds, *nonfinite_thresholds())


def _silent(context: JudgeContext, measurement: Measurement, kind: str, dtype: str) -> str:
    """The reason why the tables do not cover a pair of float tensors; empty where they do."""
    if is_zero(measurement):
        return "the tables bound no tensor of zeros"
    if kind in EXACT:
        return f"{kind} is exact on equal inputs, which two runs do not have"
    if context.level in ("layer", "module"):
        return f"the tables are for operators, and this is a {context.level}"
    if dtype not in MEAN and not (kind and dtype == "float64"):
        return f"no row for {dtype}"
    return ""


def _by_class(
    context: JudgeContext, operator: str, kind: str, dtype: str, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    """The row of ATB's table. (fp8 has no bound of elements there: one step, which is the open T.)"""
    if dtype.startswith("float8"):
        return _open(dtype, context, adjustment)
    times = _SUMMING.get(operator, 0)
    length = context.length * times if context.length is not None and times else None
    bound = element_bound(kind, dtype, length)
    row = f"ATB's row {kind}, {dtype}{_sums(length)}: every element within {_power(bound)}*max(1,|golden|)"
    reason = f"{row}{_equal_inputs(context)}{adjustment.text}"
    return (Threshold("max_scaled_error", bound * adjustment.factor, False, reason),)


def _open(dtype: str, context: JudgeContext, adjustment: Adjustment) -> tuple[Threshold, ...]:
    t = MEAN[dtype]
    row, rest = f"the open standard's row {dtype}, T = {_power(t)}", _equal_inputs(context) + adjustment.text
    bounds = (
        ("mean_relative_error", 1, "mean", "T"),
        ("max_relative_error", LARGEST, "largest", f"{LARGEST} T"),
    )
    return tuple(
        Threshold(
            metric, times * t * adjustment.factor, False, f"{row}: {what} relative error up to {limit}{rest}"
        )
        for metric, times, what, limit in bounds
    )


def _sums(length: int | None) -> str:
    return "" if length is None else f", sums of {length}"


def _equal_inputs(context: JudgeContext) -> str:
    before = f"{context.depth} layer{'' if context.depth == 1 else 's'} before"
    return f", for one operator on equal inputs ({before} not forgiven)"


def _power(value: float) -> str:
    return f"2^{math.log2(value):.0f}"


ASCEND = Standard(
    "ascend",
    "the open Ascend operator standard, and ATB's own table by class of operator",
    _thresholds,
    _elements,
    requirement,
)
