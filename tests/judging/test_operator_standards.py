"""The rules of each standard at their edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from acc_pytest.errors import SettingsError
from acc_pytest.judging.rules import rule_from_marker
from acc_pytest.judging.standards import STANDARDS, Adjustment, Second, Standard, of_operators
from acc_pytest.judging.standards.atb_classes import has_two_goldens, op_class
from acc_pytest.judging.standards.second_golden import error_ratios
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import Judgement, judge
from acc_pytest.metrics.element_tolerance import EXACT, ElementTolerance
from acc_pytest.metrics.elements import element_errors
from acc_pytest.metrics.kernel import measure
from acc_pytest.operators import operator_of
from acc_pytest.operators.param import read
from acc_pytest.tensors.source import TensorSource


def output(operator: str, dtype: str, length: int | None = None, **param: Any) -> JudgeContext:
    complete = read(operator, operator_of(operator, param).schema, param)
    return JudgeContext(
        mine_op_type=operator,
        length=length,
        written=dtype,
        op_class=op_class(operator, complete),
        two_goldens=has_two_goldens(operator, complete),
    )


def tolerance(standard: Standard, context: JudgeContext) -> ElementTolerance:
    assert standard.elements is not None
    wanted = standard.elements(context, (context.written, context.written), Adjustment())
    assert wanted is not None
    return wanted


def judged(
    standard: Standard,
    context: JudgeContext,
    golden: torch.Tensor,
    mine: torch.Tensor,
    second: torch.Tensor | None = None,
) -> Judgement:
    """`golden` is the exact value, too, where there is a `second` golden."""
    measurement = measure(
        TensorSource(golden),
        TensorSource(mine),
        tolerance=tolerance(standard, context),
        written=context.written,
    )
    if second is not None:
        errors = [element_errors(golden, side, EXACT, context.written) for side in (mine, second)]
        measurement = replace(measurement, further=error_ratios(errors[0], errors[1], context.written))
    return judge(measurement, thresholds_for(context, measurement, (), standard))


def passes(standard: Standard, context: JudgeContext, golden: torch.Tensor, mine: torch.Tensor) -> bool:
    return judged(standard, context, golden, mine).verdict == "pass"


@pytest.mark.parametrize(
    ("context", "bound"),
    [
        (output("LinearOperation", "float16", 2047), 2.0**-8),
        (output("LinearOperation", "float16", 2048), 2.0**-7),
        (output("LinearOperation", "bfloat16", 16384), 2.0**-6),
        (output("LinearOperation", "float32", 16383), 2.0**-10),
        (output("LinearOperation", "float32", 16384), 2.0**-9),
        (output("SelfAttentionOperation", "float16"), 2.0**-9),
        (output("ActivationOperation", "float32", activationType=4), 2.0**-12),
        (output("ActivationOperation", "float32", activationType=1), 2.0**-11),
        (output("SplitOperation", "float16"), 0.0),
        (output("ReduceOperation", "float16", reduceType=1), 0.0),
        (output("RmsNormOperation", "int8", layerType=1, normParam={"quantType": 2}), 1.0),
        (output("SortOperation", "int32"), 0.0),
    ],
)
def test_ascend_has_atbs_bounds(context: JudgeContext, bound: float) -> None:
    assert tolerance(STANDARDS["ascend"], context).atol == bound


def test_ascend_is_relative_above_one_and_absolute_below() -> None:
    context = output("SoftmaxOperation", "float16")
    golden = torch.tensor([0.0, 256.0]).half()
    assert passes(STANDARDS["ascend"], context, golden, torch.tensor([2.0**-8, 257.0]).half())
    assert not passes(STANDARDS["ascend"], context, golden, torch.tensor([2.0**-7, 256.0]).half())
    assert not passes(STANDARDS["ascend"], context, golden, torch.tensor([0.0, 258.0]).half())


@pytest.mark.parametrize("name", ["ascend", "msit", "open"])
def test_a_new_nan_is_never_overlooked(name: str) -> None:
    """Where golden is small, ATB's own suite would set the NaN to 0 and pass."""
    context = output("SoftmaxOperation", "float16")
    golden = torch.zeros(10_000).half()
    mine = golden.clone()
    mine[5] = torch.nan
    assert not passes(STANDARDS[name], context, golden, mine)


def test_msit_counts_elements_and_its_rate_may_be_reached() -> None:
    context = output("SoftmaxOperation", "float16")
    golden = torch.ones(1000).half()
    one, two = golden.clone(), golden.clone()
    one[0] = two[0] = two[1] = 1.5
    assert passes(STANDARDS["msit"], context, golden, one)  # 99.9 %
    assert not passes(STANDARDS["msit"], context, golden, two)


def test_msit_without_the_old_tools_mistakes() -> None:
    flags = JudgeContext(mine_op_type="ElewiseOperation", written="bool")
    assert passes(STANDARDS["msit"], flags, torch.tensor([True]), torch.tensor([True]))
    assert not passes(STANDARDS["msit"], flags, torch.tensor([True]), torch.tensor([False]))
    small = JudgeContext(mine_op_type="ElewiseOperation", written="int8")
    golden = torch.tensor([100], dtype=torch.int8)
    assert passes(STANDARDS["msit"], small, golden, golden + 1)
    assert not passes(STANDARDS["msit"], small, golden, golden + 2)  # the old tool passes up to 200 %
    zeros = torch.zeros(4).half()
    assert not passes(STANDARDS["msit"], output("SoftmaxOperation", "float16"), zeros, zeros + 5)


def test_open_bounds_the_mean_and_the_largest_relative_error() -> None:
    context = output("SoftmaxOperation", "float16")
    golden = torch.ones(1000).half()
    assert passes(STANDARDS["open"], context, golden, golden)
    spread = golden + 2.0**-9  # the mean is 2 T
    assert not passes(STANDARDS["open"], context, golden, spread)
    single = golden.clone()
    single[0] += 9 * 2.0**-10
    assert passes(STANDARDS["open"], context, golden, single)
    single[0] += 2 * 2.0**-10
    assert not passes(STANDARDS["open"], context, golden, single)


def test_a_type_without_a_bound_is_said() -> None:
    with pytest.raises(
        SettingsError, match="standard open has no bound for float64 outputs of SoftmaxOperation"
    ):
        tolerance(STANDARDS["open"], output("SoftmaxOperation", "float64"))
    with pytest.raises(SettingsError, match="choose one of ascend, two-golden, msit, open, three-way"):
        of_operators("atb")


def attention(dtype: str = "float16") -> JudgeContext:
    return output("SelfAttentionOperation", dtype, headNum=1)


def ratios(name: str, error: float, theirs: float) -> dict[str, bool]:
    """Which ratios hold for outputs around 2^-7 (a bound of max(1, |golden|) would say nothing of them)."""
    truth = torch.full((64,), 2.0**-7, dtype=torch.float64)
    mine, other = ((truth * (1 + e)) for e in (error, theirs))
    checks = judged(STANDARDS[name], attention(), truth, mine, other).checks
    return {check.metric: check.passed for check in checks if check.metric.endswith("_ratio")}


@pytest.mark.parametrize("name", ["two-golden", "three-way"])
def test_errors_may_be_a_multiple_of_those_of_the_second_golden(name: str) -> None:
    near = 2.0**-8
    assert all(ratios(name, 1.9 * near, near).values())
    assert ratios(name, 2.1 * near, near) == {"mare_ratio": True, "mere_ratio": False, "rmse_ratio": True}
    assert not ratios(name, 11 * near, near)["mare_ratio"]


@pytest.mark.parametrize("name", ["two-golden", "three-way"])
def test_a_second_golden_that_is_exact_counts_as_one_step_off(name: str) -> None:
    assert all(ratios(name, 1.9 * 2.0**-11, 0.0).values())
    assert not ratios(name, 2.1 * 2.0**-11, 0.0)["mere_ratio"]


@pytest.mark.parametrize(
    ("context", "has_other", "second"),
    [
        (attention(), False, Second.COMPUTED),
        (attention(), True, Second.DEVICE),
        (output("RingMLAOperation", "bfloat16"), False, Second.COMPUTED),
        (output("ReduceScatterOperation", "float16", reduceType="sum"), False, Second.COMPUTED),
        (output("ReduceScatterOperation", "float16", reduceType="max"), False, Second.NONE),
        (output("LinearOperation", "float16"), True, Second.NONE),
        (attention("int8"), False, Second.NONE),
    ],
)
def test_two_goldens_are_for_fused_attention(context: JudgeContext, has_other: bool, second: Second) -> None:
    assert STANDARDS["two-golden"].second(context, has_other) is second
    assert STANDARDS["ascend"].second(context, has_other) is Second.NONE


def test_two_golden_keeps_the_bound_of_single_elements() -> None:
    """A mean over many elements does not see one, nor does the largest ratio beside a cancelled element."""
    truth = torch.full((1 << 16,), 0.5)
    mine, other = truth.clone(), truth.clone()
    mine[9] += 0.02
    other[0] *= 2
    judgement = judged(STANDARDS["two-golden"], attention(), truth, mine, other)
    checks = {check.metric: check.passed for check in judgement.checks}
    assert all(checks[f"{name}_ratio"] for name in ("mare", "mere", "rmse"))
    assert not checks["max_scaled_error"]


def test_rules_add_bounds_to_a_standard_of_operators_and_only_a_factor_moves_its_own() -> None:
    context, standard = output("SoftmaxOperation", "float16"), STANDARDS["ascend"]
    golden = torch.ones(100).half()
    sources = TensorSource(golden), TensorSource(golden + 2.0**-7)
    measurement = measure(*sources, tolerance=tolerance(standard, context), written="float16")

    def failing(**wanted: float) -> set[str]:
        thresholds = thresholds_for(context, measurement, [rule_from_marker(wanted, "test_x")], standard)
        return {check.metric for check in judge(measurement, thresholds).checks if not check.passed}

    assert failing(max_absolute_error=1.0) == {"max_scaled_error"}
    assert failing(max_absolute_error=1e-3) == {"max_scaled_error", "max_absolute_error"}
    assert failing(factor=2) == set()


def test_outputs_without_a_finite_element_are_judged_by_their_nan_alone() -> None:
    context, nan = output("SoftmaxOperation", "float16"), torch.full((4,), torch.nan).half()
    assert passes(STANDARDS["ascend"], context, nan, nan.clone())
    assert not passes(STANDARDS["ascend"], context, nan, torch.ones(4).half())


def test_the_sentence_says_how_many_elements_are_beyond_and_where() -> None:
    context, golden = output("SoftmaxOperation", "float16"), torch.zeros(4, 8).half()
    mine = golden.clone()
    mine[2, 5] = 0.25
    sentence = judged(STANDARDS["ascend"], context, golden, mine).sentence
    assert sentence == (
        "max_scaled_error 0.25 is 64 times the allowed 0.00391; 1 of 32 elements are beyond it, in [2, 5]"
    )
    mine[2, 5] = torch.nan
    sentence = judged(STANDARDS["ascend"], context, golden, mine).sentence
    assert sentence == "1 of 32 elements are NaN or infinite on one side only, in [2, 5], none may be"
