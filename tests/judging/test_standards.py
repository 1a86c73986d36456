"""Standards by name: their tables, what they fall back to, and what their reasons say."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.base.vocabulary import COMPARISON_STANDARDS
from acc_pytest.errors import Incomparable
from acc_pytest.judging.rules import rule_from_marker
from acc_pytest.judging.standards import STANDARDS, THREE_WAY, Adjustment
from acc_pytest.judging.standards.ascend import class_by_name, op_class
from acc_pytest.judging.threshold import JudgeContext, Threshold, ThresholdRule
from acc_pytest.judging.thresholds import element_tolerance, thresholds_for
from acc_pytest.judging.tolerance import CAP
from acc_pytest.judging.verdict import Judgement, judge
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import Measurement
from acc_pytest.operators import known, operator_of
from acc_pytest.tensors.source import TensorSource

from .plain import build

approx: Any = pytest.approx  # stands where a bound does

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
LINEAR = JudgeContext(mine_op_type="LinearOperation", golden_op_type="Linear", level="op", depth=3)
MODULE = JudgeContext(mine_op_type="Linear", golden_op_type="Linear", level="op")


def measured(
    golden: torch.Tensor, mine: torch.Tensor, name: str = "default", *rules: ThresholdRule
) -> Measurement:
    """Measured as the standard `name` wants elements counted."""
    dtypes = str(golden.dtype).removeprefix("torch."), str(mine.dtype).removeprefix("torch.")
    wanted = element_tolerance(MODULE, dtypes, rules, STANDARDS[name])
    return measure(TensorSource(golden), TensorSource(mine), tolerance=wanted)


def verdict(
    name: str, context: JudgeContext, golden: torch.Tensor, mine: torch.Tensor, *rules: ThresholdRule
) -> Judgement:
    measurement = measured(golden, mine, name, *rules)
    return judge(measurement, thresholds_for(context, measurement, rules, STANDARDS[name]))


def bounds(name: str, context: JudgeContext, golden: torch.Tensor, mine: torch.Tensor) -> dict[str, float]:
    measurement = measured(golden, mine, name)
    return {t.metric: t.bound for t in thresholds_for(context, measurement, (), STANDARDS[name])}


def noisy(golden: torch.Tensor, size: float, dtype: torch.dtype, seed: int) -> torch.Tensor:
    noise = torch.randn(golden.shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return (golden.double() * (1 + size * noise)).to(dtype)


@pytest.mark.parametrize(
    ("one", "other"), list(itertools.product((HALF, BRAIN, SINGLE, DOUBLE), repeat=2)), ids=str
)
def test_torch_agrees_with_assert_close(one: torch.dtype, other: torch.dtype) -> None:
    verdicts = set()
    for seed, exponent in enumerate(range(-26, -2, 2)):
        golden = torch.randn(40, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).to(one)
        mine = noisy(golden, 2.0**exponent, other, seed + 100)
        try:
            torch.testing.assert_close(mine, golden, check_dtype=False, equal_nan=True)
            wanted = "pass"
        except AssertionError:
            wanted = "fail"
        assert verdict("torch", MODULE, golden, mine).verdict == wanted, exponent
        verdicts.add(wanted)
    assert verdicts == {"pass", "fail"}, "both sides of the tolerance are tried"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_torch_takes_nan_and_infinities_as_assert_close_with_equal_nan(value: float) -> None:
    golden, mine = torch.tensor([1.0, value]), torch.tensor([1.0, value])
    assert verdict("torch", MODULE, golden, mine).verdict == "pass"
    assert verdict("torch", MODULE, torch.tensor([1.0, 2.0]), mine).verdict == "fail"
    assert verdict("torch", MODULE, golden, torch.tensor([1.0, 2.0])).verdict == "fail"


@pytest.mark.parametrize("name", COMPARISON_STANDARDS)
def test_tensors_without_a_finite_element_pass_where_they_agree_whatever_a_rule_bounds(name: str) -> None:
    golden = torch.full((4,), math.nan)
    rule = rule_from_marker({"max_absolute_error": 1.0}, "test_x")
    assert verdict(name, LINEAR, golden, golden.clone(), rule).verdict == "pass"
    assert verdict(name, LINEAR, golden, torch.ones(4), rule).verdict == "fail"


def test_torch_wants_integers_equal() -> None:
    golden = torch.tensor([1, 2, 3])
    assert verdict("torch", MODULE, golden, golden.clone()).verdict == "pass"
    assert verdict("torch", MODULE, golden, golden + 1).verdict == "fail"


def test_a_factor_widens_torchs_tolerances_and_an_old_count_is_not_used_for_it() -> None:
    golden = torch.ones(8)
    mine = golden + 3e-5
    twice = rule_from_marker({"factor": 4, "reason": "TF32"}, "test_x")
    assert verdict("torch", MODULE, golden, mine).verdict == "fail"
    found = verdict("torch", MODULE, golden, mine, twice)
    assert found.verdict == "pass"
    assert "atol 4e-05 + rtol 5.2e-06" in found.checks[0].reason
    assert "times 4 from marker acc_threshold on test_x (TF32)" in found.checks[0].reason
    with pytest.raises(Incomparable, match="compare the dumps again"):
        thresholds_for(MODULE, measured(golden, mine), (twice,), STANDARDS["torch"])
    with pytest.raises(Incomparable) as caught:
        thresholds_for(MODULE, build(rtol=1e-3, atol=2e-5), (), STANDARDS["torch"])
    assert str(caught.value) == (
        "elements were counted with rtol 0.001 and atol 2e-05, and the standard torch wants rtol 0.001 and "
        "atol 1e-05; compare the dumps again"
    )


@pytest.mark.parametrize(
    ("dtype", "length", "bound"),
    [
        (HALF, 2047, 2.0**-8),
        (HALF, 2048, 2.0**-7),
        (BRAIN, 64, 2.0**-7),
        (BRAIN, 4096, 2.0**-6),
        (SINGLE, 64, 2.0**-11),
        (SINGLE, 2048, 2.0**-10),
        (SINGLE, 16384, 2.0**-9),
    ],
    ids=str,
)
def test_ascend_has_atbs_row_of_a_linear(dtype: torch.dtype, length: int, bound: float) -> None:
    """The numbers are those of the specification's table (COMPUTE_FLOAT)."""
    golden = torch.ones(4, dtype=SINGLE)
    found = bounds("ascend", replace(LINEAR, length=length), golden, golden.to(dtype))
    assert found == {"max_scaled_error": bound, "new_nonfinite": 0.0, "lost_nonfinite": 0.0}


def test_ascend_is_absolute_below_one_and_relative_above() -> None:
    golden = torch.tensor([0.0, 0.5, 100.0], dtype=HALF)
    assert (
        verdict("ascend", LINEAR, golden, golden + torch.tensor([2.0**-8, 2.0**-8, 0.375]).half()).verdict
        == "pass"
    )
    assert verdict("ascend", LINEAR, golden, golden + torch.tensor([2.0**-7, 0, 0]).half()).verdict == "fail"
    assert verdict("ascend", LINEAR, golden, golden + torch.tensor([0, 0, 0.5]).half()).verdict == "fail"


@pytest.mark.parametrize(
    ("dtype", "t"),
    [(HALF, 2.0**-10), (BRAIN, 2.0**-7), (SINGLE, 2.0**-13), (torch.float8_e4m3fn, 2.0**-3)],
    ids=str,
)
def test_ascend_has_the_open_standards_row_where_no_operator_of_atb_is_known(
    dtype: torch.dtype, t: float
) -> None:
    golden = torch.ones(4)
    found = bounds("ascend", MODULE, golden, golden.to(dtype))
    assert (found["mean_relative_error"], found["max_relative_error"]) == (t, 10 * t)


@pytest.mark.parametrize(
    ("context", "why"),
    [
        (replace(LINEAR, mine_op_type="SplitOperation"), "MOVE is exact on equal inputs"),
        (replace(LINEAR, level="layer"), "this is a layer"),
        (replace(LINEAR, level="module"), "this is a module"),
    ],
)
def test_ascend_falls_back_to_the_derived_t_where_its_tables_mean_nothing(
    context: JudgeContext, why: str
) -> None:
    golden = torch.randn(64, generator=torch.Generator().manual_seed(1))
    mine = noisy(golden, 1e-4, HALF, 2)
    found = {t.metric: t for t in thresholds_for(context, measured(golden, mine), (), STANDARDS["ascend"])}
    derived = {t.metric: t.bound for t in thresholds_for(context, measured(golden, mine))}
    assert {metric: t.bound for metric, t in found.items()} == derived
    assert why in found["relative_euclidean_distance"].reason


TWICE = Adjustment(2.0, "x.toml")
LARGE = {"numel": 2**40, "compared": 2**40}
"""So large that it is no sample."""


@pytest.mark.parametrize(
    ("operator", "length", "dtype", "times", "row"),
    [
        ("LinearOperation", 64, "float16", 2.0**-8, "float16, sums of 64: every element within 2^-8"),
        (
            "LinearParallelOperation",
            1024,
            "float16",
            2.0**-7,
            "float16, sums of 2048: every element within 2^-7",
        ),
        ("SoftmaxOperation", 4096, "float64", 2.0**-11, "float64: every element within 2^-11"),
        ("SoftmaxOperation", None, "complex32", 2.0**-8, "float16: every element within 2^-8"),
        ("SoftmaxOperation", None, "complex128", 2.0**-11, "float64: every element within 2^-11"),
    ],
)
def test_ascend_takes_the_row_of_class_type_and_sums(
    operator: str, length: int | None, dtype: str, times: float, row: str
) -> None:
    context = JudgeContext(mine_op_type=operator, length=length, depth=1)
    bound, *counts = STANDARDS["ascend"].thresholds(
        context, build(golden_dtype=dtype, mine_dtype=dtype), TWICE
    )
    assert bound == Threshold(
        "max_scaled_error",
        2 * times,
        False,
        f"ATB's row COMPUTE_FLOAT, {row}*max(1,|golden|), for one operator on equal inputs "
        "(1 layer before not forgiven), times 2 from x.toml",
    )
    assert [threshold.metric for threshold in counts] == ["new_nonfinite", "lost_nonfinite"]


@pytest.mark.parametrize(
    ("operator", "dtype", "t", "power"),
    [("", "float16", 2.0**-10, "2^-10"), ("SoftmaxOperation", "float8_e5m2", 2.0**-2, "2^-2")],
)
def test_ascend_takes_the_open_row_where_its_own_table_has_none(
    operator: str, dtype: str, t: float, power: str
) -> None:
    context, measurement = JudgeContext(mine_op_type=operator), build(mine_dtype=dtype)
    row = f"the open standard's row {dtype}, T = {power}"
    rest = "for one operator on equal inputs (0 layers before not forgiven), times 2 from x.toml"
    assert STANDARDS["ascend"].thresholds(context, measurement, TWICE)[:2] == (
        Threshold("mean_relative_error", 2 * t, False, f"{row}: mean relative error up to T, {rest}"),
        Threshold("max_relative_error", 20 * t, False, f"{row}: largest relative error up to 10 T, {rest}"),
    )


@pytest.mark.parametrize(
    ("context", "fields", "why"),
    [
        (
            LINEAR,
            {"golden_rms": 0.0, "golden_max_abs": 0.0},
            "the tables bound no tensor of zeros; golden is",
        ),
        (JudgeContext(), {"golden_dtype": "float64", "mine_dtype": "float64"}, "no row for float64; 1 - T"),
    ],
)
def test_ascend_says_why_its_tables_are_silent(
    context: JudgeContext, fields: dict[str, object], why: str
) -> None:
    thresholds = STANDARDS["ascend"].thresholds(context, build(**fields), Adjustment())
    assert thresholds[0].reason.startswith(why)


def test_ascend_gives_what_quantises_one_step_and_other_integers_none() -> None:
    context = JudgeContext(golden_op_type="SwigluQuantOperation")
    small, large = ({"golden_dtype": name, "mine_dtype": name} for name in ("int8", "int32"))
    assert STANDARDS["ascend"].thresholds(context, build(**small), TWICE) == (
        Threshold(
            "max_absolute_error",
            2.0,
            False,
            "COMPUTE_QUANT, int8: one step of the quantised value, times 2 from x.toml",
        ),
    )
    for other, fields in ((context, large), (LINEAR, small), (JudgeContext(), small)):
        (bound,) = STANDARDS["ascend"].thresholds(other, build(**fields), TWICE)
        assert (bound.metric, bound.bound) == ("mismatches", 0.0)


@pytest.mark.parametrize(
    ("depth", "mine", "rows", "before"),
    [(1, "float16", "float16", "1 layer"), (2, "float32", "float16 and float32", "2 layers")],
)
def test_torch_says_its_row(depth: int, mine: str, rows: str, before: str) -> None:
    measurement = build(mine_dtype=mine, rtol=2e-3, atol=2e-5)
    bound = STANDARDS["torch"].thresholds(JudgeContext(depth=depth), measurement, TWICE)[0]
    assert bound == Threshold(
        "beyond_fraction",
        0.0,
        False,
        f"assert_close's row {rows}: every element within atol 2e-05 + rtol 0.002*|golden| "
        f"({before} before not forgiven), times 2 from x.toml",
    )


def test_the_class_without_parameters_is_the_loosest_of_those_with_them() -> None:
    """By the order of the table: exact, VECTOR_FUSION, then what computes; of default parameters at least."""
    order = {"VECTOR_FUSION": 1, "COMPUTE_FLOAT": 2, "COMPUTE_QUANT": 2}
    for name in known():
        defaults = op_class(name, operator_of(name).defaults())
        assert order.get(class_by_name(name), 0) >= order.get(defaults, 0), name


@pytest.mark.parametrize("name", ["ascend", "torch", "three-way"])
def test_a_new_nan_fails_under_every_standard(name: str) -> None:
    golden = torch.ones(100, dtype=HALF)
    mine = golden.clone()
    mine[3] = math.nan
    assert verdict(name, LINEAR, golden, mine).verdict == "fail"


@pytest.mark.parametrize("name", COMPARISON_STANDARDS)
def test_every_reason_starts_with_the_standard_and_rules_lie_over_it(name: str) -> None:
    golden = torch.randn(256, generator=torch.Generator().manual_seed(3))
    mine = noisy(golden, 1e-4, HALF, 4)
    measurement = measured(golden, mine, name)
    thresholds = thresholds_for(LINEAR, measurement, (), STANDARDS[name])
    assert all(threshold.reason.startswith(f"{name}: ") for threshold in thresholds)
    rule = rule_from_marker({"max_absolute_error": 0.5, "reason": "mine"}, "test_x")
    found = {t.metric: t for t in thresholds_for(LINEAR, measurement, (rule,), STANDARDS[name])}
    assert found["max_absolute_error"].bound == 0.5
    assert found["max_absolute_error"].reason == "set by marker acc_threshold on test_x (mine)"


def noise_context(golden: torch.Tensor, noise: torch.Tensor) -> JudgeContext:
    """The context of a pair whose noise run is `noise`, by float64 NumPy."""
    g, n = (side.double().numpy() for side in (golden, noise))
    return replace(
        LINEAR,
        noise_error=float(np.linalg.norm(n - g) / np.linalg.norm(g)),
        noise_max_absolute_error=float(np.abs(n - g).max()),
        noise_dtype=str(noise.dtype).removeprefix("torch."),
    )


def test_three_way_allows_three_times_the_noise_runs_own_error() -> None:
    golden = torch.randn(200_000, generator=torch.Generator().manual_seed(5))
    noise = noisy(golden, 0.02, HALF, 6)
    context = noise_context(golden, noise)
    found = bounds("three-way", context, golden, noise)
    own, largest = context.noise_error or 0.0, context.noise_max_absolute_error or 0.0
    assert found["relative_euclidean_distance"] == approx(3 * own, rel=0.01)  # 1.008 is scatter
    assert found["max_absolute_error"] == approx(5 * largest, rel=0.01)
    assert verdict("three-way", context, golden, noisy(golden, 0.055, HALF, 7)).verdict == "pass"
    assert verdict("three-way", context, golden, noisy(golden, 0.065, HALF, 7)).verdict == "fail"


NOISE = JudgeContext(
    length=64,
    depth=1,
    noise_error=0.01,
    noise_max_absolute_error=0.05,
    noise_dtype="float16",
    noise_new_nonfinite=2,
    noise_lost_nonfinite=3,
    noise_mismatches=5,
)


def test_three_way_says_what_its_bounds_are_made_of() -> None:
    scatter = math.exp(3.72 / 10)
    cosine, largest, distance, new, lost = THREE_WAY.thresholds(NOISE, build(compared=100), TWICE)
    t = 3 * scatter * 2 * 0.01
    made = (
        "T = 3*1.45 (scatter of 100 elements) times the noise run (float16)'s own error 0.01, "
        "times 2 from x.toml = 0.087"
    )
    assert distance == Threshold("relative_euclidean_distance", approx(t), False, made)
    angle = f"1 - T^2/2: what noise of relative size T leaves of the angle; {made}"
    assert cosine == Threshold("cosine_similarity", approx(1 - t * t / 2, abs=1e-11), True, angle)
    element = (
        "5*1.45 (scatter of 100 elements) times the noise run (float16)'s largest error 0.05, "
        "times 2 from x.toml"
    )
    assert largest == Threshold("max_absolute_error", approx(5 * scatter * 2 * 0.05), False, element)
    said = "as many NaN or Inf where golden has none as the noise run has: 2"
    assert new == Threshold("new_nonfinite", 2.0, False, said)
    said = "as many NaN or Inf missing where golden has them as the noise run has: 3"
    assert lost == Threshold("lost_nonfinite", 3.0, False, said)
    whole = THREE_WAY.thresholds(NOISE, build(golden_dtype="int8", mine_dtype="int8"), TWICE)
    assert whole == (Threshold("mismatches", 15.0, False, "3 times the 5 of the noise run"),)
    assert THREE_WAY.thresholds(NOISE, build(golden_max_abs=None), TWICE) == (new, lost)


def test_three_way_says_where_a_floor_is_more() -> None:
    right = replace(NOISE, noise_error=0.0, noise_max_absolute_error=0.0)
    tiny = build(golden_rms=2.0**-16, golden_max_abs=2.0**-15, **LARGE)
    floor = "T = u = 0.00195, the spacing of subnormal float16 against rms 1.5e-05"
    _, largest, distance, *_ = THREE_WAY.thresholds(right, tiny, Adjustment())
    assert (distance.bound, largest.bound) == (2.0**-9, 2.0**-24)
    own = "T = 3 times the noise run (float16)'s own error 0 = 0"
    assert distance.reason == f"{floor}, which is more than {own}"
    most = "5 times the noise run (float16)'s largest error 0"
    assert largest.reason == f"{floor}, which allows an element more than {most}"

    fine = replace(NOISE, noise_error=0.001, noise_max_absolute_error=0.001, noise_dtype="float32")
    _, largest, distance, *_ = THREE_WAY.thresholds(fine, build(**LARGE), Adjustment())
    t = 8 * (2.0**-11 + 8 * 2.0**-24) * math.sqrt(2)
    assert (distance.bound, largest.bound) == (approx(t), approx(8 * t))
    assert distance.reason.startswith(
        "a noise run in float32 does not show the rounding of float16: T = 8*(u"
    )
    unknown = replace(fine, noise_dtype="")
    reason = THREE_WAY.thresholds(unknown, build(**LARGE), Adjustment())[2].reason
    assert reason.startswith("a noise run in whole numbers does not show the rounding of float16: T = 8*(u")

    zero = build(golden_rms=0.0, golden_max_abs=0.0, **LARGE)
    for context, shown, bound in ((NOISE, "0.05", 0.25), (right, "0", 2.0**-14)):
        largest = THREE_WAY.thresholds(context, zero, Adjustment())[0]
        assert largest.bound == approx(bound, rel=1e-5)
        assert largest.reason == (
            f"golden is all zero; 5 times the noise run (float16)'s largest error {shown}, "
            "at least the smallest normal float16"
        )


def test_three_way_is_never_below_the_rounding_of_the_output() -> None:
    golden = torch.randn(200_000, generator=torch.Generator().manual_seed(8))
    context = replace(LINEAR, noise_error=0.0, noise_max_absolute_error=0.0, noise_dtype="float16")
    measurement = measured(golden, golden.half())
    found = {t.metric: t for t in thresholds_for(context, measurement, (), THREE_WAY)}
    assert found["relative_euclidean_distance"].bound == 2.0**-11
    assert "the rounding of float16" in found["relative_euclidean_distance"].reason
    assert judge(measurement, tuple(found.values())).verdict == "pass"


def test_three_way_gives_small_tensors_more() -> None:
    golden = torch.randn(10, generator=torch.Generator().manual_seed(9))
    noise = noisy(golden, 0.02, HALF, 10)
    context = noise_context(golden, noise)
    found = bounds("three-way", context, golden, noise)["relative_euclidean_distance"]
    assert found / (context.noise_error or 0.0) == approx(3 * math.exp(3.72 / math.sqrt(10)))


def test_a_noise_run_in_a_finer_type_leaves_the_derived_t() -> None:
    golden = torch.randn(4096, generator=torch.Generator().manual_seed(11))
    mine = noisy(golden, 1e-3, HALF, 12)
    context = noise_context(golden, noisy(golden, 1e-6, SINGLE, 13))
    derived = {t.metric: t.bound for t in thresholds_for(LINEAR, measured(golden, mine))}
    found = {t.metric: t for t in thresholds_for(context, measured(golden, mine), (), THREE_WAY)}
    assert {metric: t.bound for metric, t in found.items()} == derived
    assert "does not show the rounding of float16" in found["relative_euclidean_distance"].reason


@pytest.mark.parametrize(("size", "shows"), [(0.0, False), (1e-6, False), (1e-2, True)])
def test_a_noise_run_that_is_hardly_off_does_not_show_what_a_tensor_was_computed_from(
    size: float, shows: bool
) -> None:
    """Tables in float32 of rounded frequencies: the noise run computed them exactly."""
    golden = torch.randn(4096, generator=torch.Generator().manual_seed(11))
    noise = noisy(golden, size, SINGLE, 13)
    context = replace(noise_context(golden, noise), computed_in="float16")
    found = {t.metric: t for t in thresholds_for(context, measured(golden, noise), (), THREE_WAY)}
    said = f"a noise run that is off by {context.noise_error:.3g} does not show the rounding of float16"
    assert (said in found["relative_euclidean_distance"].reason) is not shows
    if not shows:
        plain = replace(LINEAR, computed_in="float16")
        derived = {t.metric: t.bound for t in thresholds_for(plain, measured(golden, noise))}
        assert {metric: t.bound for metric, t in found.items()} == derived


def test_without_a_counterpart_in_the_noise_run_the_derived_t_stands_and_says_why() -> None:
    golden = torch.randn(64, generator=torch.Generator().manual_seed(14))
    measurement = measured(golden, golden.half())
    context = replace(LINEAR, noise_reason="the noise run did not dump it")
    found = {t.metric: t for t in thresholds_for(context, measurement, (), THREE_WAY)}
    assert {m: t.bound for m, t in found.items()} == {
        t.metric: t.bound for t in thresholds_for(LINEAR, measurement)
    }
    reason = found["relative_euclidean_distance"].reason
    assert reason.startswith("three-way: the noise run did not dump it; T = ")


def test_a_tensor_that_the_noise_run_lacks_may_have_three_times_the_noise_around_it() -> None:
    golden = torch.randn(64, generator=torch.Generator().manual_seed(14))
    measurement = measured(golden, golden.half())
    derived = {t.metric: t for t in thresholds_for(LINEAR, measurement)}

    def t_of(nearby: float, *rules: ThresholdRule) -> Threshold:
        context = replace(LINEAR, noise_reason="it is not there", noise_nearby=nearby)
        found = {t.metric: t for t in thresholds_for(context, measurement, rules, THREE_WAY)}
        return found["relative_euclidean_distance"]

    assert t_of(0.05).bound == approx(0.15)
    said = "three-way: it is not there; T = 3 times the noise run's error 0.05 around it = 0.15"
    assert t_of(0.05).reason.startswith(said)
    assert t_of(0.2).bound == 0.25, "never more than the cap"
    assert t_of(1e-6).bound == derived["relative_euclidean_distance"].bound
    factor = rule_from_marker({"factor": 1.5}, "test_x")
    assert t_of(0.05, factor).bound == approx(0.225)
    assert "around it, times 1.5 from marker acc_threshold on test_x = 0.225" in t_of(0.05, factor).reason


@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=str)
@pytest.mark.parametrize("numel", [1, 2, 7, 500])
def test_the_noise_run_itself_always_passes_three_way(dtype: torch.dtype, numel: int) -> None:
    """Whatever its error, up to the cap of T."""
    for seed, size in itertools.product(range(4), (1e-6, 1e-2, 0.5, 3.0)):
        golden = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
        noise = noisy(golden, size, dtype, seed + 50)
        context = noise_context(golden, noise)
        if (context.noise_error or 0.0) <= CAP:
            assert verdict("three-way", context, golden, noise).verdict == "pass"


def test_a_noise_run_beyond_the_cap_measures_nothing() -> None:
    """A broken noise run (masks of another kind) is off by 100 %: what is wrong does not pass for it."""
    golden = torch.randn(64, 64, generator=torch.Generator().manual_seed(5))
    context = noise_context(golden, noisy(golden, 1.0, HALF, 6))
    wrong = noisy(golden, 0.2, HALF, 7)
    assert verdict("three-way", context, golden, wrong).verdict == "fail"
    assert verdict("three-way", context, golden, golden.half()).verdict == "pass"
    bound = thresholds_for(context, measured(golden, wrong), (), THREE_WAY)
    derived = thresholds_for(replace(context, noise_error=None), measured(golden, wrong))
    assert [each.bound for each in bound] == [each.bound for each in derived]
    assert "off by" in bound[0].reason
    assert "beyond 0.25: it measures nothing here" in bound[0].reason


def test_t_of_a_noise_run_ends_at_the_cap() -> None:
    golden = torch.randn(64, 64, generator=torch.Generator().manual_seed(5))
    context = noise_context(golden, noisy(golden, 0.2, HALF, 6))
    found = {t.metric: t for t in thresholds_for(context, measured(golden, golden.half()), (), THREE_WAY)}
    assert found["relative_euclidean_distance"].bound == CAP
    assert found["relative_euclidean_distance"].reason.endswith("capped at 0.25")


def test_noise_beyond_all_numbers_does_not_switch_the_bounds_off() -> None:
    golden = torch.randn(64, generator=torch.Generator().manual_seed(17))
    context = replace(LINEAR, noise_error=1e308, noise_max_absolute_error=math.inf, noise_dtype="float16")
    measurement = measured(golden, golden.half())
    assert not any(t.off for t in thresholds_for(context, measurement, (), THREE_WAY))


def test_three_way_allows_the_nan_and_the_flipped_integers_that_the_noise_run_has() -> None:
    golden = torch.ones(100, dtype=SINGLE)
    mine = golden.half()
    mine[:2] = math.inf
    context = replace(LINEAR, noise_error=1e-4, noise_max_absolute_error=1e-4, noise_dtype="float16")
    assert verdict("three-way", replace(context, noise_new_nonfinite=2), golden, mine).verdict == "pass"
    assert verdict("three-way", replace(context, noise_new_nonfinite=1), golden, mine).verdict == "fail"
    index = torch.arange(100)
    flipped = index.clone()
    flipped[:3] += 1
    counted = replace(LINEAR, noise_error=0.0, noise_mismatches=1)
    assert verdict("three-way", counted, index, flipped).verdict == "pass"
    assert verdict("three-way", replace(counted, noise_mismatches=0), index, flipped).verdict == "fail"


def test_golden_all_zero_allows_what_the_noise_run_makes_of_it() -> None:
    golden = torch.zeros(100)
    mine = torch.full((100,), 4e-4, dtype=HALF)
    context = replace(LINEAR, noise_error=0.0, noise_max_absolute_error=1e-4, noise_dtype="float16")
    assert verdict("three-way", context, golden, mine).verdict == "pass"
    assert (
        verdict("three-way", replace(context, noise_max_absolute_error=0.0), golden, mine).verdict == "fail"
    )


def test_a_rule_that_sets_t_sets_it_under_three_way_too() -> None:
    golden = torch.randn(4096, generator=torch.Generator().manual_seed(15))
    context = noise_context(golden, noisy(golden, 0.2, HALF, 16))
    rule = rule_from_marker({"relative_euclidean_distance": 0.01}, "test_x")
    found = {
        t.metric: t for t in thresholds_for(context, measured(golden, golden.half()), (rule,), THREE_WAY)
    }
    assert found["relative_euclidean_distance"].bound == 0.01
    assert found["cosine_similarity"].bound == approx(1 - 0.01**2 / 2)


def test_a_given_t_allows_the_bias_an_eighth_of_it_and_at_least_one_rounding() -> None:
    golden = torch.randn(64, 64, generator=torch.Generator().manual_seed(15))
    measurement = measured(golden, golden.half())
    assert measurement.slices.bias_deviation is not None
    deviation = 4 * measurement.slices.bias_deviation
    for t, rounding in ((0.1, 0.1 / 8), (1e-4, 2.0**-11)):
        rule = rule_from_marker({"relative_euclidean_distance": t}, "test_x")
        found = {each.metric: each for each in thresholds_for(LINEAR, measurement, (rule,))}
        assert found["bias"].bound == approx(rounding + deviation, rel=1e-3)
