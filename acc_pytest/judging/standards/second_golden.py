"""ATB's rule for fused attention (its class CV_FUSION), and the standard `two-golden` that always applies it.

An attention output may be so small that a bound of max(1, |golden|) says nothing of it, and so cancelled that
a relative bound is too much to ask. ATB therefore takes two goldens: the exact value t (float64, not
rounded), and a result g in the precision of the device, computed as another device would. With errors
relative to t, the largest of mine may be 10 times that of g, its mean and its root mean square twice;
errors of g below the type's own step count as that step.

g is the second device's output (`--acc-opcheck-other`), or our operator computed with every intermediate
value in the type of the output. The bound on single elements that ATB has without g holds as well: a mean
over a million elements does not see one. The standard `three-way` has the ratios alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..threshold import JudgeContext, Threshold
from .ascend import ASCEND, requirement
from .base import Adjustment, Second

if TYPE_CHECKING:
    from ...metrics.elements import ElementErrors
    from ...metrics.measurement import Measurement

FLOOR = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-14}
"""Floor of the error of g."""

RATIOS = {"mare": 10.0, "mere": 2.0, "rmse": 2.0}
"""Factors of the error of g that mine may have: largest and mean relative error, root mean square."""

RATIO_TEXT = ", ".join(f"{name} ratio <= {allowed:g}" for name, allowed in RATIOS.items())
"""The rule in the words of the old result sheet."""


def error_ratios(mine: ElementErrors, second: ElementErrors, dtype: str) -> dict[str, float]:
    """The ratios by name, and what they are of; both errors are those against t."""
    numbers: dict[str, float] = {}
    for name in RATIOS:
        ours, theirs = getattr(mine, name), getattr(second, name)
        numbers |= {
            f"{name}_ratio": ours / max(theirs, FLOOR[dtype]), f"{name}_of_mine": ours,
            f"{name}_of_second": theirs,
        }  # fmt: skip
    return numbers


def ratio_thresholds(measurement: Measurement, adjustment: Adjustment, whose: str) -> tuple[Threshold, ...]:
    """The three ratios, where they were measured; `whose` second golden it is."""
    numbers = measurement.further
    return tuple(
        Threshold(
            f"{name}_ratio",
            allowed * adjustment.factor,
            False,
            f"{name} of mine {numbers[f'{name}_of_mine']:.3g}, of {whose} {numbers[f'{name}_of_second']:.3g}",
        )
        for name, allowed in RATIOS.items()
        if f"{name}_ratio" in numbers
    )


def _second_of(context: JudgeContext, has_second: bool) -> Second:
    if not context.two_goldens or context.written not in FLOOR:
        return Second.NONE
    return Second.DEVICE if has_second else Second.COMPUTED


def _two_golden_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    ratios = ratio_thresholds(measurement, adjustment, "the low-precision golden")
    return (*ASCEND.thresholds(context, measurement, adjustment), *ratios)


def _two_golden_requirement(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> str:
    sentence = requirement(context, measurement, adjustment)
    return f"{sentence}, {RATIO_TEXT}" if "mare_ratio" in measurement.further else sentence


TWO_GOLDEN = replace(
    ASCEND,
    name="two-golden",
    about="as ascend; fused attention also beside a second golden",
    thresholds=_two_golden_thresholds,
    requirement=_two_golden_requirement,
    second=_second_of,
)
