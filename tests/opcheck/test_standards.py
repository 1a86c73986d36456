"""The rules of each standard at their edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acc_pytest.errors import SettingsError
from acc_pytest.opcheck.errors_of import errors_of
from acc_pytest.opcheck.standards import STANDARDS, About, standard_named
from acc_pytest.opcheck.standards.base import Second, Standard
from acc_pytest.operators import operator_of
from acc_pytest.operators.param import read
from acc_pytest.tensors.dtypes import by_name


def about(operator: str, dtype: str, length: int | None = None, **param: Any) -> About:
    complete = read(operator, operator_of(operator, param).schema, param)
    return About(operator, complete, dtype, by_name(dtype).kind, length)


def passes(standard: Standard, who: About, golden: torch.Tensor, mine: torch.Tensor) -> bool:
    errors = errors_of(golden, mine, standard.rule(who), who.dtype)
    return all(check.passed for check in standard.judge(who, errors, ()).checks)


@pytest.mark.parametrize(
    ("who", "bound"),
    [
        (about("LinearOperation", "float16", 2047), 2.0**-8),
        (about("LinearOperation", "float16", 2048), 2.0**-7),
        (about("LinearOperation", "bfloat16", 16384), 2.0**-6),
        (about("LinearOperation", "float32", 16383), 2.0**-10),
        (about("LinearOperation", "float32", 16384), 2.0**-9),
        (about("SelfAttentionOperation", "float16"), 2.0**-9),
        (about("ActivationOperation", "float32", activationType=4), 2.0**-12),
        (about("ActivationOperation", "float32", activationType=1), 2.0**-11),
        (about("SplitOperation", "float16"), 0.0),
        (about("ReduceOperation", "float16", reduceType=1), 0.0),
        (about("RmsNormOperation", "int8", layerType=1, normParam={"quantType": 2}), 1.0),
        (about("SortOperation", "int32"), 0.0),
    ],
)
def test_ascend_has_atbs_bounds(who: About, bound: float) -> None:
    assert STANDARDS["ascend"].rule(who).bound == bound


def test_ascend_is_relative_above_one_and_absolute_below() -> None:
    who = about("SoftmaxOperation", "float16")
    golden = torch.tensor([0.0, 256.0]).half()
    assert passes(STANDARDS["ascend"], who, golden, torch.tensor([2.0**-8, 257.0]).half())
    assert not passes(STANDARDS["ascend"], who, golden, torch.tensor([2.0**-7, 256.0]).half())
    assert not passes(STANDARDS["ascend"], who, golden, torch.tensor([0.0, 258.0]).half())


@pytest.mark.parametrize("name", ["ascend", "msit", "open"])
def test_a_new_nan_is_never_overlooked(name: str) -> None:
    """Where golden is small, ATB's own suite would set the NaN to 0 and pass."""
    who = about("SoftmaxOperation", "float16")
    golden = torch.zeros(10_000).half()
    mine = golden.clone()
    mine[5] = torch.nan
    assert not passes(STANDARDS[name], who, golden, mine)


def test_msit_counts_elements_and_its_rate_may_be_reached() -> None:
    who = about("SoftmaxOperation", "float16")
    golden = torch.ones(1000).half()
    one, two = golden.clone(), golden.clone()
    one[0] = two[0] = two[1] = 1.5
    assert passes(STANDARDS["msit"], who, golden, one)  # 99.9 %
    assert not passes(STANDARDS["msit"], who, golden, two)


def test_msit_without_the_old_tools_mistakes() -> None:
    flags = About("ElewiseOperation", {}, "bool", "bool")
    assert passes(STANDARDS["msit"], flags, torch.tensor([True]), torch.tensor([True]))
    assert not passes(STANDARDS["msit"], flags, torch.tensor([True]), torch.tensor([False]))
    small = About("ElewiseOperation", {}, "int8", "int")
    golden = torch.tensor([100], dtype=torch.int8)
    assert passes(STANDARDS["msit"], small, golden, golden + 1)
    assert not passes(STANDARDS["msit"], small, golden, golden + 2)  # the old tool passes up to 200 %
    zeros = torch.zeros(4).half()
    assert not passes(STANDARDS["msit"], about("SoftmaxOperation", "float16"), zeros, zeros + 5)


def test_open_bounds_the_mean_and_the_largest_relative_error() -> None:
    who = about("SoftmaxOperation", "float16")
    golden = torch.ones(1000).half()
    assert passes(STANDARDS["open"], who, golden, golden)
    spread = golden + 2.0**-9  # the mean is 2 T
    assert not passes(STANDARDS["open"], who, golden, spread)
    single = golden.clone()
    single[0] += 9 * 2.0**-10
    assert passes(STANDARDS["open"], who, golden, single)
    single[0] += 2 * 2.0**-10
    assert not passes(STANDARDS["open"], who, golden, single)


def test_a_type_without_a_bound_is_said() -> None:
    with pytest.raises(
        SettingsError, match="standard open has no bound for float64 outputs of SoftmaxOperation"
    ):
        STANDARDS["open"].rule(about("SoftmaxOperation", "float64"))
    with pytest.raises(SettingsError, match="choose one of ascend, two-golden, msit, open, three-way"):
        standard_named("atb")


def attention(dtype: str = "float16") -> About:
    return about("SelfAttentionOperation", dtype, headNum=1)


def ratios(name: str, error: float, theirs: float) -> dict[str, bool]:
    """Which ratios hold for outputs around 2^-7 (a bound of max(1, |golden|) would say nothing of them)."""
    truth = torch.full((64,), 2.0**-7, dtype=torch.float64)
    standard, who = STANDARDS[name], attention()
    mine, other = ((truth * (1 + e)) for e in (error, theirs))
    rule = standard.rule(who)
    errors = [errors_of(truth, one, rule, who.dtype) for one in (mine, other)]
    checks = standard.judge(who, errors_of(truth, mine, rule, who.dtype), errors).checks
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
    ("who", "has_other", "second"),
    [
        (attention(), False, Second.COMPUTED),
        (attention(), True, Second.DEVICE),
        (about("RingMLAOperation", "bfloat16"), False, Second.COMPUTED),
        (about("ReduceScatterOperation", "float16", reduceType="sum"), False, Second.COMPUTED),
        (about("ReduceScatterOperation", "float16", reduceType="max"), False, Second.NONE),
        (about("LinearOperation", "float16"), True, Second.NONE),
        (attention("int8"), False, Second.NONE),
    ],
)
def test_two_goldens_are_for_fused_attention(who: About, has_other: bool, second: Second) -> None:
    assert STANDARDS["two-golden"].second(who, has_other) is second
    assert STANDARDS["ascend"].second(who, has_other) is Second.NONE


def test_two_golden_keeps_the_bound_of_single_elements() -> None:
    """A mean over many elements does not see one, nor does the largest ratio beside a cancelled element."""
    who, standard = attention(), STANDARDS["two-golden"]
    truth = torch.full((1 << 16,), 0.5)
    mine, other = truth.clone(), truth.clone()
    mine[9] += 0.02
    other[0] *= 2
    rule = standard.rule(who)
    errors = [errors_of(truth, one, rule, who.dtype) for one in (mine, other)]
    checks = {c.metric: c.passed for c in standard.judge(who, errors[0], errors).checks}
    assert all(checks[f"{name}_ratio"] for name in ("mare", "mere", "rmse"))
    assert not checks["max_scaled_error"]
