"""Thresholds from noise runs: what of T the tensors of each kind of operator really need.

Every tensor of a noise run is a sample r = (the T that it needs) / (the T that is derived for it), so that
dtype, length of sums, depth and size are divided out. Samples of one operator type and one dtype of the
noise run are a group. Of the n samples of a group the largest is, on average, the n/(n+1) quantile of what
further samples will be, whatever their distribution. Where a higher quantile is asked for than n samples
can show, the logarithms of the samples are taken to be normal and the quantile is read off that; the larger
of both counts. `margin` multiplies it, for mine is another implementation than golden. So

    factor = max(1/8, margin * max(largest r, exp(mean + z * deviation of ln r)))

1/8 is one rounding and one sum, which T multiplies by 8. Of fewer than `FEWEST` samples nothing is read
off: the factor is 1, or what they need.

What a factor cannot express is bounded by name instead: tensors that need more than the cap of T, golden
all zero, integers that differ, NaN and infinities. The rules are laid over the samples once more, so that
a sample that still fails is an error here and not later.
"""

from __future__ import annotations

import glob
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .derive import is_exact, is_zero, least_tolerance, tolerance_of
from .rules import rule_from_table
from .slices import needed_rounding
from .threshold import JudgeContext, ThresholdRule
from .thresholds import thresholds_for
from .tolerance import CAP, PER_LAYER
from .verdict import judge

if TYPE_CHECKING:
    from ..metrics.measurement import Measurement

FEWEST = 8
"""Samples of which a deviation is worth something: that of 8 is right within a quarter (1/sqrt(2n))."""
LEAST = 1 / 8
_TINY = 2.0**-60
"""A factor at which T is far from its cap; a power of two, so that dividing by it is exact."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One tensor of a noise run: where it lives and what was measured of it against golden."""

    context: JudgeContext
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one operator type and dtype of mine, and the factor that came of them.

    `quantile` is the one that the factor stands for before the margin, `enough` whether that many samples
    show it by themselves. `alarms` are the false alarms expected of as many tensors as one run has.
    """

    op_type: str
    dtype: str
    samples: int
    largest: float
    factor: float
    quantile: float
    enough: bool
    alarms: float

    @property
    def table(self) -> dict[str, Any]:
        """The `[[threshold]]` table."""
        return {"match": _match(self.op_type, self.dtype), "factor": self.factor, "reason": self.reason}

    @property
    def reason(self) -> str:
        """Quantile and number of samples, in words."""
        if self.samples < FEWEST:
            return f"calibrated: {self.samples} samples are too few for a quantile"
        how = "" if self.enough else ", extrapolated (logarithms taken as normal)"
        return f"calibrated: {self.quantile:g} quantile of {self.samples} samples{how}"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What noise runs say: a factor for each group, and tables for tensors that no factor can express.

    `size` is how many tensors one run has. `ceiling` bounds the expected false alarms of a run without any
    assumption on the distribution, and without the margin.
    """

    groups: tuple[Group, ...]
    exceptions: tuple[Mapping[str, Any], ...]
    size: int
    samples: int

    @property
    def alarms(self) -> float:
        """The false alarms expected of one run."""
        return sum(group.alarms for group in self.groups)

    @property
    def ceiling(self) -> float:
        """Of n samples, another one exceeds the largest with probability 1/(n+1)."""
        runs = self.samples / self.size if self.size else 1.0
        return sum(group.samples / runs / (group.samples + 1) for group in self.groups)

    @property
    def tables(self) -> list[Mapping[str, Any]]:
        """All `[[threshold]]` tables, the strongest last."""
        return [*(group.table for group in self.groups), *self.exceptions]


def calibrated(
    samples: Sequence[Sample], *, runs: int = 1, quantile: float = 0.99, margin: float = 2.0
) -> Calibration:
    """The calibration of the samples of `runs` noise runs.

    `quantile` (between 0.5 and 1) is the share of further samples that shall pass, `margin` (at least 1)
    what the quantile is multiplied by.
    """
    needs: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        need = needed(sample)
        if need is not None:
            needs.setdefault(_key(sample), []).append(need)
    groups = tuple(
        _group(key, found, runs=runs, quantile=quantile, margin=margin)
        for key, found in sorted(needs.items())
    )
    whole = Calibration(groups, (), math.ceil(len(samples) / runs), len(samples))
    rules = [_rule(table) for table in whole.tables]
    failing = [sample for sample in samples if _fails(sample, rules)]
    exceptions = _exceptions(failing, samples, margin)
    rules += [_rule(table) for table in exceptions]
    names = {_name(sample) for sample in failing}
    if any(_fails(sample, rules) for sample in samples if _name(sample) in names):
        raise AssertionError("a calibrated sample fails its own thresholds")
    return Calibration(groups, tuple(exceptions), whole.size, len(samples))


def needed(sample: Sample) -> float | None:
    """The factor of the derived T at which a sample just passes.

    `None` where no factor decides: whole numbers, golden all zero or without a finite element, a sample
    that needs more than the cap of T.
    """
    m = sample.measurement
    if m.empty or is_exact(m) or is_zero(m) or m.relative_euclidean_distance is None:
        return None
    t = least_tolerance(m)
    derived = tolerance_of(sample.context, m, _TINY, "calibration")
    return None if t > CAP else max(t / derived.value, needed_rounding(m) / derived.rounding) * _TINY


def _group(
    key: tuple[str, str], needs: Sequence[float], *, runs: int, quantile: float, margin: float
) -> Group:
    n, largest = len(needs), max(needs)
    per_run = n / runs
    if n < FEWEST:
        factor = _rounded_up(max(1.0, margin * largest))
        return Group(*key, n, largest, factor, 0.0, False, per_run / (n + 1) if largest > 1 else 0.0)
    enough = n / (n + 1) >= quantile
    logs = [math.log(need) for need in needs if need > 0]
    fit = statistics.NormalDist.from_samples(logs) if len(logs) >= FEWEST else None
    reach = largest
    if not enough and fit is not None and fit.stdev > 0:
        reach = max(reach, math.exp(fit.inv_cdf(quantile)))
    factor = _rounded_up(max(LEAST, margin * reach))
    if fit is None or fit.stdev == 0:
        beyond = 1 / (n + 1) if factor <= largest else 0.0
    else:
        beyond = 1 - fit.cdf(math.log(factor))
    return Group(*key, n, largest, factor, n / (n + 1) if enough else quantile, enough, per_run * beyond)


def _rounded_up(factor: float) -> float:
    """Three digits, never less than needed."""
    step = 10.0 ** (math.floor(math.log10(factor)) - 2)
    rounded = math.ceil(factor / step) * step
    return float(f"{rounded:.6g}")


def _key(sample: Sample) -> tuple[str, str]:
    return sample.context.golden_op_type, sample.measurement.mine_dtype


def _match(op_type: str, dtype: str, **more: str) -> dict[str, str]:
    found = {"op_type": glob.escape(op_type)} if op_type else {}
    return {**found, "mine_dtype": dtype, **more}


def _rule(table: Mapping[str, Any]) -> ThresholdRule:
    return rule_from_table(table, "calibration")


def _fails(sample: Sample, rules: Sequence[ThresholdRule]) -> bool:
    thresholds = thresholds_for(sample.context, sample.measurement, rules)
    return judge(sample.measurement, thresholds).verdict == "fail"


def _name(sample: Sample) -> tuple[str, str, str]:
    return (*_key(sample), sample.context.golden_path)


def _exceptions(
    failing: Iterable[Sample], samples: Iterable[Sample], margin: float
) -> list[Mapping[str, Any]]:
    """One table for each tensor that fails, by name: the bounds that no factor moves.

    A bound is what the samples of that name need, also those that pass; errors get the margin, counts not.
    """
    moved: dict[tuple[str, str, str], set[str]] = {}
    for sample in failing:
        moved.setdefault(_name(sample), set()).update(_immovable(sample.measurement))
    bounds: dict[tuple[str, str, str], dict[str, float]] = {name: {} for name in moved}
    for sample in samples:
        name = _name(sample)
        for metric in moved.get(name, ()):
            need = _need(sample.measurement, metric)
            if not metric.endswith(("nonfinite", "mismatches")):
                need = _rounded_up(margin * need) if need else 0.0
            bounds[name][metric] = max(bounds[name].get(metric, 0.0), need)
    return [
        {
            "match": _match(op_type, dtype, **({"name": glob.escape(path)} if path else {})),
            **bounds[op_type, dtype, path],
            "reason": "calibrated: what the noise runs need, which no factor can express",
        }
        for op_type, dtype, path in sorted(bounds)
    ]


def _immovable(m: Measurement) -> set[str]:
    """The metrics of which this failing sample needs a bound of its own."""
    if is_exact(m):
        return {"mismatches"}
    found = {metric for metric in ("new_nonfinite", "lost_nonfinite") if m.value(metric)}
    if is_zero(m):
        return found | {"max_absolute_error"}
    if m.relative_euclidean_distance is not None and least_tolerance(m) > CAP:
        found.add("relative_euclidean_distance")
    return found


def _need(m: Measurement, metric: str) -> float:
    if metric == "relative_euclidean_distance":
        return 0.0 if is_zero(m) else max(least_tolerance(m), PER_LAYER * needed_rounding(m))
    return m.value(metric) or 0.0
