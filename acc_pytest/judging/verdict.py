"""Thresholds against measurements: one verdict with a sentence a person can act on."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..base.reason import Reason, arguments, joined
from ..base.vocabulary import number
from ..errors import SettingsError
from .threshold import LAYERS_BEFORE, OF_STANDARD, Threshold

if TYPE_CHECKING:
    from ..metrics.elements import ElementErrors
    from ..metrics.measurement import Measurement

NOWHERE: Mapping[str, str] = MappingProxyType({})
COUNTS = {
    "new_nonfinite": "NaN or Inf in mine where golden is not the same",
    "lost_nonfinite": "finite in mine where golden is NaN or Inf",
    "nonfinite_mismatch": "NaN or infinite on one side only",
    "mismatches": "different from golden",
}
FURTHER = "also beyond its bound: {}"


class Check(NamedTuple):
    """One threshold applied: `measured` must be at least (or at most) `allowed`.

    `measured` is `None` where the metric has no value for these tensors. An infinite `allowed` is a metric
    that a rule switched off.
    """

    metric: str
    measured: float | None
    allowed: float
    at_least: bool
    reason: str
    passed: bool

    @classmethod
    def of(cls, threshold: Threshold, measured: float | None) -> Check:
        """The check of a threshold."""
        metric, bound, is_floor, reason, _ = threshold
        return cls(metric, measured, bound, is_floor, reason, threshold.allows(measured))

    @property
    def off(self) -> bool:
        """Whether a rule switched the metric off."""
        return isinf(self.allowed)

    @property
    def derivation(self) -> tuple[str, str]:
        """The standard that the bound is of, empty for none, and how it comes to it."""
        standard, why = arguments(self.reason, OF_STANDARD) or ("", self.reason)
        return str(standard), why if isinstance(why, str) else str(why)

    @property
    def bound(self) -> str:
        """The bound as people write it: `>= 0.999`, or `off`."""
        return bound_of("", self.allowed, self.at_least)[1:]

    @property
    def excess(self) -> float:
        """The ratio of the measured error to the allowed one; infinite where none is allowed, or for NaN.

        For a metric that is best at 1 (cosine) the error is the root of the distance from 1, which grows
        like the relative distance does: 1 - cos(x) is x^2/2 for a small angle x.
        """
        _, error, allowed, is_floor, _, passed = self
        if error is None or math.isnan(error):
            return math.inf
        if is_floor:
            error, allowed = math.sqrt(max(0.0, 1.0 - error)), math.sqrt(max(0.0, 1.0 - allowed))
        if allowed <= 0.0:
            return 0.0 if passed else math.inf
        return max(0.0, error / allowed)


@functools.lru_cache(maxsize=4096)  # most bounds of a dump follow from few T
def bound_of(metric: str, allowed: float, is_floor: bool) -> str:
    """A bound on a metric as people write it: `cosine_similarity >= 0.999`."""
    return f"{metric} off" if isinf(allowed) else f"{metric} {'>=' if is_floor else '<='} {number(allowed)}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of one pair, every check behind it, and the verdict in one sentence.

    `factor` is that of the rule that scaled its bounds.
    """

    verdict: Literal["pass", "fail"]
    checks: tuple[Check, ...]
    sentence: str
    factor: float = 1.0


def judge(measurement: Measurement, thresholds: Sequence[Threshold]) -> Judgement:
    """Hold the measured metrics against `thresholds`.

    A metric without a value and a metric that is NaN fail their bound. Empty tensors pass with a
    sentence that says so. Raises `SettingsError` for no thresholds at all: nothing would be judged.
    """
    if measurement.empty:
        return Judgement("pass", (), "nothing to compare: the tensors are empty")
    checks = [Check.of(threshold, measurement.value(threshold.metric)) for threshold in thresholds]
    slices = measurement.slices
    places = {"worst_row_error": slices.worst_row, "worst_channel_error": slices.worst_channel}
    return verdict_of(checks, measurement.numel, measurement.elements, places)


def verdict_of(
    checks: Sequence[Check],
    numel: int,
    elements: ElementErrors | None = None,
    places: Mapping[str, str] = NOWHERE,
) -> Judgement:
    """The verdict of checks on tensors of `numel` elements; any failing check fails all.

    `elements` say where the wrong ones lie, `places` where the values of metrics by name come from.
    """
    if all(c.off for c in checks):
        raise SettingsError("no threshold applies to this pair, so nothing would be judged; bound a metric")
    failing = sorted([c for c in checks if not c.passed], key=severity, reverse=True)
    if not failing:
        checks = tuple(checks)
        return Judgement("pass", checks, _passed(checks))
    worst, *lesser = failing
    sentences = [_failed(worst, numel, elements, _at(worst, places))]
    if (level := arguments(worst.derivation[1], LAYERS_BEFORE)) is not None and worst.measured:
        sentences.append(Reason("{:.2g} times what the layers before show", worst.measured / float(level[1])))
    if elements is not None and elements.beyond and not severity(worst)[0]:
        sentences.append(Reason("{} of {} elements are beyond it{}", elements.beyond, numel, _box(elements)))
    if lesser:
        further = joined(", ", [Reason("{}{}", check.metric, _at(check, places)) for check in lesser])
        sentences.append(Reason(FURTHER, further))
    return Judgement("fail", tuple(checks), joined("; ", sentences))


def _at(c: Check, places: Mapping[str, str]) -> str:
    place = places.get(c.metric)
    return Reason(" at {}", place) if place else ""


def severity(c: Check) -> tuple[int, float]:
    """Order of failing checks: counts first, then undefined values, then by how far beyond the bound."""
    if c.metric in COUNTS:
        return 2, c.measured or 0.0
    if c.measured is None or c.measured != c.measured:
        return 1, 0.0
    return 0, c.excess


def _box(elements: ElementErrors | None) -> str:
    return Reason(", in {}", elements.box) if elements is not None and elements.box else ""


def _failed(c: Check, numel: int, elements: ElementErrors | None, at: str) -> str:
    bound = f"{c.allowed:.6g}"
    if c.measured is None:
        return Reason("{} is not defined for these tensors, so its bound {} cannot hold", c.metric, bound)
    if c.measured != c.measured:
        return Reason("{} is NaN, so its bound {} cannot hold", c.metric, bound)
    if c.metric in COUNTS:
        allowed = Reason("{} may be", bound) if c.allowed else "none may be"
        what = Reason("{}{}", COUNTS[c.metric], _box(elements))
        return Reason("{:.0f} of {} elements are {}, {}", c.measured, numel, what, allowed)
    if c.at_least:
        return Reason("{} {:.6g} is below the required {}{}", c.metric, c.measured, bound, at)
    share = c.excess
    if isinf(share):
        return Reason("{} {:.3g} is above the allowed {:.3g}{}", c.metric, c.measured, c.allowed, at)
    times = f"{share:.0f}" if share >= 10 else f"{share:.1f}" if share >= 1.05 else f"{share:.4g}"
    return Reason("{} {:.3g} is {} times the allowed {:.3g}{}", c.metric, c.measured, times, c.allowed, at)


def _passed(checks: tuple[Check, ...]) -> str:
    bounded = sum(not isinf(c.allowed) for c in checks)
    excess, closest = largest_excess(checks)
    count = "the bound holds" if bounded == 1 else Reason("all {} bounds hold", bounded)
    if closest is None or excess == 0:
        return count
    bound = f"{closest.allowed:.6g}" if closest.at_least else f"{closest.allowed:.3g}"
    return Reason(
        "{}; closest is {} at {:.3g} % of the allowed {}", count, closest.metric, 100 * excess, bound
    )


def largest_excess(checks: tuple[Check, ...]) -> tuple[float, Check | None]:
    """The largest excess of checks that are not off, and the first that has it; (0, `None`) of none."""
    largest, first = 0.0, None
    for check in checks:
        if not isinf(check.allowed) and ((excess := check.excess) > largest or first is None):
            largest, first = excess, check
    return largest, first
