"""Bounds of rows, channels and the bias from those of a noise run.

With T and k of `three_way.py`, the noise run's errors of the same name and m elements of a row or channel:

    typical_row_error, bulk_error         <= k * exp(3.72 / sqrt(n)) * the noise run's
    worst_row_error, worst_channel_error  <= exp(3.72 / sqrt(m)) * max(5 * the noise run's, 16 * d)
    bias                                  <= that of `slices.py` + the noise run's

never below the least T. d is the ninth decile of mine, as in `slices.py`: the worst of many rows is one value
of each run, as the largest element is, and of two right runs one may have a row that the other has not.
What a noise run says of the bias it adds to what one rounding may leave, for both may lean to one side.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..slices import BESIDE_OTHERS, slice_thresholds
from ..threshold import JudgeContext, Threshold
from ..tolerance import Tolerance, scatter_of

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement

RATIO, RATIO_OF_SEVERAL, WORST_RATIO = 3.0, 2.25, 5.0
"""Factors of the error that mine may have: of one noise run, of the largest of several, of the worst row."""


def ratio_of(context: JudgeContext) -> float:
    """The factor of the noise that mine may have."""
    return RATIO if context.noise_runs < 2 else RATIO_OF_SEVERAL


def slices_by_noise(
    context: JudgeContext, measurement: Measurement, derived: Tolerance, floor: float, factor: float
) -> tuple[Threshold, ...]:
    """The bounds of a tensor's rows and channels; none for tensors with too few of either.

    Where the noise run has none of its own they follow from `derived`. `floor` is the least T, `factor` that
    of a rule.
    """
    by_t = slice_thresholds(measurement, derived)
    if context.noise_typical_row is None:
        return by_t
    measured = {threshold.metric: threshold for threshold in _slices(context, measurement, floor, factor)}
    return tuple(
        _with_bias(threshold, context) if threshold.metric == "bias" else measured[threshold.metric]
        for threshold in by_t
    )


def _with_bias(threshold: Threshold, context: JudgeContext) -> Threshold:
    noise_bias = context.noise_bias or 0.0
    reason = f"{threshold.reason}, + the noise run's {noise_bias:.2g}"
    return threshold._replace(bound=threshold.bound + noise_bias, reason=reason)


def _slices(
    context: JudgeContext, measurement: Measurement, floor: float, factor: float
) -> Iterator[Threshold]:
    slices = measurement.slices
    channels = max(1, measurement.shape[-1])
    rows = max(1, measurement.numel // channels)
    for metric, noise in (
        ("typical_row_error", context.noise_typical_row),
        ("bulk_error", context.noise_bulk),
    ):
        scatter = scatter_of(measurement.compared)
        yield _slice_bound(metric, ratio_of(context) * factor * scatter, noise, floor, 0.0)
    for metric, noise, elements, decile in (
        ("worst_row_error", context.noise_worst_row, channels, slices.row_error_p90),
        ("worst_channel_error", context.noise_worst_channel, rows, slices.channel_error_p90),
    ):
        scatter = scatter_of(elements)
        by_decile = BESIDE_OTHERS * scatter * (decile or 0.0)
        yield _slice_bound(metric, WORST_RATIO * factor * scatter, noise, floor * scatter, by_decile)


def _slice_bound(metric: str, ratio: float, noise: float | None, floor: float, by_decile: float) -> Threshold:
    """The bound by the noise run, not below the floor, nor below that by the ninth decile."""
    bound = min(ratio * (noise or 0.0), sys.float_info.max)  # an infinite bound would be none
    reason = f"{ratio:.3g} times the noise run's {noise or 0.0:.3g}"
    if by_decile > max(bound, floor):
        decile_reason = f"{BESIDE_OTHERS:g} times the ninth decile, with scatter"
        return Threshold(metric, by_decile, False, f"{decile_reason}, more than {reason}")
    if floor > bound:
        return Threshold(metric, floor, False, f"the least T, more than {reason}")
    return Threshold(metric, bound, False, reason)
