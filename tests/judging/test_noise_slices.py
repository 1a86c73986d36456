"""Rows, channels and the bias held against those of a noise run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from acc_pytest.judging.standards import THREE_WAY
from acc_pytest.judging.threshold import JudgeContext, Threshold
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import Judgement, judge
from acc_pytest.metrics.kernel import measure
from acc_pytest.noise.errors import NoiseErrors
from acc_pytest.tensors.source import TensorSource

ROWS, CHANNELS = 48, 128
PLACE = JudgeContext(length=CHANNELS, depth=2)


def golden_of(massive: float = 1.0) -> torch.Tensor:
    """Normal values; two channels of the first row are so many times as large."""
    golden = torch.randn(ROWS, CHANNELS, generator=torch.Generator().manual_seed(1))
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
    wide = math.exp(3.72 / math.sqrt(CHANNELS))
    worst, decile = rows.max(), np.quantile(rows, 0.9)
    assert found["worst_row_error"].bound == pytest.approx(wide * max(5 * worst, 16 * decile), rel=0.02)


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


def test_the_worst_row_may_be_five_times_as_far_off_as_that_of_the_noise_run() -> None:
    golden, mine = golden_of(), run(golden_of(), 3)
    errors = NoiseErrors.of(measure(TensorSource(golden), TensorSource(run(golden, 2))))
    far = replace(errors, worst_row=0.4, worst_channel=0.7)
    measurement = measure(TensorSource(golden), TensorSource(mine))
    found = {t.metric: t for t in thresholds_for(far.applied_to(PLACE), measurement, (), THREE_WAY)}
    of_row, of_channel = (math.exp(3.72 / math.sqrt(elements)) for elements in (CHANNELS, ROWS))
    assert found["worst_row_error"].bound == pytest.approx(5 * 0.4 * of_row)
    assert found["worst_channel_error"].bound == pytest.approx(5 * 0.7 * of_channel)
    assert not found["worst_row_error"].at_least


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
    for metric in ("relative_euclidean_distance", "typical_row_error", "bulk_error"):
        assert two[metric].bound == pytest.approx(0.75 * one[metric].bound)
    assert two["worst_row_error"].bound == one["worst_row_error"].bound
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
