"""`Judge`: two tensors in, what was measured and judged of them out; for pairs and for operators alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf

from ..metrics.kernel import CustomMetric, measure
from ..metrics.measurement import TENSOR_METRICS, Measurement
from ..tensors.dtypes import by_name
from ..tensors.read_source import element_type
from ..tensors.source import NEARLY, Hidden, Source
from .standards import DEFAULT, Standard
from .threshold import JudgeContext, ThresholdRule
from .thresholds import element_tolerance, factor_of, matching_rules, thresholds_for
from .verdict import Check, Judgement, judge


@dataclass(frozen=True, slots=True)
class Judge:
    """Judge of tensors: rules (weakest first), the custom metrics in use, the standard."""

    rules: tuple[ThresholdRule, ...] = ()
    custom: tuple[CustomMetric, ...] = ()
    standard: Standard = DEFAULT

    def tensors(
        self, context: JudgeContext, golden: Source, mine: Source, further: Mapping[str, float] | None = None
    ) -> tuple[Measurement, Judgement]:
        """Measure and judge two sources of one shape. Raises `AccError` for what cannot be judged.

        `further` are numbers that take more than the two (`Measurement.further`). What lies within rounding
        of a bound is measured again in float64, so that no verdict depends on how blocks were summed. Where
        both have values as masks put them, the least of their types, a failing pair is judged again with
        these as -Inf: that the types differ there is no error.
        """
        measurement, judgement = self._judged(context, golden, mine, further)
        if judgement.verdict == "fail" and not context.written and _hide(measurement):
            hidden, judgement = self._judged(context, Hidden(golden), Hidden(mine), further)
            counted = measurement.nonfinite.new == measurement.nonfinite.lost == 0
            return replace(hidden, nonfinite=measurement.nonfinite) if counted else hidden, judgement
        return measurement, judgement

    def _judged(
        self, context: JudgeContext, golden: Source, mine: Source, further: Mapping[str, float] | None
    ) -> tuple[Measurement, Judgement]:
        dtypes = context.written or element_type(golden).name, context.written or element_type(mine).name
        tolerance = element_tolerance(context, dtypes, self.rules, self.standard)
        for double in (False, True):
            measurement = measure(
                golden,
                mine,
                tolerance=tolerance,
                custom=self.custom,
                output_dtype=context.written,
                double=double,
            )
            if further:
                measurement = replace(measurement, further=further)
            thresholds = thresholds_for(context, measurement, self.rules, self.standard)
            judgement = judge(measurement, thresholds)
            if not is_close(measurement, judgement.checks):
                break
        factor, _ = factor_of(matching_rules(context, dtypes, self.rules))
        return measurement, judgement if factor == 1.0 else replace(judgement, factor=factor)


def _hide(measurement: Measurement) -> bool:
    """Whether both sides have values as masks put them, at least one of which is no -Inf."""
    hides = []
    for dtype, lowest in (
        (measurement.golden_dtype, measurement.golden_min),
        (measurement.mine_dtype, measurement.mine_min),
    ):
        fmt = by_name(dtype).format
        hides.append(fmt is not None and lowest is not None and lowest <= -NEARLY * fmt.largest)
    infinite = measurement.nonfinite.golden_inf, measurement.nonfinite.mine_inf
    return any(hides) and all(hide or inf for hide, inf in zip(hides, infinite))


_ROOM = 1e-5
"""Ten times what a metric may be off by."""
_ROUNDED = TENSOR_METRICS.keys() - {"mismatches", "new_nonfinite", "lost_nonfinite"}
"""Metrics that are sums; counts are exact."""


def is_close(measurement: Measurement, checks: Sequence[Check]) -> bool:
    """Whether a metric of these floats lies within rounding of its bound."""
    if measurement.mismatches is not None or measurement.identical or measurement.elements is not None:
        return False
    for name, measured, bound, is_floor, _, _ in checks:
        if measured is None or name not in _ROUNDED or isinf(bound):
            continue
        if name == "beyond_fraction":
            # A block with NaN is counted in float64 by one kernel, and in float32 by another.
            if measurement.compared < measurement.numel:
                return True
            continue
        if is_floor:
            measured, bound = 1 - measured, 1 - bound
        # The bias is a sum of errors that may cancel.
        size = measurement.relative_euclidean_distance or 0.0 if name == "bias" else abs(bound)
        if abs(measured - bound) <= _ROOM * size and not measured == bound == 0:
            return True
    return False
