"""The standard `open`: mean relative error below T, largest below 10 T, as Ascend asks of open operators.

The relative error of an element is |error| / (|golden| + 1e-7). Whole numbers have to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...judging.standards.open_bounds import LARGEST, MEAN
from ...reporting.row import Check
from ..errors_of import ElementRule, Errors
from .base import About, Judged, Standard, at_most, finite_check, unknown_dtype


def _rule(about: About) -> ElementRule:
    if about.kind != "float":
        return ElementRule(0.0, "absolute")
    if about.dtype not in MEAN:
        raise unknown_dtype("open", about)
    return ElementRule(LARGEST * MEAN[about.dtype] * about.factor, "relative")


def _below(metric: str, measured: float, allowed: float, reason: str) -> Check:
    return Check(metric, measured, allowed, False, reason, measured < allowed)


def _judge(about: About, errors: Errors, against: Sequence[Errors]) -> Judged:
    if about.kind != "float":
        check = at_most("max_absolute_error", errors.max_absolute, 0.0, "open: whole numbers are exact")
        return Judged((check, finite_check(errors)), "100%(|error| = 0)")
    t = MEAN[about.dtype] * about.factor
    checks = (
        _below("mere", errors.mean_relative, t, f"open: mean relative error of {about.dtype} below T"),
        _below("mare", errors.max_relative, LARGEST * t, "open: largest relative error below 10 T"),
        finite_check(errors),
    )
    return Judged(checks, f"MERE < {t:.6g}, MARE < {LARGEST * t:.6g}")


OPEN = Standard("open", _rule, _judge)
