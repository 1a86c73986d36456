"""The standard `distribution`: of random operators only what was drawn from has to be the same.

For devices whose random numbers cannot be repeated (another C library, a seed that no dump holds). ATB's
suite has the rule, p > 0.01, for a class RAND that none of its operators is of. Everything that is not
drawn is judged as by `ascend`.
"""

from __future__ import annotations

import torch

from ...reporting.row import Check
from ..draws import compared
from .ascend import ASCEND
from .base import About, Judged, Standard, at_most

LEAST = 0.01
"""Below this probability two samples are not of one distribution."""

SHIFT = 2.576
"""Standard errors that the means of two samples of one distribution keep to in 99 of 100 runs."""


def judge_draws(
    about: About, number: int, probs: torch.Tensor, golden: torch.Tensor, mine: torch.Tensor
) -> Judged:
    """Output `number` of a random operator; `probs` is what was drawn from."""
    found = compared(about.operator, number, probs, golden, mine)
    reason = "distribution: both samples may be of one distribution (Kolmogorov, Smirnov)"
    checks = [
        Check("ks_p_value", found.p_value, LEAST, True, reason, found.p_value > LEAST),
        at_most("impossible_draws", found.outside, 0.0, "distribution: what is drawn has a probability"),
    ]
    if found.shift is not None:
        reason = "distribution: difference of the means in standard errors"
        checks.append(at_most("mean_shift", found.shift, SHIFT, reason))
    return Judged(tuple(checks), f"KS p > {LEAST}")


DISTRIBUTION = Standard("distribution", ASCEND.rule, ASCEND.judge, drawn=judge_draws)
