"""The baseline: the errors of an accepted run, and whether those of this run are significantly worse.

The error of a comparison is `relative_euclidean_distance`, the relative L2 error e; of integers and booleans
it is the number of mismatches k. An accepted e0 allows, with n0 and n elements compared,

    e <= max(2, exp(3.72 * sqrt(1/(2 n0) + 1/(2 n)))) * e0 + u
    k <= max(2 * k0, (sqrt(k0) + 2.63)^2)

* The squared norm of an error of n elements scatters around its expectation with a relative variance of 2/n,
  the logarithm of the norm thus with a standard deviation of 1/sqrt(2n); golden is the same in both runs and
  cancels. 3.72 standard deviations of the difference of two such logarithms are exceeded once in 10,000
  comparisons (the normal quantile of `judging/tolerance.py`).
* 2: elements are no independent draws, and another driver or another order of sums moves errors by tens of
  percent. One bit more error is the smallest change that counts.
* u, the unit roundoff of the coarser dtype: storing the result again may add that much, whatever e0 was.
* Counts scatter like a Poisson variable. Its square root has a standard deviation of 1/2: the difference
  of two roots has 1/sqrt(2), and 3.72/sqrt(2) = 2.63.

The same bound with both runs exchanged says which errors have become significantly better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..judging.tolerance import SAMPLE_SIGMAS, coarser
from ..judging.verdict import Check
from ..reporting.row import Row
from ..vocabulary import number
from .gate import Gate
from .row_key import dtypes_of, key_of

LEAST_FACTOR = 2.0
RELATIVE, COUNT = "relative_euclidean_distance", "mismatches"
PREFIX = "baseline."
"""What the metric's name begins with in the check that a row gets."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The error of one comparison: the metric, its value, the number of elements, and both dtypes."""

    metric: str
    error: float
    elements: int
    dtypes: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The accepted errors by key (`row_key.key_of`); `origin` says when, where, with which versions.

    `path` is where it was read.
    """

    path: str
    origin: Mapping[str, str]
    pairs: Mapping[str, Accepted]


def error_of(row: Row) -> Accepted | None:
    """The error of a row; `None` for one that has none: incomparable, of statistics only, or of what the run
    was fed, where nothing but the same is accepted."""
    if row.fed:
        return None
    for metric in (COUNT, RELATIVE):
        value = row.counts.get(metric) if metric == COUNT else row.metrics.get(metric)
        if isinstance(value, (int, float)) and math.isfinite(value):
            compared = row.statistics.get("compared", row.counts.get("elements"))
            elements = compared if isinstance(compared, int) else 0
            return Accepted(metric, value, max(1, elements), dtypes_of(row))
    return None


def allowed(before: Accepted, now: Accepted) -> float:
    """The largest error of now that is no significant change of the error before."""
    if before.metric == COUNT:
        root = math.sqrt(before.error) + SAMPLE_SIGMAS / math.sqrt(2)
        return max(LEAST_FACTOR * before.error, root * root)
    return factor(before, now) * before.error + roundoff(now)


def factor(before: Accepted, now: Accepted) -> float:
    """The factor by which an error may grow by chance; at least 2."""
    scatter = math.sqrt(1 / (2 * before.elements) + 1 / (2 * now.elements))
    return max(LEAST_FACTOR, math.exp(SAMPLE_SIGMAS * scatter))


def roundoff(error: Accepted) -> float:
    """The unit roundoff of the coarser dtype; 0 for two that have none."""
    try:
        return coarser(*error.dtypes).roundoff
    except ValueError:
        return 0.0


def comparable(before: Accepted, now: Accepted) -> bool:
    """Whether the two are errors of the same kind: a change of dtype makes another comparison of it."""
    return (before.metric, before.dtypes) == (now.metric, now.dtypes)


def improved(before: Accepted, now: Accepted) -> bool:
    """Whether the error has become significantly smaller."""
    return comparable(before, now) and before.error > allowed(now, before)


def worse(before: Accepted, now: Accepted) -> bool:
    """Whether the error has become significantly larger."""
    return comparable(before, now) and now.error > allowed(before, now)


class BaselineGate(Gate):
    """Fails a pair whose error is significantly worse than the accepted one."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline

    def apply(self, row: Row) -> Row:
        """The row with a check against its accepted error, where there is one of the same kind."""
        before, now = self._baseline.pairs.get(key_of(row)), error_of(row)
        if before is None or now is None or row.verdict not in ("pass", "fail"):
            return row
        if not comparable(before, now):
            accepted = f"{before.metric} of {' and '.join(before.dtypes)}"
            return replace(
                row, notes=(*row.notes, f"baseline: not compared, the accepted error is {accepted}")
            )
        bound = allowed(before, now)
        bad = now.error > bound
        check = Check(f"{PREFIX}{now.metric}", now.error, bound, False, _reason(before, now), not bad)
        checked = replace(row, checks=(*row.checks, check))
        if not bad:
            return checked
        sentence = _sentence(before, now, bound, self._baseline)
        if row.verdict == "fail":
            return replace(checked, reasons=(*row.reasons, sentence))
        return replace(checked, verdict="fail", sentence=sentence, reasons=(sentence, *row.reasons))


def _reason(before: Accepted, now: Accepted) -> str:
    if before.metric == COUNT:
        return f"baseline: {before.error:g} accepted; twice that, or what the scatter of counts allows"
    return (
        f"baseline: {factor(before, now):.3g} times the accepted {number(before.error)} (scatter of "
        f"{min(before.elements, now.elements)} elements, at least 2) plus one rounding {roundoff(now):.2g}"
    )


def _sentence(before: Accepted, now: Accepted, bound: float, baseline: Baseline) -> str:
    times = f"{now.error / before.error:.3g} times" if before.error else "above"
    return (
        f"{now.metric} {now.error:.3g} is {times} the accepted {before.error:.3g} of {baseline.path}; "
        f"up to {bound:.3g} would be no significant change"
    )
