"""The rules of each standard at their edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from acc_pytest.errors import SettingsError
from acc_pytest.judging.rules import rule_from_marker
from acc_pytest.judging.standards import STANDARDS, Adjustment, Second, Standard, of_operators
from acc_pytest.judging.standards.ascend import (
    class_by_name,
    element_bound,
    error_ratios,
    has_two_goldens,
    op_class,
)
from acc_pytest.judging.threshold import JudgeContext, Threshold
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import Judgement, judge
from acc_pytest.metrics.elements import element_errors
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import EXACT, ElementTolerance, Scale
from acc_pytest.operators import operator_of
from acc_pytest.operators.registry import read
from acc_pytest.tensors.source import TensorSource

from .plain import build


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


def requirement(name: str, context: JudgeContext, **further: float) -> str:
    words = STANDARDS[name].requirement
    assert words is not None
    return words(context, build(further=further), Adjustment())


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
        output_dtype=context.written,
    )
    if second is not None:
        errors = [element_errors(golden, side, EXACT, context.written) for side in (mine, second)]
        measurement = replace(measurement, further=error_ratios(errors[0], errors[1], context.written))
    return judge(measurement, thresholds_for(context, measurement, (), standard))


def passes(standard: Standard, context: JudgeContext, golden: torch.Tensor, mine: torch.Tensor) -> bool:
    return judged(standard, context, golden, mine).verdict == "pass"


BOUNDS: list[tuple[Any, ...]] = [
    ("LinearOperation", "float16", 2047, {}, ElementTolerance(2.0**-8, scale="scaled"), "2^-8"),
    ("LinearOperation", "float16", 2048, {}, ElementTolerance(2.0**-7, scale="scaled"), "2^-7"),
    ("LinearOperation", "bfloat16", 16384, {}, ElementTolerance(2.0**-6, scale="scaled"), "2^-6"),
    ("LinearOperation", "float32", 16383, {}, ElementTolerance(2.0**-10, scale="scaled"), "2^-10"),
    ("LinearOperation", "float32", 16384, {}, ElementTolerance(2.0**-9, scale="scaled"), "2^-9"),
    ("LinearOperation", "float64", None, {}, ElementTolerance(2.0**-11, scale="scaled"), "2^-11"),
    ("SelfAttentionOperation", "float16", None, {}, ElementTolerance(2.0**-9, scale="scaled"), "2^-9"),
    ("SplitOperation", "float16", None, {}, EXACT, "the result is exact"),
    ("SortOperation", "int32", None, {}, EXACT, "whole numbers are exact"),
    ("SortOperation", "int8", None, {}, EXACT, "whole numbers are exact"),
    ("SwigluQuantOperation", "int8", None, {}, ElementTolerance(1.0), "one step of the quantised value"),
    ("SwigluQuantOperation", "int32", None, {}, EXACT, "whole numbers are exact"),
    ("SwigluQuantOperation", "float16", None, {}, ElementTolerance(2.0**-8, scale="scaled"), "2^-8"),
    ("SoftmaxOperation", "hifloat8", None, {}, ElementTolerance(1.0, scale="ulp"), "one step of the type"),
    ("SoftmaxOperation", "float8_e5m2", None, {}, ElementTolerance(1.0, scale="ulp"), "one step of the type"),
]


@pytest.mark.parametrize(("operator", "dtype", "length", "param", "bound", "why"), BOUNDS)
def test_ascend_has_atbs_bounds(
    operator: str, dtype: str, length: int | None, param: dict[str, Any], bound: ElementTolerance, why: str
) -> None:
    context, standard = output(operator, dtype, length, **param), STANDARDS["ascend"]
    assert tolerance(standard, context) == bound
    measurement = build(compared=1, golden_dtype=dtype, mine_dtype=dtype)
    first, second = thresholds_for(context, measurement, (), standard)
    metric = {"absolute": "max_absolute_error", "scaled": "max_scaled_error", "ulp": "max_ulp_error"}
    sums = "" if length is None else f", sums of {length}"
    named = context.op_class if "the result" in why else f"{context.op_class}, {dtype}{sums}"
    assert first == Threshold(metric[bound.scale], bound.atol, False, f"ascend: {named}: {why}")
    assert second == Threshold(
        "nonfinite_mismatch", 0.0, False, "ascend: NaN and infinities have to be the same on both sides"
    )
    assert requirement("ascend", context) == f"100%({bound})"


PUBLISHED = {
    ("COMPUTE_FLOAT", "float16"): (8, 7, 7),
    ("COMPUTE_FLOAT", "bfloat16"): (7, 6, 6),
    ("COMPUTE_FLOAT", "float32"): (11, 10, 9),
    ("VECTOR_FUSION", "float16"): (9, 9, 9),
    ("VECTOR_FUSION", "bfloat16"): (7, 7, 7),
    ("VECTOR_FUSION", "float32"): (12, 12, 12),
}
"""ATB's table: powers of 1/2 by class and type, for sums of up to 2047, 16383 and more addends."""


@pytest.mark.parametrize(("kind", "dtype"), PUBLISHED)
def test_the_bounds_of_elements_are_atbs_table(kind: str, dtype: str) -> None:
    for lengths, power in zip(((None, 1, 2047), (2048, 16383), (16384, 10**6)), PUBLISHED[kind, dtype]):
        assert {element_bound(kind, dtype, length) for length in lengths} == {2.0**-power}


@pytest.mark.parametrize(
    ("dtypes", "bound", "scale", "rate"),
    [
        (("float32",), 2.0**-20, "relative", 99.99),
        (("float16",), 2.0**-10, "relative", 99.9),
        (("bfloat16",), 2.0**-8, "relative", 99.9),
        (("float64", "int32", "uint32", "int64", "uint64"), 1e-4, "relative", 99.99),
        (("int8", "int16", "uint16"), 1.0, "absolute", 99.9),
        (("uint8",), 1.0, "absolute", 99.0),
        (("bool",), 0.0, "absolute", 100.0),
    ],
)
def test_msit_has_the_old_tools_table(
    dtypes: tuple[str, ...], bound: float, scale: Scale, rate: float
) -> None:
    for dtype in dtypes:
        context = JudgeContext(written=dtype)
        assert tolerance(STANDARDS["msit"], context) == ElementTolerance(bound, scale=scale)
        assert thresholds_for(context, build(), (), STANDARDS["msit"])[0].bound == rate


@pytest.mark.parametrize(
    ("dtype", "mean", "floor"),
    [
        ("float16", 10, 11),
        ("bfloat16", 7, 8),
        ("float32", 13, 14),
        ("float8_e4m3fn", 3, None),
        ("float8_e5m2", 2, None),
    ],
)
def test_open_and_three_way_have_the_published_powers_of_a_half(
    dtype: str, mean: int, floor: int | None
) -> None:
    context = JudgeContext(written=dtype)
    assert tolerance(STANDARDS["open"], context) == ElementTolerance(10 * 2.0**-mean, scale="relative")
    if floor is not None:
        wanted = ElementTolerance(10 * 2.0**-floor, scale="relative")
        assert tolerance(STANDARDS["three-way"], context) == wanted


CLASSES: dict[tuple[str, Any], str] = {
    ("Elewise", 1): "CAST",
    ("Elewise", 2): "COMPUTE_FLOAT",
    **{("Elewise", kind): "COMPUTE_INTEGER" for kind in (7, 11, 12, 13, 14, 16)},
    ("Activation", 1): "COMPUTE_FLOAT",
    **{("Activation", kind): "VECTOR_FUSION" for kind in (4, 7, 8)},
    ("Reduce", 1): "MOVE",
    ("Reduce", 2): "MOVE",
    ("Reduce", 3): "COMPUTE_FLOAT",
    ("ReduceScatter", "max"): "MOVE",
    ("ReduceScatter", "sum"): "VECTOR_FUSION",
    ("ReduceScatterV", "min"): "MOVE",
    ("ReduceScatterV", "sum"): "VECTOR_FUSION",
    ("AllReduce", 0): "COMPUTE_FLOAT",
    ("AllReduce", 1): "COMPUTE_QUANT",
    ("Split", None): "MOVE",
    ("Transpose", None): "CAST",
    ("Gating", None): "COMPUTE_INTEGER",
    ("PagedAttention", None): "VECTOR_FUSION",
    ("SwigluQuant", None): "COMPUTE_QUANT",
    ("Softmax", None): "COMPUTE_FLOAT",
}
"""Of ATB's test suite: the class of an operator, by the parameter that decides it."""
DECIDES = {"Elewise": "elewiseType", "Activation": "activationType", "AllReduce": "quantType"}


@pytest.mark.parametrize(("short", "value"), CLASSES)
def test_the_class_of_an_operator_is_that_of_atbs_suite(short: str, value: object) -> None:
    param = {DECIDES.get(short, "reduceType"): value}
    assert op_class(f"{short}Operation", param) == CLASSES[short, value]


@pytest.mark.parametrize(
    ("short", "layer", "part"),
    [
        ("LayerNorm", 1, "normParam"),
        ("LayerNorm", 2, "preNormParam"),
        ("RmsNorm", 1, "normParam"),
        ("RmsNorm", 2, "preNormParam"),
        ("RmsNorm", 3, "postNormParam"),
        ("RmsNorm", 4, "preNormParam"),
    ],
)
def test_a_norm_that_quantises_is_of_another_class(short: str, layer: int, part: str) -> None:
    plain = "COMPUTE_FLOAT" if (short, layer) == ("LayerNorm", 1) else "VECTOR_FUSION"
    for inner, kind in (({}, plain), ({"quantType": 0}, plain), ({"quantType": 2}, "COMPUTE_QUANT")):
        assert op_class(f"{short}Operation", {"layerType": layer, part: inner}) == kind
    assert op_class("RmsNormOperation", {"layerType": 0}) == "VECTOR_FUSION"


def test_the_loosest_class_stands_where_parameters_are_unknown() -> None:
    for short in ("RmsNorm", "ReduceScatter", "ReduceScatterV"):
        assert class_by_name(f"{short}Operation") == "VECTOR_FUSION"
    assert class_by_name("SplitOperation") == "MOVE"
    assert class_by_name("LinearOperation") == "COMPUTE_FLOAT"


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
    for name, dtype in (("open", "float64"), ("msit", "complex64")):
        with pytest.raises(SettingsError) as caught:
            tolerance(STANDARDS[name], output("SoftmaxOperation", dtype))
        told = f"standard {name} has no bound for {dtype} outputs of SoftmaxOperation"
        assert str(caught.value) == told
    with pytest.raises(SettingsError) as caught:
        of_operators("atb")
    assert str(caught.value) == (
        "--acc-opcheck-standard atb: no such standard; "
        "choose one of ascend, two-golden, msit, open, three-way, distribution"
    )
    assert of_operators("msit") is STANDARDS["msit"]


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
    ("operator", "dtype", "param", "second"),
    [
        ("SelfAttentionOperation", "float16", {"headNum": 1}, Second.COMPUTED),
        ("RingMLAOperation", "bfloat16", {}, Second.COMPUTED),
        ("ReduceScatterOperation", "float16", {"reduceType": "sum"}, Second.COMPUTED),
        ("ReduceScatterVOperation", "float16", {"reduceType": "sum"}, Second.COMPUTED),
        ("ReduceScatterOperation", "float16", {"reduceType": "max"}, Second.NONE),
        ("ReduceScatterVOperation", "float16", {"reduceType": "min"}, Second.NONE),
        ("LinearOperation", "float16", {}, Second.NONE),
        ("SelfAttentionOperation", "int8", {"headNum": 1}, Second.NONE),
    ],
)
def test_two_goldens_are_for_fused_attention(
    operator: str, dtype: str, param: dict[str, Any], second: Second
) -> None:
    context = JudgeContext(written=dtype, two_goldens=has_two_goldens(operator, param))
    assert STANDARDS["two-golden"].second(context, False) is second
    device = Second.DEVICE if second is Second.COMPUTED else Second.NONE
    assert STANDARDS["two-golden"].second(context, True) is device
    assert STANDARDS["ascend"].second(context, True) is Second.NONE


def test_three_way_takes_the_second_golden_of_a_device_for_floats_alone() -> None:
    standard = STANDARDS["three-way"]
    for dtype, second in (("float16", Second.DEVICE), ("hifloat8", Second.DEVICE), ("int8", Second.NONE)):
        assert standard.second(JudgeContext(written=dtype), False) is second
    assert tolerance(standard, JudgeContext(written="int8")) == EXACT
    with pytest.raises(SettingsError, match="standard three-way has no bound for float64 outputs of x"):
        tolerance(standard, JudgeContext(mine_op_type="x", written="float64"))
    whole = thresholds_for(JudgeContext(written="int8"), build(), (), standard)[0]
    assert whole == Threshold("max_absolute_error", 0.0, False, "three-way: whole numbers are exact")


RATIOS = "mare ratio <= 10, mere ratio <= 2, rmse ratio <= 2"
REQUIREMENTS = [
    ("ascend", "float16", {}, "100%(|error| <= 0.00390625 max(1, |golden|))"),
    ("two-golden", "float16", {}, "100%(|error| <= 0.00390625 max(1, |golden|))"),
    ("two-golden", "float16", {"mare_ratio": 1.0}, f"100%(|error| <= 0.00390625 max(1, |golden|)), {RATIOS}"),
    ("three-way", "float16", {}, RATIOS),
    ("three-way", "int8", {}, "100%(|error| = 0)"),
    ("msit", "float16", {}, "99.9%(error<0.0009765625)"),
    ("open", "float16", {}, "MERE < 0.000976562, MARE < 0.00976562"),
    ("open", "int8", {}, "100%(|error| = 0)"),
    ("distribution", "float16", {}, "100%(|error| <= 0.00390625 max(1, |golden|))"),
    ("distribution", "float16", {"ks_p_value": 0.5}, "KS p > 0.01"),
]


@pytest.mark.parametrize(("name", "dtype", "further", "words"), REQUIREMENTS)
def test_the_old_sheet_has_the_bound_in_its_own_words(
    name: str, dtype: str, further: dict[str, float], words: str
) -> None:
    assert requirement(name, output("SoftmaxOperation", dtype), **further) == words


TWICE = Adjustment(2.0, "x.toml")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ascend", "100%(|error| <= 0.0078125 max(1, |golden|))"),
        ("two-golden", "100%(|error| <= 0.0078125 max(1, |golden|))"),
        ("distribution", "100%(|error| <= 0.0078125 max(1, |golden|))"),
        ("msit", "99.9%(error<0.001953125)"),
        ("open", "MERE < 0.00195312, MARE < 0.0195312"),
    ],
)
def test_a_factor_moves_the_bounds_of_an_output_and_says_so(name: str, words: str) -> None:
    context, standard = output("SoftmaxOperation", "float16"), STANDARDS[name]
    assert standard.requirement is not None
    assert standard.requirement(context, build(), TWICE) == words
    if name == "ascend":
        reason = standard.thresholds(context, build(), TWICE)[0].reason
        assert reason == "COMPUTE_FLOAT, float16: 2^-8, times 2 from x.toml"


def test_msit_and_open_say_their_rows() -> None:
    context = output("SoftmaxOperation", "float16")
    (share, _) = thresholds_for(context, build(), [rule_from_marker({"factor": 2}, "t")], STANDARDS["msit"])
    assert share == Threshold(
        "rel_precision_rate",
        99.9,
        True,
        "msit: share of elements of float16 with |error| <= 0.00195312 |golden|, "
        "times 2 from marker acc_threshold on t",
    )
    mean, largest, _ = thresholds_for(context, build(), (), STANDARDS["open"])
    t = 2.0**-10
    assert mean == Threshold("mere", t, False, "open: mean relative error of float16 below T", strict=True)
    assert largest == Threshold(
        "mare", 10 * t, False, "open: largest relative error of float16 below 10 T", strict=True
    )
    whole = thresholds_for(output("SortOperation", "int32"), build(), (), STANDARDS["open"])[0]
    assert whole == Threshold("max_absolute_error", 0.0, False, "open: whole numbers are exact")
    assert tolerance(STANDARDS["open"], context) == ElementTolerance(10 * t, scale="relative")
    assert tolerance(STANDARDS["open"], output("SortOperation", "int32")) == EXACT


def test_ratios_say_of_what_they_are() -> None:
    numbers = {
        f"mere_{part}": value for part, value in (("ratio", 1.5), ("of_mine", 3e-3), ("of_second", 2e-3))
    }
    for name, whose in (("two-golden", "the low-precision golden"), ("three-way", "the other device")):
        measurement = build(further=numbers)
        thresholds = STANDARDS[name].thresholds(attention(), measurement, TWICE)
        ratios = [bound for bound in thresholds if bound.metric.endswith("_ratio")]
        reason = f"mere of mine 0.003, of {whose} 0.002"
        assert ratios == [Threshold("mere_ratio", 4.0, False, reason)]


@pytest.mark.parametrize(
    ("metric", "right", "wrong"),
    [("ks_p_value", 0.011, 0.01), ("impossible_draws", 0.0, 1.0), ("mean_shift", 2.576, 2.58)],
)
def test_random_draws_are_judged_by_their_distribution_alone(metric: str, right: float, wrong: float) -> None:
    standard, context = STANDARDS["distribution"], output("SoftmaxOperation", "float16")
    for value, verdict in ((right, "pass"), (wrong, "fail")):
        measurement = build(further={metric: value})
        thresholds = thresholds_for(context, measurement, (), standard)
        assert [bound.metric for bound in thresholds] == [metric]
        assert judge(measurement, thresholds).verdict == verdict


def test_what_is_not_drawn_is_judged_as_by_ascend() -> None:
    context = output("SoftmaxOperation", "float16")
    named = [STANDARDS[name].thresholds(context, build(), TWICE) for name in ("distribution", "ascend")]
    assert named[0] == named[1]


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
    measurement = measure(*sources, tolerance=tolerance(standard, context), output_dtype="float16")

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
