"""The default thresholds catch what they must and let rounding pass."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from acc_pytest.judging import judges
from acc_pytest.judging.derive import tolerance_of
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.replay import (
    NO_SAMPLE,
    NominalBound,
    context_scalars,
    nominal_bounds,
    stated_scalars,
    statistics_scalars,
)
from acc_pytest.judging.rules import rule_from_table
from acc_pytest.judging.standards import STANDARDS
from acc_pytest.judging.statistics import measure_statistics
from acc_pytest.judging.threshold import JudgeContext, Threshold
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import Judgement, judge
from acc_pytest.metrics.kernel import CustomMetric, measure
from acc_pytest.metrics.measurement import Measurement, NonFinite, SliceErrors
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.source import Source, TensorSource

from .plain import build, measured

FIRST_LAYER = JudgeContext(depth=0, length=256)


def golden_tensor(dtype: torch.dtype = torch.float16, rows: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(rows, 256, generator=generator).to(dtype)


def verdict(golden: torch.Tensor, mine: torch.Tensor, context: JudgeContext = FIRST_LAYER) -> Judgement:
    found = measured(golden, mine)
    return judge(found, thresholds_for(context, found))


def failed(judgement: Judgement) -> set[str]:
    return {c.metric for c in judgement.checks if not c.passed}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_one_rounding_of_every_element_passes(dtype: torch.dtype) -> None:
    golden = golden_tensor(torch.float64)
    assert verdict(golden, golden.to(dtype)).verdict == "pass"


@pytest.mark.parametrize(("dtype", "worst"), [(torch.float16, 0.002), (torch.bfloat16, 0.0117)])
def test_the_noise_of_the_clean_dumps_passes(dtype: torch.dtype, worst: float) -> None:
    golden = golden_tensor(torch.float64)
    noise = torch.randn(golden.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    assert verdict(golden, (golden + worst * noise).to(dtype)).verdict == "pass"


def test_a_rescaled_tensor_fails_by_distance_though_its_cosine_is_perfect() -> None:
    golden = golden_tensor(torch.float32)
    found = verdict(golden, (golden * 0.82).half())
    assert "cosine_similarity" not in failed(found)
    assert "relative_euclidean_distance" in failed(found)
    assert "41 times the allowed 0.00439" in found.sentence


def test_one_percent_of_scale_fails_at_fp16() -> None:
    golden = golden_tensor(torch.float32)
    found = verdict(golden, (golden * 1.01).half())
    assert "relative_euclidean_distance" in failed(found)
    cosine = next(c.measured for c in found.checks if c.metric == "cosine_similarity")
    assert cosine is not None
    assert cosine > 0.9999


@pytest.mark.parametrize("rows", [64, 4096])
def test_one_bad_row_fails_however_many_rows_are_right(rows: int) -> None:
    golden = golden_tensor(rows=rows)
    mine = golden.clone()
    mine[rows // 2] = mine[0]
    assert "worst_row_error" in failed(verdict(golden, mine))


def test_one_new_nan_fails() -> None:
    golden = golden_tensor()
    mine = golden.clone()
    mine[3, 3] = math.nan
    found = verdict(golden, mine)
    assert failed(found) == {"new_nonfinite"}
    assert found.sentence.startswith("1 of 16384 elements are NaN or Inf in mine")


def test_a_new_inf_and_a_lost_inf_fail() -> None:
    golden = golden_tensor()
    with_inf = golden.clone()
    with_inf[0, 0] = -math.inf
    assert failed(verdict(golden, with_inf)) == {"new_nonfinite"}
    assert failed(verdict(with_inf, golden)) == {"lost_nonfinite"}
    assert verdict(with_inf, with_inf).verdict == "pass"


def test_a_nan_where_golden_has_inf_counts_as_new() -> None:
    golden, mine = golden_tensor(), golden_tensor()
    golden[0, 0], mine[0, 0] = math.inf, math.nan
    assert failed(verdict(golden, mine)) == {"new_nonfinite"}


def test_zeros_for_everything_fail_at_any_depth_and_dtype() -> None:
    golden = golden_tensor()
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e5m2):
        found = verdict(golden, torch.zeros_like(golden).to(dtype), JudgeContext(depth=200))
        assert "relative_euclidean_distance" in failed(found)


def test_a_stated_precision_counts_whatever_the_weights_are() -> None:
    measurement = build(golden_dtype="float32", mine_dtype="float16")
    stated = tolerance_of(JudgeContext(computed_in="quantised.int8", declared="float16"), measurement)
    plain = tolerance_of(JudgeContext(declared="float16"), measurement)
    stored = tolerance_of(JudgeContext(computed_in="float8_e4m3fn", declared="float16"), measurement)
    assert stated.value > plain.value == stored.value


def test_an_unrelated_tensor_fails_at_any_depth() -> None:
    golden = golden_tensor()
    assert verdict(golden, golden.flip(0), JudgeContext(depth=500)).verdict == "fail"


def test_where_golden_is_all_zero_the_absolute_error_is_bounded_by_the_smallest_normal() -> None:
    golden = torch.zeros(4, 4)
    assert verdict(golden, golden.half()).verdict == "pass"
    flushed = torch.full((4, 4), 2.0**-24, dtype=torch.float16)
    assert verdict(golden, flushed).verdict == "pass"
    found = verdict(golden, torch.full((4, 4), 1e-3, dtype=torch.float16))
    assert failed(found) == {"max_absolute_error"}
    assert {c.metric for c in found.checks} == {"max_absolute_error", "new_nonfinite", "lost_nonfinite"}


def test_subnormal_golden_is_allowed_its_spacing() -> None:
    golden = golden_tensor(torch.float64) * 1e-6  # rms 1e-6, spacing of fp16 there 6e-8
    assert verdict(golden, golden.half()).verdict == "pass"
    assert verdict(golden, (golden * 1.3).half()).verdict == "fail"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_and_booleans_are_exact(dtype: torch.dtype) -> None:
    golden = (torch.arange(16) % 2).to(dtype)
    mine = golden.clone()
    assert verdict(golden, mine).verdict == "pass"
    mine[3] = 0
    found = verdict(golden, mine)
    assert failed(found) == {"mismatches"}
    assert found.sentence == "1 of 16 elements are different from golden, none may be"


def test_complex_is_judged_by_its_components_format() -> None:
    golden = torch.randn(64, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    assert verdict(golden, golden * (1 + 1e-6)).verdict == "pass"
    assert verdict(golden, golden.conj().resolve_conj()).verdict == "fail"


def test_empty_tensors_pass_with_a_note() -> None:
    found = build(numel=0, compared=0, golden_rms=None, golden_max_abs=None)
    assert thresholds_for(JudgeContext(), found) == ()
    assert judge(found, ()) == Judgement("pass", (), "nothing to compare: the tensors are empty")


def test_without_a_finite_element_only_the_positions_of_nan_are_judged() -> None:
    nothing = build(compared=0, golden_rms=None, golden_max_abs=None)
    thresholds = thresholds_for(JudgeContext(), nothing)
    assert [t.metric for t in thresholds] == ["new_nonfinite", "lost_nonfinite"]
    assert judge(nothing, thresholds).verdict == "pass"
    assert judge(build(nonfinite=NonFinite(new=2)), thresholds).verdict == "fail"


def test_the_largest_float64_still_has_a_finite_bound() -> None:
    huge = build(golden_dtype="float64", mine_dtype="float64", golden_rms=1e308, golden_max_abs=1.7e308)
    assert all(math.isfinite(t.bound) for t in thresholds_for(JudgeContext(), huge))


def test_every_default_threshold_says_what_it_is_made_of() -> None:
    context = JudgeContext(depth=1, length=64)
    t = 8 * (2.0**-11 + 8 * 2.0**-24) * math.sqrt(2)
    made = (
        "T = 8*(u + sqrt(64)*2^-24)*sqrt(1+1) = 0.00553 "
        "(u = 2^-11 of float16, sums of 64 terms at 2^-24, 1 layer before)"
    )
    large = {"numel": 2**40, "compared": 2**40}
    cosine, largest, distance, new, lost = thresholds_for(context, build(**large))
    assert distance == Threshold("relative_euclidean_distance", t, False, f"default: {made}")
    angle = f"default: 1 - T^2/2: what noise of relative size T leaves of the angle; {made}"
    assert cosine == Threshold("cosine_similarity", 1 - t * t / 2 - 1e-12, True, angle)
    element = "no element may leave the noise of the whole"
    said = f"default: T times 8*rms(golden) = 8: {element}; {made}"
    assert largest == Threshold("max_absolute_error", 8 * t, False, said)
    said = "default: NaN or Inf where golden is finite is never rounding"
    assert new == Threshold("new_nonfinite", 0.0, False, said)
    said = "default: a NaN or Inf of golden must appear in mine too"
    assert lost == Threshold("lost_nonfinite", 0.0, False, said)
    outlier = thresholds_for(context, build(golden_max_abs=100.0, **large))[1]
    said = f"default: T times max|golden| = 100: {element}; {made}"
    assert outlier == Threshold("max_absolute_error", 100 * t, False, said)
    small = thresholds_for(context, build(golden_rms=0.25, golden_max_abs=1.0, **large))[1]
    assert small.bound == 2 * t


def test_zeros_and_integers_say_why_they_are_bounded_as_they_are() -> None:
    zero = thresholds_for(JudgeContext(), build(golden_rms=0.0, golden_max_abs=0.0))[0]
    said = (
        "default: golden is all zero, so nothing is relative to it: the smallest normal float16 is the only "
        "value that flushing to zero can hide"
    )
    assert zero == Threshold("max_absolute_error", 2.0**-14, False, said)
    whole = thresholds_for(JudgeContext(), build(golden_dtype="int32", mine_dtype="int64"))
    said = "default: int32 values are exact: indices, masks, counts"
    assert whole == (Threshold("mismatches", 0.0, False, said),)


def test_a_float64_pair_that_agrees_is_not_failed_by_the_rounding_of_its_own_cosine() -> None:
    found = build(
        golden_dtype="float64",
        mine_dtype="float64",
        cosine_similarity=1 - 2e-15,
        relative_euclidean_distance=1e-15,
        max_absolute_error=1e-15,
    )
    assert judge(found, thresholds_for(JudgeContext(), found)).verdict == "pass"


def test_what_the_streaming_kernel_measures_is_judged_like_the_plain_definitions() -> None:
    golden, mine = golden_tensor(), golden_tensor() * 1.01
    mine[0, 0], golden[1, 1] = math.nan, math.inf
    by_kernel = measure(TensorSource(golden), TensorSource(mine))
    judged = judge(by_kernel, thresholds_for(FIRST_LAYER, by_kernel))
    plain = verdict(golden, mine)
    assert (
        failed(judged) == failed(plain) >= {"new_nonfinite", "lost_nonfinite", "relative_euclidean_distance"}
    )
    for one, other in zip(judged.checks, plain.checks):
        assert one.measured == pytest.approx(other.measured, rel=1e-6)
        assert one.allowed == pytest.approx(other.allowed, rel=1e-6)


def test_rounded_frequencies_of_position_tables_are_added_up_to_the_cap() -> None:
    found = measured(torch.ones(16, 8), torch.ones(16, 8))
    plain = tolerance_of(JudgeContext(), found)
    explained = tolerance_of(JudgeContext(rounded_frequencies=0.01), found)
    assert explained.value == pytest.approx(plain.value + 0.02)
    assert explained.rounding == plain.rounding
    assert explained.reason.endswith(" + 0.02 of position tables whose frequencies mine has rounded")
    assert tolerance_of(JudgeContext(rounded_frequencies=9.0), found).value == 0.25


def test_a_vector_has_no_tokens_that_differ() -> None:
    row, vector = (
        tolerance_of(JudgeContext(), measured(one, one)) for one in (torch.ones(1, 8), torch.ones(8))
    )
    assert row.value == pytest.approx(2 * vector.value)


def test_an_operator_alone_has_no_tokens_that_differ() -> None:
    found = measured(torch.ones(1, 8), torch.ones(1, 8))
    alone = tolerance_of(JudgeContext(written="float16"), found)
    assert tolerance_of(JudgeContext(), found).value == pytest.approx(2 * alone.value)


# `Judge`: two tensors in, what was measured and judged of them out.


GOLDEN = TensorSource(torch.ones(8))
MINE = TensorSource(torch.ones(8) + 3e-5)


def test_elements_are_counted_as_the_standard_wants_them_under_the_rules() -> None:
    rule = rule_from_table({"factor": 4, "match": {"mine_dtype": "float32"}}, "x.toml")
    for rules, factor, verdict in (((), 1, "fail"), ((rule,), 4, "pass")):
        measurement, judgement = Judge(rules, standard=STANDARDS["torch"]).tensors(
            JudgeContext(), GOLDEN, MINE
        )
        assert (measurement.rtol, measurement.atol) == pytest.approx((factor * 1.3e-6, factor * 1e-5))
        assert judgement.verdict == verdict


def test_custom_metrics_are_measured_and_judged() -> None:
    metric = CustomMetric("count", "x.py:count", lambda golden, mine: (golden.numel(), "elements"))
    rule = rule_from_table({"count": {"max": 7}}, "x.toml", ("count",))
    measurement, judgement = Judge((rule,), (metric,)).tensors(JudgeContext(), GOLDEN, GOLDEN)
    assert measurement.custom == {"count": (8.0, "elements")}
    assert judgement.sentence == "count 8 is 1.1 times the allowed 7"


def test_an_output_is_measured_as_the_type_that_its_operator_writes() -> None:
    context = JudgeContext(mine_op_type="SoftmaxOperation", written="float16", op_class="COMPUTE_FLOAT")
    golden, mine = TensorSource(torch.ones(4)), TensorSource(torch.ones(4) + 2.0**-9)
    measurement, judgement = Judge(standard=STANDARDS["ascend"]).tensors(context, golden, mine)
    assert measurement.elements is not None
    assert measurement.elements.max_ulp_error == 2.0  # of float16, whose steps at 1 are 2^-10
    assert {check.metric: check.allowed for check in judgement.checks}["max_scaled_error"] == 2.0**-8
    assert judgement.verdict == "pass"


def test_numbers_that_take_more_than_two_tensors_are_judged_too() -> None:
    context = JudgeContext(written="float16", op_class="COMPUTE_FLOAT")
    judge = Judge(standard=STANDARDS["distribution"])
    for p, verdict in ((0.01, "fail"), (0.5, "pass")):
        measurement, judgement = judge.tensors(context, GOLDEN, MINE, {"ks_p_value": p})
        assert measurement.further == {"ks_p_value": p}
        assert judgement.verdict == verdict


@pytest.mark.parametrize(("off", "times"), [(0.9999, 1), (1 - 1e-7, 2), (1.0, 2), (1 + 1e-7, 2), (1.0001, 1)])
def test_what_lies_within_rounding_of_a_bound_is_decided_in_float64(
    off: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    golden = torch.randn(64, 64)
    mine = golden + 1e-3 * torch.randn(64, 64)
    sides = TensorSource(golden), TensorSource(mine)
    exact = measure(*sides, double=True).mean_absolute_error
    assert exact is not None
    asked: list[bool] = []

    def watched(*sides: Source, double: bool = False, **options: Any) -> Measurement:
        asked.append(double)
        return measure(*sides, double=double, **options)

    monkeypatch.setattr(judges, "measure", watched)
    rule = rule_from_table({"mean_absolute_error": off * exact}, "x.toml")
    measurement, judgement = Judge((rule,)).tensors(JudgeContext(), *sides)
    assert asked == [False, True][:times]
    assert {check.metric: check.passed for check in judgement.checks}["mean_absolute_error"] == (off >= 1)
    assert times == 1 or measurement.mean_absolute_error == exact


def test_counts_of_whole_numbers_and_equal_tensors_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(*sides: Source, double: bool = False, **options: Any) -> Measurement:
        assert not double
        return measure(*sides, **options)

    monkeypatch.setattr(judges, "measure", once)
    rule = rule_from_table({"max_absolute_error": 0}, "x.toml")
    for golden in (torch.arange(8), torch.arange(8.0)):
        source = TensorSource(golden)
        assert Judge((rule,)).tensors(JudgeContext(), source, source)[1].verdict == "pass"


def test_elements_beside_nan_are_counted_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels differ in which elements they then compare with the tolerance in float32."""
    golden = torch.ones(64)
    golden[3] = torch.nan
    source = TensorSource(golden)
    asked: list[bool] = []

    def watched(*sides: Source, double: bool = False, **options: Any) -> Measurement:
        asked.append(double)
        return measure(*sides, double=double, **options)

    monkeypatch.setattr(judges, "measure", watched)
    Judge(standard=STANDARDS["torch"]).tensors(JudgeContext(), source, TensorSource(golden + 1e-6))
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("golden_mask", "mine_mask", "passes"),
    [
        (torch.finfo(torch.float32).min, torch.finfo(torch.float16).min, True),
        (torch.finfo(torch.float32).min, -math.inf, True),
        (-math.inf, torch.finfo(torch.float16).min, True),
        (torch.finfo(torch.float32).min, -1000.0, False),
        (-1000.0, torch.finfo(torch.float16).min, False),
    ],
)
def test_what_a_mask_hides_is_the_least_of_each_type(
    golden_mask: float, mine_mask: float, passes: bool
) -> None:
    golden = torch.randn(8, 64, generator=torch.Generator().manual_seed(3))
    mine = golden.half()
    golden[:, ::3], mine[:, ::3] = golden_mask, mine_mask
    measurement, judgement = Judge().tensors(JudgeContext(), TensorSource(golden), TensorSource(mine))
    assert (judgement.verdict == "pass") is passes
    if passes:
        assert measurement.compared == 8 * 42
    written = JudgeContext(written="float32", op_class="COMPUTE_FLOAT")
    _, judgement = Judge(standard=STANDARDS["ascend"]).tensors(
        written, TensorSource(golden), TensorSource(mine)
    )
    assert judgement.verdict == "fail", "an operator alone writes what it is to write"
    mine[2, 4] += 1.0
    _, judgement = Judge().tensors(JudgeContext(), TensorSource(golden), TensorSource(mine))
    assert judgement.verdict == "fail"


# Bounds without data: what the rules allow for a standard tensor, as text that can be kept and compared.


STATISTICS = statistics_scalars(build(golden_rms=3.0, golden_max_abs=50.0, numel=64, compared=64))
PLACE = JudgeContext(depth=3, length=4096, mine_op_type="Linear")
CONTEXT = context_scalars(PLACE)
T = 8 * (2.0**-11 + 64 * 2.0**-24) * 2
"""8 * (u + sqrt(K) * a) * sqrt(1 + depth), of a tensor that is no sample."""


def parsed(text: str) -> NominalBound:
    return NominalBound.parse(text)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("<= 0.005 default", NominalBound(0.005, False, "default")),
        (">= 0.99 set by x.toml (why)", NominalBound(0.99, True, "set by x.toml (why)")),
        ("off by me", NominalBound(math.inf, False, "by me")),
    ],
)
def test_a_bound_reads_as_it_was_written(text: str, bound: NominalBound) -> None:
    assert parsed(text) == bound
    assert str(bound) == text


def test_off_needs_no_rule() -> None:
    assert parsed("off") == NominalBound(math.inf, False, "")


@pytest.mark.parametrize("text", ["< 0.1 x", "offside", "0.1", ""])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parsed(text)
    assert str(caught.value) == f"a bound must look like '<= 0.005 default', got {text!r}"


@pytest.mark.parametrize(
    ("before", "now", "times"),
    [
        ("<= 0.01 a", "<= 0.02 b", 2.0),
        ("<= 0.01 a", "<= 0.01 b", 1.0),
        ("<= 0.0 a", "<= 0.0 a", 1.0),
        ("<= 0.0 a", "<= 1.0 a", math.inf),
        ("<= 1.0 a", "<= 0.0 a", 0.0),
        ("<= 0.01 a", "off a", math.inf),
        ("off a", "<= 0.01 a", 0.0),
        ("off a", "off a", 1.0),
        (">= 0.99 a", ">= 0.96 a", 2.0),
        (">= 1.0 a", ">= 1.0 a", 1.0),
        (">= 1.0 a", ">= 0.5 a", math.inf),
        (">= 30.0 a", ">= 20.0 a", math.inf),
        (">= 20.0 a", ">= 30.0 a", 0.0),
        (">= 30.0 a", ">= 30.0 a", 1.0),
        (">= 0.9 a", "<= 0.9 a", math.inf),
    ],
)
def test_how_many_times_more_is_allowed(before: str, now: str, times: float) -> None:
    assert parsed(now).looser_than(parsed(before)) == pytest.approx(times)


def test_nominal_bounds_do_not_depend_on_the_data_but_on_dtype_depth_and_rules() -> None:
    bounds = nominal_bounds(CONTEXT, STATISTICS, ())
    assert bounds == {
        "cosine_similarity": f">= {1 - T * T / 2 - 1e-12!r} default",
        "max_absolute_error": f"<= {T!r} default",
        "relative_euclidean_distance": f"<= {T!r} default",
        "new_nonfinite": "<= 0.0 default",
        "lost_nonfinite": "<= 0.0 default",
    }
    other = statistics_scalars(build(golden_rms=0.0, golden_max_abs=0.0, numel=9999, compared=9000))
    assert nominal_bounds(CONTEXT, other, ()) == bounds
    assert nominal_bounds(CONTEXT, {**STATISTICS, "mine_dtype": "bfloat16"}, ()) != bounds


@pytest.mark.parametrize("peak", [0.0, 100.0])
def test_bounds_on_statistics_are_those_of_a_tensor_of_rms_one(peak: float) -> None:
    golden = Statistics(peak, -peak, 0.5 * peak, 3 * peak)
    stated = measure_statistics(golden, golden, numel=7, golden_dtype="float16", mine_dtype="float16")
    bounds = {
        name: parsed(text) for name, text in nominal_bounds(CONTEXT, stated_scalars(stated), ()).items()
    }
    assert {name: bound.bound for name, bound in bounds.items()} == {
        "max_stat_absolute_error": pytest.approx(8 * T + 1e-6),
        "min_stat_absolute_error": pytest.approx(8 * T + 1e-6),
        "mean_stat_absolute_error": pytest.approx(T + 1e-6),
        "l2norm_stat_relative_error": pytest.approx(T + 1e-6 / 2**20),
    }
    assert {bound.rule for bound in bounds.values()} == {"default"}
    twice = rule_from_table({"factor": 2, "match": {"mine_dtype": "float16"}}, "f.toml")
    scaled = parsed(nominal_bounds(CONTEXT, stated_scalars(stated), [twice])["mean_stat_absolute_error"])
    assert (scaled.bound, scaled.rule) == (pytest.approx(2 * T + 1e-6), "default, factor 2 from f.toml")


@pytest.mark.parametrize("total", [0.0, 3.0, 4e5])
def test_bounds_on_a_sum_of_absolute_values_do_not_depend_on_the_sum(total: float) -> None:
    golden = Statistics(None, None, None, None, l1norm=total)
    mine = Statistics(None, None, None, None, l1norm=total + 1)
    stated = measure_statistics(golden, mine, numel=7, golden_dtype="float16", mine_dtype="float16")
    bounds = {
        name: parsed(text).bound for name, text in nominal_bounds(CONTEXT, stated_scalars(stated), ()).items()
    }
    normal = math.sqrt(math.pi / 2)
    expected = {"l1norm_stat_relative_error": pytest.approx(T * normal + 1e-6 * normal / NO_SAMPLE)}
    assert bounds == expected


def test_rows_and_channels_are_bounded_where_they_were_measured() -> None:
    """Without a bound of the data: by T, without scatter, and one rounding of the bias."""
    sliced = build(shape=(64, 64), numel=4096, slices=SliceErrors(bias=0.3, bias_deviation=0.1))
    bounds = {
        name: parsed(text).bound
        for name, text in nominal_bounds(CONTEXT, statistics_scalars(sliced), ()).items()
    }
    scatter = math.exp(3.72 / 2**10)
    assert bounds["typical_row_error"] == bounds["bulk_error"] == pytest.approx(2 * T)
    assert bounds["worst_row_error"] == bounds["worst_channel_error"] == pytest.approx(4 * T * scatter)
    assert bounds["bias"] == pytest.approx(2.0**-11 + 64 * 2.0**-24)


def test_bounds_of_a_noise_run_are_those_of_one_that_is_off_by_a_hundredth() -> None:
    noisy = JudgeContext(
        depth=3,
        noise_error=0.2,
        noise_max_absolute_error=9.0,
        noise_mismatches=5,
        noise_new_nonfinite=6,
        noise_lost_nonfinite=7,
        noise_dtype="float16",
    )
    standard = STANDARDS["three-way"]
    texts = nominal_bounds(context_scalars(noisy), STATISTICS, (), standard)
    bounds = {name: parsed(text).bound for name, text in texts.items()}
    assert bounds["relative_euclidean_distance"] == pytest.approx(3 * 0.01, rel=1e-4)
    assert bounds["max_absolute_error"] == pytest.approx(5 * 0.01, rel=1e-4)
    assert (bounds["new_nonfinite"], bounds["lost_nonfinite"]) == (0.0, 0.0)
    whole = statistics_scalars(build(golden_dtype="int64", mine_dtype="int64", golden_rms=None))
    assert nominal_bounds(context_scalars(noisy), whole, (), standard) == {"mismatches": "<= 0.0 three-way"}


def test_nominal_bounds_name_the_rule_they_come_from() -> None:
    factor = rule_from_table({"factor": 2}, "f.toml")
    bound = rule_from_table(
        {"relative_euclidean_distance": 0.1, "kl_divergence": 3, "cosine_similarity": False}, "b.toml"
    )
    scaled = nominal_bounds(CONTEXT, STATISTICS, [factor])
    assert scaled["relative_euclidean_distance"] == f"<= {2 * T!r} default, factor 2 from f.toml"
    bounds = nominal_bounds(CONTEXT, STATISTICS, [bound])
    assert bounds["relative_euclidean_distance"] == "<= 0.1 set by b.toml"
    assert bounds["kl_divergence"] == "<= 3.0 set by b.toml"
    assert bounds["max_absolute_error"] == "<= 0.1 default, T = 0.1 set by b.toml"
    assert bounds["cosine_similarity"] == "off switched off by b.toml"


def test_what_cannot_be_judged_has_no_nominal_bounds() -> None:
    assert nominal_bounds(CONTEXT, {}, ()) == {}
    blind = rule_from_table({"relative_euclidean_distance": False, "max_absolute_error": False}, "b.toml")
    assert nominal_bounds(CONTEXT, STATISTICS, [blind]) == {}
