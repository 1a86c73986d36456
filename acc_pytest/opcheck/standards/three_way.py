"""The standard `three-way`: mine may be a little further from the exact value than another device is.

The exact value is computed in float64 and not rounded. Of the errors of both devices against it, the
largest relative one of mine may be 10 times the other's, the mean one and the root of the mean square
twice; errors below the type's own step count as that step. Whole numbers have to be equal.
"""

from __future__ import annotations

from ..errors_of import ElementRule, Errors
from .base import About, Judged, Standard, at_most, finite_check, unknown_dtype

_FLOOR = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-14}
_RATIOS = (("mare", 10.0), ("mere", 2.0), ("rmse", 2.0))


def _rule(about: About) -> ElementRule:
    if about.kind != "float":
        return ElementRule(0.0, "absolute")
    if about.dtype not in _FLOOR:
        raise unknown_dtype("three-way", about)
    return ElementRule(10.0 * _FLOOR[about.dtype], "relative")


def _judge(about: About, errors: Errors, other: Errors | None) -> Judged:
    if about.kind != "float" or other is None:
        check = at_most("max_absolute_error", errors.max_absolute, 0.0, "three-way: whole numbers are exact")
        return Judged((check, finite_check(errors)), "100%(|error| = 0)")
    floor = _FLOOR[about.dtype]
    mine = {"mare": errors.max_relative, "mere": errors.mean_relative, "rmse": errors.rmse}
    theirs = {"mare": other.max_relative, "mere": other.mean_relative, "rmse": other.rmse}
    checks = [
        at_most(
            f"{name}_ratio",
            mine[name] / max(theirs[name], floor),
            allowed * about.factor,
            f"three-way: {name} of mine {mine[name]:.3g}, of the other device {theirs[name]:.3g}",
        )
        for name, allowed in _RATIOS
    ]
    said = ", ".join(f"{name} ratio <= {allowed:g}" for name, allowed in _RATIOS)
    return Judged((*checks, finite_check(errors)), said)


THREE_WAY = Standard("three-way", _rule, _judge, needs_other=True)
