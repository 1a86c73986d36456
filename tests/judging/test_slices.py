"""Bounds of single rows and channels: from T, from the ninth decile, and from how few elements there are."""

from __future__ import annotations

import math
from typing import Any

import pytest

from acc_pytest.judging.derive import beside_neighbours, needed_rounding, needed_tolerance, slice_thresholds
from acc_pytest.judging.threshold import Threshold
from acc_pytest.judging.tolerance import Tolerance, tolerance
from acc_pytest.metrics.measurement import Measurement, SliceErrors

from .plain import build

ROWS, CHANNELS = 16, 64
OF_ROW, OF_CHANNEL = (math.exp(3.72 / math.sqrt(elements)) for elements in (CHANNELS, ROWS))


def sliced(distance: float | None = None, **errors: Any) -> Measurement:
    """A measurement of 16 rows and 64 channels."""
    slices = SliceErrors(**{"bias": 0.0, **errors})
    return build(
        shape=(2, 8, CHANNELS), numel=ROWS * CHANNELS, slices=slices, relative_euclidean_distance=distance
    )


def of_t(t: float) -> Tolerance:
    derived = tolerance("float16", "float16", 0, 64)
    return Tolerance(t, derived.format, "", derived.rounding)


def bounds(measurement: Measurement, t: float) -> dict[str, Threshold]:
    return {threshold.metric: threshold for threshold in slice_thresholds(measurement, of_t(t))}


@pytest.mark.parametrize(
    ("t", "worst"),
    [(0.01, 0.04), (0.125, 0.5), (0.2, 0.5), (0.25, 0.5), (0.3, 0.6)],
)
def test_the_worst_row_may_be_off_by_four_t_but_is_never_all_lost(t: float, worst: float) -> None:
    found = bounds(sliced(row_error_p90=0.001, channel_error_p90=0.001), t)
    assert found["worst_row_error"].bound == pytest.approx(worst * OF_ROW)
    assert found["worst_channel_error"].bound == pytest.approx(worst * OF_CHANNEL)
    assert found["typical_row_error"].bound == found["bulk_error"].bound == pytest.approx(2 * t)
    assert not any(threshold.at_least for threshold in found.values())


def test_the_worst_row_may_be_sixteen_times_the_ninth_decile() -> None:
    found = bounds(sliced(row_error_p90=0.02, channel_error_p90=0.03), 0.01)
    assert found["worst_row_error"].bound == pytest.approx(16 * 0.02 * OF_ROW)
    assert found["worst_channel_error"].bound == pytest.approx(16 * 0.03 * OF_CHANNEL)


def test_bounds_of_slices_say_what_they_are_made_of() -> None:
    found = bounds(sliced(row_error_p90=0.02, bias_deviation=0.003, distance=0.1), 0.01)
    assert {metric: threshold.reason for metric, threshold in found.items()} == {
        "worst_row_error": "16 times 0.02, which nine of ten rows stay within, "
        "times 1.59 for the scatter of 64 elements",
        "typical_row_error": "2 T = 0.02: half of the rows may not be further off",
        "worst_channel_error": "min(4 T, max(1/2, 2 T)) = 0.04, times 2.53 for the scatter of 16 elements",
        "bulk_error": "2 T = 0.02: channels that are not golden's largest may not be further off",
        "bias": "0.000489 for one rounding to float16, + 4 standard errors of 0.003, "
        "+ r^2/2 of r = 0.1: other rounding has no direction",
    }


def test_the_bias_may_be_one_rounding_four_deviations_and_what_a_turn_takes() -> None:
    rounding = 2.0**-11 + 8 * 2.0**-24
    assert bounds(sliced(), 0.01)["bias"].bound == pytest.approx(rounding)
    leaning = sliced(bias=-0.02, bias_deviation=0.001, distance=0.1)
    assert bounds(leaning, 0.01)["bias"].bound == pytest.approx(rounding + 4 * 0.001 + 0.1**2 / 2)
    assert needed_rounding(leaning) == pytest.approx(0.02 - 4 * 0.001 - 0.1**2 / 2)
    assert needed_rounding(sliced(bias=0.001, bias_deviation=0.001)) == 0.0


def test_tensors_without_slices_need_nothing_and_have_no_bounds() -> None:
    plain = build(slices=SliceErrors(typical_row_error=0.5))
    assert slice_thresholds(plain, of_t(0.01)) == ()
    assert (needed_tolerance(plain), needed_rounding(plain)) == (0.0, 0.0)


@pytest.mark.parametrize(
    "errors",
    [
        {"typical_row_error": 0.03},
        {"bulk_error": 0.05},
        {"worst_row_error": 0.3, "row_error_p90": 0.001},
        {"worst_row_error": 0.9, "row_error_p90": 0.001},
        {"worst_channel_error": 0.3, "channel_error_p90": 0.001},
        {"worst_channel_error": 1.9, "channel_error_p90": 0.01},
    ],
)
def test_what_a_tensor_needs_is_the_t_at_which_its_bounds_hold(errors: dict[str, float]) -> None:
    measurement = sliced(**errors)
    need = needed_tolerance(measurement)
    (metric, error), *_ = errors.items()
    assert bounds(measurement, need * 1.0001)[metric].bound > error
    assert bounds(measurement, need * 0.9999)[metric].bound < error


def test_a_worst_row_beside_others_needs_no_t() -> None:
    beside = sliced(worst_row_error=0.3, row_error_p90=0.02)
    assert needed_tolerance(beside) == 0.0
    assert bounds(beside, 1e-6)["worst_row_error"].bound > 0.3


def test_an_element_may_be_sixteen_times_as_far_off_as_its_neighbours() -> None:
    assert beside_neighbours(sliced(neighbour_error=0.01), 0.16, "why") == (0.16, "why")
    assert beside_neighbours(sliced(), 0.1, "why") == (0.1, "why")
    bound, reason = beside_neighbours(sliced(neighbour_error=0.02), 0.16, "why")
    assert bound == pytest.approx(0.32)
    assert reason == "16 times the error 0.02 of the rest of its row or channel; by itself why"
