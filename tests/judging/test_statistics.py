"""Statistics pairs: never stricter than the tensors behind them, never silent."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.errors import Incomparable, SettingsError
from acc_pytest.judging.replay import stated_of, stated_scalars
from acc_pytest.judging.rules import rule_from_table
from acc_pytest.judging.standards import STANDARDS
from acc_pytest.judging.statistics import judge_statistics, measure_statistics, thresholds_for_statistics
from acc_pytest.judging.threshold import JudgeContext, Threshold
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.tolerance import PER_LAYER, tolerance
from acc_pytest.judging.verdict import Judgement, judge
from acc_pytest.tensors.header import Statistics

from .plain import measured

approx: Any = pytest.approx  # stands where a bound does

CONTEXT = JudgeContext(length=32)


def statistics(tensor: torch.Tensor) -> Statistics:
    """As the probe prints them: six decimals."""
    wide = tensor.double()
    values = (wide.max(), wide.min(), wide.mean(), wide.norm())
    return Statistics(*(float(f"{value.item():.6f}") for value in values))


def verdict(golden: Statistics, mine: Statistics, dtype: str = "float16", numel: int = 256) -> Judgement:
    found = measure_statistics(golden, mine, numel=numel, golden_dtype=dtype, mine_dtype=dtype)
    return judge_statistics(found, thresholds_for_statistics(CONTEXT, found))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-6, 0.02), st.floats(-4, 4), st.integers(1, 300))
def test_statistics_never_fail_where_the_tensors_pass(
    seed: int, noise: float, shift: float, numel: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    golden = torch.randn(numel, generator=generator, dtype=torch.float64) + shift
    mine = (golden + noise * torch.randn(numel, generator=generator, dtype=torch.float64)).half()
    tensors = measured(golden, mine)
    found = measure_statistics(
        statistics(golden), statistics(mine), numel=numel, golden_dtype="float64", mine_dtype="float16"
    )
    by_statistics = judge_statistics(found, thresholds_for_statistics(CONTEXT, found))
    if judge(tensors, thresholds_for(CONTEXT, tensors)).verdict == "pass":
        assert by_statistics.verdict == "pass", by_statistics.sentence


def test_a_wrong_scale_fails_by_its_norm() -> None:
    golden = torch.randn(256, generator=torch.Generator().manual_seed(0))
    found = verdict(statistics(golden), statistics(golden * 1.01))
    assert {c.metric for c in found.checks if not c.passed} >= {"l2norm_stat_relative_error"}
    assert found.sentence.endswith("(statistics only)")


def of_sum(total: float) -> Statistics:
    return Statistics(None, None, None, None, l1norm=total)


def test_a_sum_of_absolute_values_is_compared_by_its_relative_difference() -> None:
    found = verdict(of_sum(200.0), of_sum(200.2))
    assert ([check.metric for check in found.checks], found.verdict) == (
        ["l1norm_stat_relative_error"],
        "pass",
    )
    assert verdict(of_sum(200.0), of_sum(202.0)).verdict == "fail"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-6, 0.02), st.integers(1, 300))
def test_sums_never_fail_where_the_tensors_pass_if_the_norm_is_stated_too(
    seed: int, noise: float, numel: int
) -> None:
    """Outliers make the norm far larger than the mean, and let the sum move as far."""
    generator = torch.Generator().manual_seed(seed)
    golden = torch.randn(numel, generator=generator, dtype=torch.float64) ** 5
    mine = (golden + noise * golden.std(correction=0)).half()
    tensors = measured(golden, mine)
    stated = [
        Statistics(None, None, None, float(side.double().norm()), float(side.double().abs().sum()))
        for side in (golden, mine)
    ]
    found = measure_statistics(*stated, numel=numel, golden_dtype="float64", mine_dtype="float16")
    if judge(tensors, thresholds_for(CONTEXT, tensors)).verdict == "pass":
        assert judge_statistics(found, thresholds_for_statistics(CONTEXT, found)).verdict == "pass"


@pytest.mark.parametrize(
    ("golden", "mine", "word"),
    [
        (0.0, 0.0, "pass"),
        (0.0, 0.1, "fail"),
        (math.nan, math.nan, "pass"),
        (math.nan, 1.0, "fail"),
        (math.inf, math.inf, "pass"),
        (math.inf, 1.0, "fail"),
        (1.0, math.inf, "fail"),
        (1.0, math.nan, "fail"),
    ],
)
def test_sums_of_zeros_and_of_what_is_not_finite(golden: float, mine: float, word: str) -> None:
    assert verdict(of_sum(golden), of_sum(mine)).verdict == word


def test_sums_of_whole_numbers_are_exact() -> None:
    assert verdict(of_sum(15.0), of_sum(15.0), "int64").verdict == "pass"
    assert verdict(of_sum(15.0), of_sum(16.0), "int64").verdict == "fail"


def test_a_mean_near_zero_is_judged_by_the_rms_not_by_itself() -> None:
    golden = Statistics(2.0, -2.0, 0.0, 16.0)
    assert verdict(golden, Statistics(2.0, -2.0, 1e-4, 16.0)).verdict == "pass"
    found = verdict(golden, Statistics(2.0, -2.0, 0.1, 16.0))
    assert [c.metric for c in found.checks if not c.passed] == ["mean_stat_absolute_error"]


def test_what_a_side_does_not_state_is_left_out_and_nothing_at_all_is_incomparable() -> None:
    found = verdict(Statistics(1.0, None, None, 4.0), Statistics(1.0, -1.0, 0.0, 4.0))
    assert [c.metric for c in found.checks] == ["max_stat_absolute_error", "l2norm_stat_relative_error"]
    with pytest.raises(Incomparable) as caught:
        verdict(Statistics(1.0, None, None, None), Statistics(None, 1.0, None, None))
    assert str(caught.value) == (
        "no statistic (max, min, mean, l2norm, l1norm) is in both dumps (N/A), so there is nothing to compare"
    )


def test_equal_nan_and_inf_agree_and_one_sided_ones_fail() -> None:
    odd = Statistics(math.inf, -1.0, math.nan, math.inf)
    assert verdict(odd, odd).verdict == "pass"
    for mine in (Statistics(1.0, -1.0, math.nan, math.inf), Statistics(math.inf, -1.0, 0.0, math.inf)):
        assert verdict(odd, mine).verdict == "fail"


def test_an_all_zero_golden_allows_only_printing() -> None:
    zero = Statistics(0.0, 0.0, 0.0, 0.0)
    assert verdict(zero, zero).verdict == "pass"
    assert verdict(zero, Statistics(1e-5, 0.0, 0.0, 1e-5)).verdict == "fail"


def test_without_a_norm_the_peak_stands_for_the_rms() -> None:
    golden = Statistics(2.0, -1.0, 0.5, None)
    assert verdict(golden, Statistics(2.0, -1.0, 0.505, None)).verdict == "pass"
    assert verdict(golden, Statistics(2.0, -1.0, 0.51, None)).verdict == "fail"


def test_integers_are_exact() -> None:
    golden = Statistics(7, -5, 0.666667, 8.602325)
    assert verdict(golden, golden, "int8").verdict == "pass"
    assert verdict(golden, Statistics(8, -5, 0.666667, 8.602325), "int8").verdict == "fail"


def bounds_of(golden: Statistics, dtype: str = "float16", **factor: float) -> list[Threshold]:
    same = measure_statistics(golden, golden, numel=256, golden_dtype=dtype, mine_dtype=dtype)
    rules = [rule_from_table(factor, "x.toml")] if factor else []
    return list(thresholds_for_statistics(JudgeContext(length=64, depth=1), same, rules))


def test_every_bound_says_what_it_is_made_of() -> None:
    # rms 16 / sqrt(256) = 1, largest element 2
    t = 2 * 8 * (2.0**-11 + 8 * 2.0**-24) * math.sqrt(2) * math.exp(3.72 / 16)
    made = (
        "T = 8*(u + sqrt(64)*2^-24)*sqrt(1+1)*1.26 * 2 = 0.014 (u = 2^-11 of float16, sums of 64 terms at "
        "2^-24, 1 layer before, 1.26 for the scatter of only 256 elements, factor 2 from x.toml)"
    )
    printed = "plus 1e-06 for printing six decimals"
    extremum = f"default: T * max(8*rms(golden), max|golden|) {printed}; {made}"
    mean = f"default: T * rms(golden), which no mean error can exceed, {printed}; {made}"
    assert bounds_of(Statistics(2.0, -1.0, 0.5, 16.0), factor=2) == [
        Threshold("max_stat_absolute_error", approx(8 * t + 1e-6), False, extremum),
        Threshold("min_stat_absolute_error", approx(8 * t + 1e-6), False, extremum),
        Threshold("mean_stat_absolute_error", approx(t + 1e-6), False, mean),
        Threshold("l2norm_stat_relative_error", approx(t + 1e-6 / 16), False, f"default: {made} {printed}"),
    ]


@pytest.mark.parametrize(
    ("golden", "scale", "rms"),
    [
        (Statistics(2.0, -40.0, 0.5, 16.0), 40.0, 1.0),
        (Statistics(2.0, -3.0, 0.5, None), 24.0, 3.0),
        (Statistics(2.0, -math.inf, 0.5, 16.0), 8.0, 1.0),
        (Statistics(2.0, None, 0.5, math.inf), 16.0, 2.0),
        (Statistics(None, None, 0.5, None), 0.0, 0.0),
    ],
)
def test_bounds_follow_from_the_largest_element_and_the_rms(
    golden: Statistics, scale: float, rms: float
) -> None:
    t = 8 * (2.0**-11 + 8 * 2.0**-24) * math.sqrt(2) * math.exp(3.72 / 16)
    bounds = {threshold.metric: threshold.bound for threshold in bounds_of(golden)}
    assert bounds["mean_stat_absolute_error"] == approx(t * rms + 1e-6)
    if golden.max is not None:
        assert bounds["max_stat_absolute_error"] == approx(t * scale + 1e-6)


def test_the_rounding_of_what_it_was_computed_from_counts_here_too() -> None:
    golden = Statistics(2.0, -1.0, 0.5, 16.0)
    same = measure_statistics(golden, golden, numel=256, golden_dtype="float32", mine_dtype="float32")
    for computed_in, coarsest in (("", "float32"), ("bfloat16", "bfloat16")):
        context = JudgeContext(length=64, computed_in=computed_in)
        t = tolerance(coarsest, coarsest, 0, 64, elements=256).value
        assert thresholds_for_statistics(context, same)[-1].bound == approx(t + 1e-6 / 16)


def test_zeros_and_integers_are_bounded_by_what_printing_leaves() -> None:
    reason = "default: golden is all zero; 1e-06 is printing"
    zero = bounds_of(Statistics(0.0, 0.0, 0.0, 0.0))
    assert zero[-1] == Threshold("l2norm_stat_absolute_error", 1e-6, False, reason)
    assert [bound.bound for bound in zero] == [1e-6] * 4
    reason = "default: int8 values are exact; 1e-06 is the printing error of six decimals"
    names = ("max", "min", "mean", "l2norm")
    assert bounds_of(Statistics(7, -5, 0.6, 8.6), "int8") == [
        Threshold(f"{name}_stat_absolute_error", 1e-6, False, reason) for name in names
    ]


def test_rules_override_statistics_metrics_and_their_tensor_metrics_do_not_matter() -> None:
    golden, mine = Statistics(2.0, -2.0, 0.0, 16.0), Statistics(3.0, -2.0, 0.0, 16.0)
    rules = [
        rule_from_table({"max_stat_relative_error": 0.6, "max_stat_absolute_error": False}, "a.toml"),
        rule_from_table({"relative_euclidean_distance": 0.0}, "b.toml"),
    ]
    found = measure_statistics(golden, mine, numel=256, golden_dtype="float16", mine_dtype="float16")
    judged = judge_statistics(found, thresholds_for_statistics(CONTEXT, found, rules))
    assert judged.verdict == "pass"
    assert {c.metric: c.measured for c in judged.checks}["max_stat_relative_error"] == 0.5
    assert "relative_euclidean_distance" not in {c.metric for c in judged.checks}


def test_switching_all_statistics_off_is_refused() -> None:
    names = ["max_stat_absolute", "min_stat_absolute", "mean_stat_absolute", "l2norm_stat_relative"]
    rule = rule_from_table({f"{name}_error": False for name in names}, "bad.toml")
    golden = Statistics(2.0, -2.0, 0.0, 16.0)
    found = measure_statistics(golden, golden, numel=256, golden_dtype="float16", mine_dtype="float16")
    with pytest.raises(
        SettingsError, match=r"bad\.toml: bounds only nothing, which cannot gate: cosine similarity does not"
    ):
        thresholds_for_statistics(CONTEXT, found, [rule])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31),
    st.floats(-4, 4),
    st.integers(1, 5000),
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
)
def test_statistics_rounded_to_their_dtype_never_fail_where_the_tensors_are_equal(
    seed: int, shift: float, numel: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    golden = (torch.randn(numel, generator=generator) + shift).to(dtype)
    rounded = Statistics(
        *(value.item() for value in (golden.max(), golden.min(), golden.mean(), golden.norm())),
        rounding=torch.finfo(dtype).eps / 2 + math.sqrt(numel) * 2**-24,
    )
    name = str(dtype).removeprefix("torch.")
    found = measure_statistics(statistics(golden), rounded, numel=numel, golden_dtype=name, mine_dtype=name)
    judgement = judge_statistics(found, thresholds_for_statistics(CONTEXT, found))
    assert judgement.verdict == "pass", judgement.sentence
    assert stated_of(stated_scalars(found)) == found


def test_the_reason_says_that_mean_and_norm_were_rounded() -> None:
    golden = torch.randn(256, generator=torch.Generator().manual_seed(0))
    rounded = replace(statistics(golden), rounding=2**-8)
    exact = measure_statistics(
        statistics(golden), statistics(golden), numel=256, golden_dtype="bfloat16", mine_dtype="bfloat16"
    )
    found = measure_statistics(
        statistics(golden), rounded, numel=256, golden_dtype="bfloat16", mine_dtype="bfloat16"
    )
    bounds = {t.metric: t for t in thresholds_for_statistics(CONTEXT, found)}
    before = {t.metric: t.bound for t in thresholds_for_statistics(CONTEXT, exact)}
    norm = bounds["l2norm_stat_relative_error"]
    assert norm.bound == approx(before["l2norm_stat_relative_error"] + 2**-8)
    assert "plus 0.0039 because it was computed in bfloat16" in norm.reason
    assert bounds["max_stat_absolute_error"].bound == before["max_stat_absolute_error"]


def test_few_digits_widen_every_bound() -> None:
    golden = torch.randn(256, generator=torch.Generator().manual_seed(0))
    exact = statistics(golden)
    printed = Statistics(
        *(
            None if value is None else float(f"{value:.4e}")
            for value in (exact.max, exact.min, exact.mean, exact.l2norm)
        ),
        digits=5e-5,
    )
    found = measure_statistics(exact, printed, numel=256, golden_dtype="float32", mine_dtype="float32")
    bounds = thresholds_for_statistics(CONTEXT, found)
    assert judge_statistics(found, bounds).verdict == "pass"
    assert all("plus 5e-05 because few digits were printed" in bound.reason for bound in bounds)
    assert stated_of(stated_scalars(found)) == found


# ---- beside a noise run -----------------------------------------------------------------------------

NOISY = JudgeContext(
    length=64, noise_error=0.03, noise_max_absolute_error=0.5, noise_dtype="float16", computed_in="float16"
)


def beside_noise(context: JudgeContext, numel: int = 10**6, dtype: str = "float16") -> dict[str, Threshold]:
    """The bounds under `three-way` of a tensor of rms 2 and peak 9."""
    golden = Statistics(9.0, -7.0, 0.1, 2 * math.sqrt(numel))
    stated = measure_statistics(golden, golden, numel=numel, golden_dtype=dtype, mine_dtype=dtype)
    return {t.metric: t for t in thresholds_for_statistics(context, stated, (), STANDARDS["three-way"])}


def test_under_three_way_statistics_may_be_off_by_three_times_the_noise() -> None:
    found = beside_noise(NOISY)
    scatter = math.exp(3.72 / 1e3)
    t = 3 * scatter * 0.03
    assert found["l2norm_stat_relative_error"].bound == pytest.approx(t + 1e-6 / 2e3)
    assert found["mean_stat_absolute_error"].bound == pytest.approx(2 * t + 1e-6)
    assert found["max_stat_absolute_error"].bound == pytest.approx(max(5 * 0.5 * 1.05, 16 * t), rel=0.1)
    assert "three-way: T = 3 times the noise run (float16)'s own error 0.03" in (
        found["l2norm_stat_relative_error"].reason
    )


@pytest.mark.parametrize("name", ["ascend", "torch"])
def test_standards_that_bound_elements_leave_statistics_to_the_default(name: str) -> None:
    golden = Statistics(9.0, -7.0, 0.1, 60.0)
    stated = measure_statistics(golden, golden, numel=100, golden_dtype="float16", mine_dtype="float16")
    default = thresholds_for_statistics(NOISY, stated)
    assert thresholds_for_statistics(NOISY, stated, (), STANDARDS[name]) == default
    assert all(threshold.reason.startswith("default: ") for threshold in default)


def test_an_extremum_may_be_off_by_five_times_the_largest_error_of_the_noise() -> None:
    """Few elements hold an error of 50 beside an rms of 0.06: as many as their scatter is of."""
    found = beside_noise(replace(NOISY, noise_max_absolute_error=50.0))
    holding = round((2e3 * 0.03 / 50) ** 2 * 2 * math.log(2e6))
    scatter = math.exp(3.72 / math.sqrt(holding))
    assert found["max_stat_absolute_error"].bound == pytest.approx(5 * scatter * 50 + 1e-6)


def test_statistics_that_the_noise_run_lacks_are_allowed_the_noise_around_them() -> None:
    plain = JudgeContext(length=64)
    assert beside_noise(replace(plain, noise_nearby=0.04))[
        "l2norm_stat_relative_error"
    ].bound == pytest.approx(0.12 + 1e-6 / 2e3)
    derived = beside_noise(plain)["max_stat_absolute_error"]
    assert derived.bound == pytest.approx(16 * PER_LAYER * (2.0**-11 + 8 * 2.0**-24) * 1.0 + 1e-6, rel=0.01)


def test_a_noise_run_in_a_finer_type_does_not_tighten_statistics() -> None:
    finer = beside_noise(replace(NOISY, noise_error=1e-6, noise_dtype="float32"))
    derived = beside_noise(JudgeContext(length=64))
    name = "l2norm_stat_relative_error"
    assert finer[name].bound == derived[name].bound
    assert "a noise run in float32 does not show the rounding of float16" in finer[name].reason


def test_reasons_of_sums_say_where_the_spread_comes_from() -> None:
    def reason(norm: float | None) -> str:
        golden = Statistics(None, None, None, norm, l1norm=80.0)
        stated = measure_statistics(golden, golden, numel=100, golden_dtype="float16", mine_dtype="float16")
        bounds = thresholds_for_statistics(CONTEXT, stated)
        return next(t.reason for t in bounds if t.metric == "l1norm_stat_relative_error")

    normal = "T * 1.25 (rms / mean |golden|, its value for normally distributed numbers); "
    assert reason(None).startswith(f"default: {normal}")
    assert reason(16.0).startswith("default: T * 2 (rms / mean |golden|, of golden); ")
