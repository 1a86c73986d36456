"""Thresholds against measurements: one verdict with a sentence a person can act on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..errors import SettingsError
from .threshold import Threshold

if TYPE_CHECKING:
    from ..metrics.measurement import Measurement

COUNTS = {
    "new_nonfinite": "NaN or Inf in mine where golden is not the same",
    "lost_nonfinite": "finite in mine where golden is NaN or Inf",
    "mismatches": "different from golden",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One threshold applied: `measured` is `None` where the metric has no value for these tensors."""

    metric: str
    measured: float | None
    threshold: Threshold
    ok: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of one pair, every check behind it, and the verdict in one sentence."""

    verdict: Literal["pass", "fail"]
    checks: tuple[Check, ...]
    sentence: str


def judge(measurement: Measurement, thresholds: Sequence[Threshold]) -> Judgement:
    """Hold the measured metrics against `thresholds`.

    A metric without a value and a metric that is NaN fail their bound. Empty tensors pass with a
    sentence that says so. Raises `SettingsError` for no thresholds at all: nothing would be judged.
    """
    if measurement.empty:
        return Judgement("pass", (), "nothing to compare: the tensors are empty")
    return verdict_of(
        [check(threshold, value_of(measurement, threshold.metric)) for threshold in thresholds],
        measurement.numel,
    )


def value_of(measurement: Measurement, metric: str) -> float | None:
    """The value of a metric, custom ones included, as a native float; `None` where it has none.

    A position where both sides are non-finite but differ counts as new: mine put it there.
    """
    if metric == "new_nonfinite":
        return float(measurement.nonfinite.new + measurement.nonfinite.changed)
    if metric == "lost_nonfinite":
        return float(measurement.nonfinite.lost)
    if metric in measurement.custom:
        value: object = measurement.custom[metric][0]
    else:
        value = getattr(measurement, metric, None)
    return float(value) if isinstance(value, (int, float)) else None


def check(threshold: Threshold, measured: float | None) -> Check:
    """One check."""
    return Check(threshold.metric, measured, threshold, threshold.allows(measured))


def verdict_of(checks: Sequence[Check], numel: int) -> Judgement:
    """The verdict of checks on tensors of `numel` elements; any failing check fails all."""
    if all(c.threshold.off for c in checks):
        raise SettingsError("no threshold applies to this pair, so nothing would be judged; bound a metric")
    failing = sorted((c for c in checks if not c.ok), key=severity, reverse=True)
    if not failing:
        return Judgement("pass", tuple(checks), _passed(checks))
    sentence = _failed(failing[0], numel)
    if len(failing) > 1:
        sentence += f"; also beyond its bound: {', '.join(c.metric for c in failing[1:])}"
    return Judgement("fail", tuple(checks), sentence)


def severity(c: Check) -> tuple[int, float]:
    """Order of failing checks: counts first, then undefined values, then by how far beyond the bound."""
    if c.metric in COUNTS:
        return 2, c.measured or 0.0
    if c.measured is None or c.measured != c.measured:
        return 1, 0.0
    return 0, _share(c)


def _share(c: Check) -> float:
    """Measured as a multiple of the allowed.

    A floor (cosine, 1 at best) counts by the noise it stands for: noise r leaves 1 - r^2/2.
    """
    measured, bound = c.measured or 0.0, c.threshold.bound
    if c.threshold.at_least:
        measured, bound = math.sqrt(max(0.0, 1 - measured)), math.sqrt(max(0.0, 1 - bound))
    if bound <= 0:
        return 0.0 if measured <= bound else float("inf")
    return max(0.0, measured / bound)


def _failed(c: Check, numel: int) -> str:
    bound = f"{c.threshold.bound:.6g}"
    if c.measured is None:
        return f"{c.metric} is not defined for these tensors, so its bound {bound} cannot hold"
    if c.measured != c.measured:
        return f"{c.metric} is NaN, so its bound {bound} cannot hold"
    if c.metric in COUNTS:
        allowed = f"{bound} may be" if c.threshold.bound else "none may be"
        return f"{c.measured:.0f} of {numel} elements are {COUNTS[c.metric]}, {allowed}"
    if c.threshold.at_least:
        return f"{c.metric} {c.measured:.6g} is below the required {bound}"
    share = _share(c)
    if share in (0.0, float("inf")):
        return f"{c.metric} {c.measured:.3g} is above the allowed {c.threshold.bound:.3g}"
    times = f"{share:.0f}" if share >= 10 else f"{share:.1f}" if share >= 1.05 else f"{share:.4g}"
    return f"{c.metric} {c.measured:.3g} is {times} times the allowed {c.threshold.bound:.3g}"


def _passed(checks: Sequence[Check]) -> str:
    bounded = [c for c in checks if not c.threshold.off]
    closest = max(bounded, key=_share)
    count = "the bound holds" if len(bounded) == 1 else f"all {len(bounded)} bounds hold"
    share = _share(closest)
    if share == 0:
        return count
    bound = (
        f"{closest.threshold.bound:.6g}" if closest.threshold.at_least else f"{closest.threshold.bound:.3g}"
    )
    return f"{count}; closest is {closest.metric} at {100 * share:.3g} % of the allowed {bound}"
