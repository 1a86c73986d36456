"""The standard `msit`: the old tool's share of elements within a relative error, by the output's type.

Its mistakes are not kept: a bool output can pass (the share has to reach 100, not exceed it), `±1` of
integers means a difference and not a relative error of 100 %, and where golden is 0 an element is held
to the same number instead of passing whatever it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...reporting.row import Check
from ..errors_of import ElementRule, Errors
from .base import About, Judged, Standard, finite_check, unknown_dtype

_RULES = {
    "float32": (ElementRule(2.0**-20, "relative"), 99.99),
    "float16": (ElementRule(2.0**-10, "relative"), 99.9),
    "bfloat16": (ElementRule(2.0**-8, "relative"), 99.9),
    **dict.fromkeys(
        ("float64", "int32", "uint32", "int64", "uint64"), (ElementRule(1e-4, "relative"), 99.99)
    ),
    **dict.fromkeys(("int8", "int16", "uint16"), (ElementRule(1.0, "absolute"), 99.9)),
    "uint8": (ElementRule(1.0, "absolute"), 99.0),
    "bool": (ElementRule(0.0, "absolute"), 100.0),
}


def _rule(about: About) -> ElementRule:
    if about.dtype not in _RULES:
        raise unknown_dtype("msit", about)
    rule, _ = _RULES[about.dtype]
    return ElementRule(rule.bound * about.factor, rule.scale)


def _judge(about: About, errors: Errors, against: Sequence[Errors]) -> Judged:
    rule, rate = _rule(about), _RULES[about.dtype][1]
    reason = f"msit: share of elements of {about.dtype} with {rule}"
    passed = errors.rate >= rate
    check = Check("rel_precision_rate", errors.rate, rate, True, reason, passed)
    return Judged((check, finite_check(errors)), f"{rate}%(error<{rule.bound})")


MSIT = Standard("msit", _rule, _judge)
