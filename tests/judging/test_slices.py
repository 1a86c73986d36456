"""Bounds of single rows and channels: from T, from the ninth decile, and from how few elements there are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.judging.derive import beside_neighbours, needed_rounding, needed_tolerance, slice_thresholds
from acc_pytest.judging.standards import THREE_WAY
from acc_pytest.judging.threshold import JudgeContext, Threshold
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.tolerance import Tolerance, scatter_of, tolerance
from acc_pytest.judging.verdict import Judgement, judge
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import Measurement, SliceErrors
from acc_pytest.noise.errors import NoiseErrors
from acc_pytest.tensors.source import TensorSource
from tests.slow import slow

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


# Rows, channels and the bias held against those of a noise run.


NOISE_ROWS, NOISE_CHANNELS = 48, 128
PLACE = JudgeContext(length=NOISE_CHANNELS, depth=2)


def golden_of(massive: float = 1.0) -> torch.Tensor:
    """Normal values; two channels of the first row are so many times as large."""
    golden = torch.randn(NOISE_ROWS, NOISE_CHANNELS, generator=torch.Generator().manual_seed(1))
    golden[0, :2] *= massive
    return golden


def run(golden: torch.Tensor, seed: int, size: float = 0.004) -> torch.Tensor:
    """A right run in bfloat16: every element off by its own rounding and a share of its row's."""
    generator = torch.Generator().manual_seed(seed)
    rows = golden.median(-1, keepdim=True).values.abs() + 0.7
    noise = torch.randn(golden.shape, generator=generator) * size
    return (golden + noise * rows).bfloat16()


def thresholds(golden: torch.Tensor, noise: torch.Tensor, mine: torch.Tensor) -> dict[str, Threshold]:
    errors = NoiseErrors.of(measure(TensorSource(golden), TensorSource(noise)))
    measurement = measure(TensorSource(golden), TensorSource(mine))
    return {t.metric: t for t in thresholds_for(errors.applied_to(PLACE), measurement, (), THREE_WAY)}


def verdict(golden: torch.Tensor, noise: torch.Tensor, mine: torch.Tensor) -> Judgement:
    found = thresholds(golden, noise, mine)
    return judge(measure(TensorSource(golden), TensorSource(mine)), tuple(found.values()))


def failing(judgement: Judgement) -> set[str]:
    return {check.metric for check in judgement.checks if not check.passed}


def test_the_median_row_may_have_three_times_the_noise_runs_error() -> None:
    golden, noise = golden_of(), run(golden_of(), 2)
    g, n = golden.double().numpy(), noise.double().numpy()
    norms = np.linalg.norm(g, axis=1)
    rows = np.linalg.norm(n - g, axis=1) / np.maximum(norms, np.median(norms))
    scatter = math.exp(3.72 / math.sqrt(golden.numel()))
    found = thresholds(golden, noise, noise)
    assert found["typical_row_error"].bound == pytest.approx(3 * scatter * np.median(rows), rel=0.01)
    of_a_tenth = scatter_of(NOISE_CHANNELS, 1, NOISE_ROWS // 10)
    assert found["worst_row_error"].bound == pytest.approx(3 * of_a_tenth * rows.max(), rel=0.01)


@pytest.mark.parametrize(("runs", "count"), [(1, 1), slow(2, 1), (3, 1), slow(1, 16), (2, 64), slow(2, 4096)])
def test_the_largest_of_many_exceeds_that_of_noise_runs_once_in_10_000_times(runs: int, count: int) -> None:
    elements, draws = 200, 4_000_000
    generator = torch.Generator().manual_seed(1)

    def largest(of: int) -> torch.Tensor:
        return torch.special.ndtri(torch.rand(draws, generator=generator, dtype=torch.float64) ** (1 / of))

    logarithms = (largest(count) - largest(runs * count)) / math.sqrt(2 * elements)
    beyond = float((logarithms > math.log(scatter_of(elements, runs, count))).double().mean())
    assert beyond == pytest.approx(1e-4, rel=0.2)


@pytest.mark.parametrize("massive", [1.0, 1000.0])
def test_right_runs_pass_and_a_lost_token_fails_however_large_one_token_is(massive: float) -> None:
    golden = golden_of(massive)
    noise = run(golden, 2)
    for seed in range(3, 13):
        assert verdict(golden, noise, run(golden, seed)).verdict == "pass"
    mine = run(golden, 3)
    mine[7] = 0
    assert "worst_row_error" in failing(verdict(golden, noise, mine))


def test_an_error_in_all_rows_but_the_massive_one_fails_by_the_median_row() -> None:
    """Four times the noise; the norm of the whole is that of two values, and does not see it."""
    golden = golden_of(1000.0)
    judgement = verdict(golden, run(golden, 2), run(golden, 3, size=0.02))
    assert "typical_row_error" in failing(judgement)
    assert "relative_euclidean_distance" not in failing(judgement)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_noise_run_itself_always_passes(dtype: torch.dtype) -> None:
    for seed in range(6):
        golden = golden_of(10.0**seed)
        noise = golden.double() * (1 + min(0.1, 10.0 ** (seed - 5)) * torch.randn(golden.shape).double())
        assert verdict(golden, noise.to(dtype), noise.to(dtype)).verdict == "pass"


def test_the_noise_runs_own_bias_is_allowed_beside_one_rounding() -> None:
    golden = golden_of()
    leaning = (golden * 1.02).bfloat16()
    biased = thresholds(golden, leaning, leaning)["bias"]
    plain = thresholds(golden, run(golden, 2), leaning)["bias"]
    assert biased.bound - plain.bound == pytest.approx(0.02, rel=0.1)
    assert "the noise run's" in biased.reason


def test_a_noise_run_without_rows_leaves_the_bounds_that_follow_from_t() -> None:
    golden, mine = golden_of(), run(golden_of(), 3)
    errors = NoiseErrors.of(measure(TensorSource(golden), TensorSource(run(golden, 2))))
    bare = replace(errors, typical_row=None, worst_row=None, worst_channel=None, bulk=None, bias=None)
    measurement = measure(TensorSource(golden), TensorSource(mine))
    found = {t.metric: t for t in thresholds_for(bare.applied_to(PLACE), measurement, (), THREE_WAY)}
    derived = {t.metric: t for t in thresholds_for(PLACE, measurement)}
    for metric in ("typical_row_error", "worst_row_error", "bulk_error", "worst_channel_error", "bias"):
        assert found[metric].bound == derived[metric].bound


def test_a_row_that_is_apart_from_the_others_scatters_as_a_row_by_itself() -> None:
    golden, mine = golden_of(), run(golden_of(), 3)
    errors = NoiseErrors.of(measure(TensorSource(golden), TensorSource(run(golden, 2))))
    far = replace(errors, worst_row=0.4, worst_channel=0.7)
    measurement = measure(TensorSource(golden), TensorSource(mine))
    found = {t.metric: t for t in thresholds_for(far.applied_to(PLACE), measurement, (), THREE_WAY)}
    of_row, of_channel = (math.exp(3.72 / math.sqrt(elements)) for elements in (NOISE_CHANNELS, NOISE_ROWS))
    assert found["worst_row_error"].bound == pytest.approx(3 * 0.4 * of_row)
    assert found["worst_channel_error"].bound == pytest.approx(3 * 0.7 * of_channel)
    assert not found["worst_row_error"].at_least


def test_the_last_row_is_held_against_that_of_the_noise_run_where_both_have_one() -> None:
    golden, mine = golden_of(), run(golden_of(), 3)
    errors = NoiseErrors.of(measure(TensorSource(golden), TensorSource(run(golden, 2))))
    measurement = measure(TensorSource(golden), TensorSource(mine))
    context = errors.applied_to(PLACE)
    context = replace(context, noise_last_row=0.02)
    bound = {t.metric: t.bound for t in thresholds_for(context, measurement, (), THREE_WAY)}
    assert bound["last_row_error"] == pytest.approx(3 * math.exp(3.72 / math.sqrt(NOISE_CHANNELS / 4)) * 0.02)
    without = replace(measurement, slices=replace(measurement.slices, last_row_error=None))
    for place, each in ((replace(context, noise_last_row=None), measurement), (context, without)):
        assert "last_row_error" not in {t.metric for t in thresholds_for(place, each, (), THREE_WAY)}


def test_few_values_that_hold_a_tensor_may_be_rounded_twice() -> None:
    golden = torch.randn(1, 64, generator=torch.Generator().manual_seed(4))
    few = golden.clone()
    few[0, 3] = 500.0
    for tensor, times in ((golden, 1), (few, 2)):
        measurement = measure(TensorSource(tensor), TensorSource(tensor.bfloat16()))
        context = replace(PLACE, noise_error=0.0, noise_max_absolute_error=0.0, noise_dtype="bfloat16")
        found = {t.metric: t for t in thresholds_for(context, measurement, (), THREE_WAY)}
        assert found["relative_euclidean_distance"].bound == times * 2.0**-8


def test_errors_beyond_all_numbers_do_not_switch_the_bounds_off() -> None:
    golden, mine = golden_of(), run(golden_of(), 3)
    errors = NoiseErrors.of(measure(TensorSource(golden), TensorSource(mine)))
    huge = replace(errors, worst_row=1e308, typical_row=1e308, bulk=1e308, worst_channel=1e308)
    measurement = measure(TensorSource(golden), TensorSource(mine))
    assert not any(t.off for t in thresholds_for(huge.applied_to(PLACE), measurement, (), THREE_WAY))


def test_of_several_noise_runs_mine_may_have_less_than_of_one() -> None:
    golden, mine = golden_of(), run(golden_of(), 3)
    errors = NoiseErrors.of(measure(TensorSource(golden), TensorSource(run(golden, 2))))
    measurement = measure(TensorSource(golden), TensorSource(mine))
    one, two = (
        {t.metric: t for t in thresholds_for(each.applied_to(PLACE), measurement, (), THREE_WAY)}
        for each in (errors, replace(errors, runs=2))
    )
    less = 0.75 * scatter_of(golden.numel(), 2) / scatter_of(golden.numel())
    for metric in ("relative_euclidean_distance", "typical_row_error", "bulk_error"):
        assert two[metric].bound == pytest.approx(less * one[metric].bound)
    assert two["worst_row_error"].bound < 0.75 * one["worst_row_error"].bound
    assert "times the 2 noise runs (bfloat16)'s own error" in two["relative_euclidean_distance"].reason


def test_noise_that_one_value_holds_is_a_sample_of_one() -> None:
    """One token with an outlier 500 times as large: it rounds well in one run, and badly in another."""
    golden = torch.randn(1, 64, generator=torch.Generator().manual_seed(4))
    golden[0, 3] = 500.0
    lucky, mine = golden.clone(), golden.clone()
    lucky[0, 3] *= 1.0003
    mine[0, 3] *= 1.006
    assert verdict(golden, lucky.float(), mine.float()).verdict == "fail", "no rounding of float32"
    errors = NoiseErrors.of(measure(TensorSource(golden), TensorSource(lucky)))
    context = replace(errors, dtype="bfloat16").applied_to(replace(PLACE, depth=0))
    measurement = replace(measure(TensorSource(golden), TensorSource(mine)), mine_dtype="bfloat16")
    found = {t.metric: t for t in thresholds_for(context, measurement, (), THREE_WAY)}
    derived = {t.metric: t for t in thresholds_for(PLACE, measurement)}
    spread = 3 * math.exp(3.72 / math.sqrt(64)) * (errors.relative or 0.0)
    bound = found["relative_euclidean_distance"].bound
    assert spread < bound <= derived["relative_euclidean_distance"].bound
