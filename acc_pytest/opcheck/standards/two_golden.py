"""ATB's rule for fused attention (its class CV_FUSION), and the standard `two-golden` that always applies it.

An attention output may be so small that a bound of max(1, |golden|) says nothing of it, and so cancelled that
a relative bound is too much to ask. ATB therefore takes two goldens: the exact value t (float64, not
rounded), and a result g in the precision of the device, computed as another device would. With errors
relative to t, mine's largest may be 10 times that of g, its mean and its root mean square twice; errors of g
below the type's own step count as that step.

g is the second device's output (`--acc-opcheck-other`), or our operator computed with every intermediate
value in the type of the output. The bound on single elements that ATB has without g holds as well: a mean
over a million elements does not see one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...judging.standards.atb_classes import has_two_goldens
from ...reporting.row import Check
from ..errors_of import Errors
from .ascend import ASCEND
from .base import About, Judged, Second, Standard, at_most

FLOOR = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-14}
"""What counts as the error of g where it is smaller."""

RATIOS = (("mare", 10.0), ("mere", 2.0), ("rmse", 2.0))
"""How many times the error of g mine's may be: largest and mean relative error, root mean square."""


def ratio_checks(about: About, mine: Errors, other: Errors, standard: str, whose: str) -> list[Check]:
    """The three ratios; both errors are those against t."""
    floor = FLOOR[about.dtype]
    ours = {"mare": mine.max_relative, "mere": mine.mean_relative, "rmse": mine.rmse}
    theirs = {"mare": other.max_relative, "mere": other.mean_relative, "rmse": other.rmse}
    return [
        at_most(
            f"{name}_ratio",
            ours[name] / max(theirs[name], floor),
            allowed * about.factor,
            f"{standard}: {name} of mine {ours[name]:.3g}, of {whose} {theirs[name]:.3g}",
        )
        for name, allowed in RATIOS
    ]


def said() -> str:
    """The rule in the words of the old result sheet."""
    return ", ".join(f"{name} ratio <= {allowed:g}" for name, allowed in RATIOS)


def _applies(about: About) -> bool:
    return about.dtype in FLOOR and has_two_goldens(about.operator, about.param)


def _second(about: About, has_other: bool) -> Second:
    if not _applies(about):
        return Second.NONE
    return Second.DEVICE if has_other else Second.COMPUTED


def _judge(about: About, errors: Errors, against: Sequence[Errors]) -> Judged:
    judged = ASCEND.judge(about, errors, ())
    if not against:
        return judged
    mine, other = against
    ratios = ratio_checks(about, mine, other, "two-golden", "the low-precision golden")
    return Judged((*judged.checks, *ratios), f"{judged.said}, {said()}")


TWO_GOLDEN = Standard("two-golden", ASCEND.rule, _judge, _second)
