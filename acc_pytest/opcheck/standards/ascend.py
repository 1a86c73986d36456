"""The standard `ascend`: ATB's own bounds by class of operator, type of the output and length of its sums.

Every element has to satisfy |error| <= bound max(1, |golden|). Other than ATB's suite we ask NaN and
infinities to be in the same places (it sets them to 0 on both sides), and treat the integer outputs of
operators that compute with floats (indices) as exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...judging.standards.atb_bounds import EXACT, STEPPED, element_bound
from ...judging.standards.atb_classes import op_class
from ..errors_of import ElementRule, Errors
from .base import About, Judged, Standard, at_most, finite_check


def _bound(about: About) -> tuple[ElementRule, str]:
    kind = op_class(about.operator, about.param)
    if kind in EXACT:
        return ElementRule(0.0, "absolute"), f"{kind}: the result is exact"
    if about.dtype in STEPPED:
        return ElementRule(1.0, "ulp"), f"{kind}, {about.dtype}: one step of the type"
    if about.dtype == "int8" and kind == "COMPUTE_QUANT":
        return ElementRule(1.0, "absolute"), "COMPUTE_QUANT, int8: one step of the quantised value"
    if about.kind != "float":
        return ElementRule(0.0, "absolute"), f"{kind}, {about.dtype}: whole numbers are exact"
    bound = element_bound(kind, about.dtype, about.length)
    sums = f", sums of {about.length}" if about.length is not None else ""
    times = f", times {about.factor:g} by a marker" if about.factor != 1 else ""
    said = f"{kind}, {about.dtype}{sums}: 2^{math.log2(bound):.0f}{times}"
    return ElementRule(bound * about.factor), said


def _judge(about: About, errors: Errors, against: Sequence[Errors]) -> Judged:
    rule, reason = _bound(about)
    metric, measured = "max_absolute_error", errors.max_absolute
    if rule.scale == "scaled":
        metric, measured = "max_scaled_error", errors.max_scaled
    elif rule.scale == "ulp":
        metric, measured = "max_ulp_error", errors.max_ulp or 0.0
    checks = [at_most(metric, measured, rule.bound, f"ascend: {reason}"), finite_check(errors)]
    return Judged(tuple(checks), f"100%({rule})")


ASCEND = Standard("ascend", lambda about: _bound(about)[0], _judge)
