"""Bounds of single rows and channels, and of the bias: what T of the whole tensor does not see.

With T of `tolerance.py`, over rows and channels (`metrics/slices.py`), of which there are at least 8 each:

    typical_row_error, bulk_error   <= 2 T
    worst_row_error                 <= max(min(4 T, max(1/2, 2 T)), 16 * d) * exp(3.72 / sqrt(channels))
    worst_channel_error             <= the same over channels, * exp(3.72 / sqrt(rows))
    bias                            <= u + sqrt(K) * a + 4 * its standard error + r^2 / 2

* T bounds a norm in which a few large rows or channels count for all. The others may differ from the whole
  by the safety factor 2 of T once more, typically. The worst may by that twice, or by twice as much beyond
  the worst tenth as an element may beyond the whole (8). A zeroed row has an error of 1, beyond 1/2.
* Few elements scatter as they do in T.
* Rounding errors are nearly orthogonal to golden, so their bias is far below u, the unit roundoff of the
  coarser dtype, at any depth. One rounding that goes in one direction leaves up to u. 4 standard errors are
  exceeded once in 15,000 tensors. Errors of size r turn a vector, and one of the same norm loses r^2/2.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .threshold import Threshold
from .tolerance import CAP, SAFETY, Tolerance, scatter_of

if TYPE_CHECKING:
    from ..metrics.measurement import Measurement

LARGEST = SAFETY * CAP
"""The bound of a row that follows from a derived T ends here: a zeroed row has an error of 1."""
ELEMENT_SIGMAS = 8
BESIDE_OTHERS = SAFETY * ELEMENT_SIGMAS
"""Factor of the error of its neighbours by which an element, or a row, may be off."""
DEVIATIONS = 4


def needed_tolerance(measurement: Measurement) -> float:
    """The T at which the bounds of rows and channels just hold, that of the bias apart."""
    slices = measurement.slices
    if slices.bias is None:
        return 0.0
    channels = measurement.shape[-1]
    needs = [(slices.typical_row_error or 0.0) / SAFETY, (slices.bulk_error or 0.0) / SAFETY]
    for worst, decile, elements in (
        (slices.worst_row_error, slices.row_error_p90, channels),
        (slices.worst_channel_error, slices.channel_error_p90, measurement.numel // channels),
    ):
        error = (worst or 0.0) / scatter_of(elements)
        if error > BESIDE_OTHERS * (decile or 0.0):
            needs.append(error / SAFETY / (SAFETY if error <= LARGEST else 1.0))
    return max(needs)


def needed_rounding(measurement: Measurement) -> float:
    """The rounding of one operation at which the bound of the bias just holds."""
    slices = measurement.slices
    if slices.bias is None:
        return 0.0
    return max(0.0, abs(slices.bias) - _deviation_and_turn(measurement))


def slice_thresholds(measurement: Measurement, allowed: Tolerance) -> tuple[Threshold, ...]:
    """The bounds of the rows and channels of float tensors; none for tensors with too few of either."""
    slices = measurement.slices
    if slices.bias is None:
        return ()
    channels = measurement.shape[-1]
    rows = measurement.numel // channels
    typical, bulk = _twice(allowed.value)
    return (
        _worst("row", slices.row_error_p90, channels, allowed.value),
        typical,
        _worst("channel", slices.channel_error_p90, rows, allowed.value),
        bulk,
        _bias(measurement, allowed),
    )


@functools.lru_cache(maxsize=4096)  # most tensors of a dump are of few shapes and depths
def _twice(t: float) -> tuple[Threshold, Threshold]:
    """The bounds of a typical row and of most channels."""
    bound = SAFETY * t
    of_rows = f"2 T = {bound:.3g}: half of the rows may not be further off"
    of_bulk = f"2 T = {bound:.3g}: channels that are not golden's largest may not be further off"
    return Threshold("typical_row_error", bound, False, of_rows), Threshold(
        "bulk_error", bound, False, of_bulk
    )


def beside_neighbours(measurement: Measurement, bound: float, reason: str) -> tuple[float, str]:
    """The bound of the largest error, and why: the one given, or what its row or channel allows it."""
    neighbours = measurement.slices.neighbour_error or 0.0
    if BESIDE_OTHERS * neighbours <= bound:
        return bound, reason
    neighbour_reason = f"{BESIDE_OTHERS:g} times the error {neighbours:.3g} of the rest of its row or channel"
    return BESIDE_OTHERS * neighbours, f"{neighbour_reason}; by itself {reason}"


def _worst(what: str, ninth_decile: float | None, elements: int, t: float) -> Threshold:
    """The bound of the worst row or channel, which has that many elements."""
    by_t, of_t = _worst_by_t(what, elements, t)
    by_decile = BESIDE_OTHERS * (ninth_decile or 0.0)
    if by_decile <= by_t:
        return of_t
    scatter = scatter_of(elements)
    reason = (
        f"{BESIDE_OTHERS:g} times {ninth_decile:.3g}, which nine of ten {what}s stay within, "
        f"times {scatter:.3g} for the scatter of {elements} elements"
    )
    return Threshold(f"worst_{what}_error", by_decile * scatter, False, reason)


@functools.lru_cache(maxsize=4096)
def _worst_by_t(what: str, elements: int, t: float) -> tuple[float, Threshold]:
    """The bound of the worst row or channel by T, without and with its scatter."""
    scatter = scatter_of(elements)
    by_t = min(SAFETY**2 * t, max(LARGEST, SAFETY * t))
    reason = (
        f"min(4 T, max(1/2, 2 T)) = {by_t:.3g}, times {scatter:.3g} for the scatter of {elements} elements"
    )
    return by_t, Threshold(f"worst_{what}_error", by_t * scatter, False, reason)


def _bias(measurement: Measurement, allowed: Tolerance) -> Threshold:
    distance, deviation = measurement.relative_euclidean_distance or 0.0, measurement.slices.bias_deviation
    reason = (
        f"{allowed.rounding:.3g} for one rounding to {allowed.format.name}, + {DEVIATIONS} standard errors "
        f"of {deviation or 0.0:.2g}, + r^2/2 of r = {distance:.2g}: other rounding has no direction"
    )
    return Threshold("bias", allowed.rounding + _deviation_and_turn(measurement), False, reason)


def _deviation_and_turn(measurement: Measurement) -> float:
    distance, deviation = measurement.relative_euclidean_distance or 0.0, measurement.slices.bias_deviation
    return DEVIATIONS * (deviation or 0.0) + distance * distance / 2
