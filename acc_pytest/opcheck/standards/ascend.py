"""The standard `ascend`: ATB's own bounds by class of operator, type of the output and length of its sums.

Every element has to satisfy |error| <= bound max(1, |golden|). Other than ATB's suite we ask NaN and
infinities to be in the same places (it sets them to 0 on both sides), and treat the integer outputs of
operators that compute with floats (indices) as exact.
"""

from __future__ import annotations

import math

from ..errors_of import ElementRule, Errors
from .base import About, Judged, Standard, at_most, finite_check
from .op_class import op_class

EXACT = frozenset({"MOVE", "CAST", "COMPUTE_INTEGER"})

_BOUNDS = {
    ("COMPUTE_FLOAT", "float16"): (2.0**-8, 2.0**-7, 2.0**-7),
    ("COMPUTE_FLOAT", "bfloat16"): (2.0**-7, 2.0**-6, 2.0**-6),
    ("COMPUTE_FLOAT", "float32"): (2.0**-11, 2.0**-10, 2.0**-9),
    ("VECTOR_FUSION", "float16"): (2.0**-9,) * 3,
    ("VECTOR_FUSION", "bfloat16"): (2.0**-7,) * 3,
    ("VECTOR_FUSION", "float32"): (2.0**-12,) * 3,
}
"""Bounds for sums of fewer than 2048 addends, of fewer than 16384, and of more. COMPUTE_QUANT has those of
COMPUTE_FLOAT."""

_LENGTHS = (2048, 16384)
_BALANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-14}
_STEPPED = ("float8_e5m2", "float8_e4m3fn", "hifloat8")


def _bound(about: About) -> tuple[ElementRule, str]:
    kind = op_class(about.operator, about.param)
    if kind in EXACT:
        return ElementRule(0.0, "absolute"), f"{kind}: the result is exact"
    if about.dtype in _STEPPED:
        return ElementRule(1.0, "ulp"), f"{kind}, {about.dtype}: one step of the type"
    if about.dtype == "int8" and kind == "COMPUTE_QUANT":
        return ElementRule(1.0, "absolute"), "COMPUTE_QUANT, int8: one step of the quantised value"
    if about.kind != "float":
        return ElementRule(0.0, "absolute"), f"{kind}, {about.dtype}: whole numbers are exact"
    table = "COMPUTE_FLOAT" if kind == "COMPUTE_QUANT" else kind
    bounds = _BOUNDS.get((table, about.dtype), _BOUNDS[(table, "float32")])
    length = about.length if about.length is not None else 0
    bound = bounds[sum(length >= limit for limit in _LENGTHS)]
    sums = f", sums of {length}" if about.length is not None else ""
    times = f", times {about.factor:g} by a marker" if about.factor != 1 else ""
    said = f"{kind}, {about.dtype}{sums}: 2^{math.log2(bound):.0f}{times}"
    return ElementRule(bound * about.factor), said


def _judge(about: About, errors: Errors, other: Errors | None) -> Judged:
    rule, reason = _bound(about)
    metric, measured = "max_absolute_error", errors.max_absolute
    if rule.scale == "scaled":
        metric, measured = "max_scaled_error", errors.max_scaled
    elif rule.scale == "ulp":
        metric, measured = "max_ulp_error", errors.max_ulp or 0.0
    checks = [at_most(metric, measured, rule.bound, f"ascend: {reason}"), finite_check(errors)]
    return Judged(tuple(checks), f"100%({rule})")


def balance_of(dtype: str) -> float | None:
    """What ATB reports a systematic error against; it never changes a verdict."""
    return _BALANCE.get(dtype)


ASCEND = Standard("ascend", lambda about: _bound(about)[0], _judge)
