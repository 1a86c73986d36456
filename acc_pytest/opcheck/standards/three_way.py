"""The standard `three-way`: mine may be a little further from the exact value than another device is.

The rule is that of `two_golden.py` for every float output, whatever its operator, with the other device's
output as second golden and nothing beside it. Whole numbers have to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors_of import ElementRule, Errors
from .base import About, Judged, Second, Standard, at_most, finite_check, unknown_dtype
from .two_golden import FLOOR, ratio_checks, said


def _rule(about: About) -> ElementRule:
    if about.kind != "float":
        return ElementRule(0.0, "absolute")
    if about.dtype not in FLOOR:
        raise unknown_dtype("three-way", about)
    return ElementRule(10.0 * FLOOR[about.dtype], "relative")


def _second(about: About, has_other: bool) -> Second:
    return Second.DEVICE if about.kind == "float" else Second.NONE


def _judge(about: About, errors: Errors, against: Sequence[Errors]) -> Judged:
    if not against:
        check = at_most("max_absolute_error", errors.max_absolute, 0.0, "three-way: whole numbers are exact")
        return Judged((check, finite_check(errors)), "100%(|error| = 0)")
    mine, other = against
    ratios = ratio_checks(about, mine, other, "three-way", "the other device")
    return Judged((*ratios, finite_check(errors)), said())


THREE_WAY = Standard("three-way", _rule, _judge, _second)
