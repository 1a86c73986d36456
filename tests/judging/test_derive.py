"""The default thresholds catch what they must and let rounding pass."""

from __future__ import annotations

import math

import pytest
import torch

from acc_pytest.judging.derive import tolerance_of
from acc_pytest.judging.threshold import JudgeContext, Threshold
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import Judgement, judge
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import NonFinite
from acc_pytest.tensors.source import TensorSource

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
