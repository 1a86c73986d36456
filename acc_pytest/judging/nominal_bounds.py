"""The thresholds of a pair apart from its data: what rules and standards allow, in a form that can be kept.

Thresholds depend on the tensors: the bound of one element on the size of golden, T on the number of
elements, that of a noise run on its errors. What the same rules allow for a standard tensor (of rms 1/8
and largest element 1, so large that it is no sample, with a noise run that is off by 1 %) depends on dtypes,
place in the model and rules alone: it changes when somebody changes a rule, and not with the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from ..errors import AccError
from ..metrics.measurement import SliceErrors
from .replay import context_of, is_stated, measurement_of, stated_of
from .slices import ELEMENT_SIGMAS
from .standards import DEFAULT, Standard
from .statistics import NORMAL_SPREAD, thresholds_for_statistics
from .threshold import OFF as SWITCHED_OFF
from .threshold import SET, JudgeContext, Threshold, ThresholdRule
from .thresholds import factor_of, matching_rules, thresholds_for, tolerance_of_rules

Scalar = Union[None, bool, int, float, str]

NO_SAMPLE = 2**40
_NO_SAMPLE_SHAPE = (2**20, 2**20)
_NO_SAMPLE_NORMS = {"l2norm": math.sqrt(NO_SAMPLE), "l1norm": NO_SAMPLE / NORMAL_SPREAD}
NOISE = 0.01
OFF = "off"


@dataclass(frozen=True, slots=True)
class NominalBound:
    """One bound: `<= 0.005`, `>= 0.999` or off (an infinite `bound`), and the rule that it comes from."""

    bound: float
    at_least: bool
    rule: str

    def __str__(self) -> str:
        sign = OFF if math.isinf(self.bound) else f"{'>=' if self.at_least else '<='} {self.bound!r}"
        return f"{sign} {self.rule}"

    @classmethod
    def parse(cls, text: str) -> NominalBound:
        """The bound that `str` was made of. Raises `ValueError`."""
        if text == OFF or text.startswith(f"{OFF} "):
            return cls(math.inf, False, text[len(OFF) + 1 :])
        sign, _, rest = text.partition(" ")
        bound, _, rule = rest.partition(" ")
        if sign not in ("<=", ">="):
            raise ValueError(f"a bound must look like '<= 0.005 default', got {text!r:.100}")
        return cls(float(bound), sign == ">=", rule)

    def looser_than(self, other: NominalBound) -> float:
        """The ratio of the allowed error to that of `other`; 1 where it is equal, infinite where none was."""
        if math.isinf(other.bound):
            return 1.0 if math.isinf(self.bound) else 0.0
        if math.isinf(self.bound) or self.at_least is not other.at_least:
            return math.inf
        now, before = self.bound, other.bound
        if self.at_least:
            # A floor of a similarity by the noise it stands for: noise r leaves 1 - r^2/2.
            if max(now, before) > 1:
                return math.inf if now < before else 1.0 if now == before else 0.0
            now, before = math.sqrt(1 - now), math.sqrt(1 - before)
        if before <= 0:
            return 1.0 if now <= before else math.inf
        return now / before


def nominal_bounds(
    context: Mapping[str, Scalar],
    statistics: Mapping[str, Scalar],
    rules: Sequence[ThresholdRule],
    standard: Standard = DEFAULT,
) -> dict[str, str]:
    """The nominal bounds of a pair by metric, as text; empty where nothing can be judged.

    `context` and `statistics` are those of its row (`replay`).
    """
    try:
        place = _standard_place(context_of(context))
        if is_stated(statistics):
            stated = stated_of(statistics)
            dtypes = (stated.golden_dtype, stated.mine_dtype)
            golden = replace(stated.golden, max=1.0, min=-1.0, mean=0.0, **_NO_SAMPLE_NORMS)
            stated = replace(stated, numel=NO_SAMPLE, golden=golden)
            thresholds = thresholds_for_statistics(place, stated, rules, standard)
        else:
            measurement = measurement_of(statistics)
            dtypes = (measurement.golden_dtype, measurement.mine_dtype)
            tensor = replace(
                measurement,
                numel=NO_SAMPLE,
                compared=NO_SAMPLE,
                golden_rms=1.0 / ELEMENT_SIGMAS,
                golden_max_abs=1.0,
                shape=_NO_SAMPLE_SHAPE,
                slices=SliceErrors() if measurement.slices.bias is None else SliceErrors(bias=0.0),
            )
            thresholds = thresholds_for(place, tensor, rules, standard)
    except (AccError, KeyError):
        return {}
    matching = matching_rules(place, dtypes, rules)
    return {
        threshold.metric: str(
            NominalBound(threshold.bound, threshold.at_least, _rule(threshold, matching, dtypes, standard))
        )
        for threshold in thresholds
    }


def _standard_place(context: JudgeContext) -> JudgeContext:
    if context.noise_error is None:
        return replace(context, noise_nearby=None)
    return replace(
        context,
        noise_error=NOISE,
        noise_max_absolute_error=NOISE,
        noise_mismatches=0,
        noise_new_nonfinite=0,
        noise_lost_nonfinite=0,
        noise_typical_row=None,
    )


def _rule(
    threshold: Threshold, rules: Sequence[ThresholdRule], dtypes: tuple[str, str], standard: Standard
) -> str:
    """The origin of a bound, without the arithmetic."""
    if threshold.reason.startswith((SET, SWITCHED_OFF)):
        return threshold.reason
    rule_tolerance = tolerance_of_rules(rules, dtypes)
    if rule_tolerance is not None:
        return f"{standard.name}, {rule_tolerance.reason}"
    factor, origin = factor_of(rules)
    return f"{standard.name}, factor {factor:g} from {origin}" if factor != 1.0 else standard.name
