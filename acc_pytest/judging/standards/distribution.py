"""The standard `distribution`: of random operators only what was drawn from has to be the same.

For devices whose random numbers cannot be repeated (another C library, a seed that no dump holds). ATB's
suite has the rule, p > 0.01, for a class RAND that none of its operators is of. Everything that is not
drawn is judged as by `ascend`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..threshold import JudgeContext, Threshold
from .ascend import ASCEND, requirement
from .base import Adjustment

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement

LEAST = 0.01
"""Below this probability two samples are not of one distribution."""

SHIFT = 2.576
"""Standard errors that the means of two samples of one distribution keep to in 99 of 100 runs."""

_SAMPLE_BOUNDS = (
    Threshold(
        "ks_p_value", LEAST, True, "both samples may be of one distribution (Kolmogorov, Smirnov)", True
    ),
    Threshold("impossible_draws", 0.0, False, "what is drawn has a probability"),
    Threshold("mean_shift", SHIFT, False, "difference of the means in standard errors"),
)


def _sample_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    drawn = tuple(bound for bound in _SAMPLE_BOUNDS if bound.metric in measurement.further)
    return drawn or ASCEND.thresholds(context, measurement, adjustment)


def _sample_requirement(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> str:
    if "ks_p_value" in measurement.further:
        return f"KS p > {LEAST}"
    return requirement(context, measurement, adjustment)


DISTRIBUTION = replace(
    ASCEND,
    name="distribution",
    about="as ascend; random draws by their distribution",
    thresholds=_sample_thresholds,
    requirement=_sample_requirement,
    samples=True,
)
