"""The standard `ascend`: the published bounds of Ascend for single operators, held against pairs.

    an ATB operator       max_scaled_error <= the row of its class and type (`atb_bounds.py`)
    any other operator    mean_relative_error <= T, max_relative_error <= 10 T of its type (`open_bounds.py`)
    whole numbers         equal; int8 of a quantising class one step
    NaN and infinities    where golden has them

Both tables are for one operator that is given equal inputs, and are applied as published: nothing is added
for layers before. Where they cannot mean anything between two runs the derived T stands: results that only
move or cast what came before (exact on equal inputs, and no more exact than their inputs here), layers and
other composites, golden all zero, types without a row.

A comparison does not know an operator's parameters, so that of the classes that they choose between the
loosest is taken, and knows the length of sums by golden's last dimension only. Elements of golden near zero
have no relative error here (docs/metrics.md), where the open standard divides by 1e-7.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..derive import is_exact, is_zero, nonfinite_thresholds
from ..threshold import JudgeContext, Threshold
from ..tolerance import coarser
from .atb_bounds import EXACT, element_bound
from .atb_classes import class_by_name
from .base import Asked, Standard
from .default import derived_thresholds
from .open_bounds import LARGEST, MEAN

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement

_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_SUMMING = {"LinearOperation": 1, "LinearParallelOperation": 2}
"""Operators whose sums ATB counts, and how many addends for each of the shared dimension."""


def atb_operator(context: JudgeContext) -> str:
    """The ATB operator of a pair, that of mine before that of golden; empty where neither is one."""
    for op_type in (context.mine_op_type, context.golden_op_type):
        if op_type.endswith("Operation"):
            return op_type
    return ""


def _thresholds(context: JudgeContext, measurement: Measurement, asked: Asked) -> tuple[Threshold, ...]:
    operator = atb_operator(context)
    kind = class_by_name(operator) if operator else ""
    if is_exact(measurement):
        step = kind == "COMPUTE_QUANT" and measurement.golden_dtype == measurement.mine_dtype == "int8"
        if step:
            reason = f"{kind}, int8: one step of the quantised value"
            return (Threshold("max_absolute_error", 1.0 * asked.factor, False, reason + asked.words),)
        return derived_thresholds(context, measurement, asked)
    if measurement.golden_max_abs is None:
        return nonfinite_thresholds()
    dtype = coarser(measurement.golden_dtype, measurement.mine_dtype).name
    dtype = _PARTS.get(dtype, dtype)
    silent = _silent(context, measurement, kind, dtype)
    if silent:
        found = derived_thresholds(context, measurement, asked)
        return tuple(Threshold(t.metric, t.bound, t.at_least, f"{silent}; {t.reason}") for t in found)
    bounds = _by_class(context, operator, kind, dtype, asked) if kind else _open(dtype, context, asked)
    return (*bounds, *nonfinite_thresholds())


def _silent(context: JudgeContext, measurement: Measurement, kind: str, dtype: str) -> str:
    """Why the tables say nothing of a pair of float tensors; empty where they do."""
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
    context: JudgeContext, operator: str, kind: str, dtype: str, asked: Asked
) -> tuple[Threshold, ...]:
    """The row of ATB's table. (fp8 has no bound of elements there: one step, which is the open T.)"""
    if dtype.startswith("float8"):
        return _open(dtype, context, asked)
    times = _SUMMING.get(operator, 0)
    length = context.length * times if context.length is not None and times else None
    bound = element_bound(kind, dtype, length)
    sums = f", sums of {length}" if length is not None else ""
    reason = f"ATB's row {kind}, {dtype}{sums}: every element within {_power(bound)}*max(1,|golden|)"
    reason += f"{_alone(context)}{asked.words}"
    return (Threshold("max_scaled_error", bound * asked.factor, False, reason),)


def _open(dtype: str, context: JudgeContext, asked: Asked) -> tuple[Threshold, ...]:
    t = MEAN[dtype]
    row, rest = f"the open standard's row {dtype}, T = {_power(t)}", _alone(context) + asked.words
    return (
        Threshold(
            "mean_relative_error", t * asked.factor, False, f"{row}: mean relative error up to T{rest}"
        ),
        Threshold(
            "max_relative_error",
            LARGEST * t * asked.factor,
            False,
            f"{row}: largest relative error up to {LARGEST} T{rest}",
        ),
    )


def _alone(context: JudgeContext) -> str:
    before = f"{context.depth} layer{'' if context.depth == 1 else 's'} before"
    return f", for one operator on equal inputs ({before} not forgiven)"


def _power(value: float) -> str:
    return f"2^{math.log2(value):.0f}"


ASCEND = Standard(
    "ascend",
    "the open Ascend operator standard, and ATB's own table by class of operator",
    _thresholds,
)
