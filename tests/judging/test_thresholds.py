"""Rules over defaults: precedence, matching, switching off, and the refusal of blind gates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.errors import SettingsError
from acc_pytest.judging.rules import in_precedence, rule_from_hook, rule_from_marker, rule_from_table
from acc_pytest.judging.threshold import JudgeContext, Threshold, ThresholdRule
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import judge
from acc_pytest.mapping.pair import Operand, Pair

from .plain import build

CONTEXT = JudgeContext(
    id="t",
    golden_op_type="Linear",
    mine_op_type="LinearOperation",
    golden_path="root.model.layers.0.mlp.up_proj",
    golden_name="root.model.layers.0.mlp.up_proj",
    mine_path="2_Prefill_layer/2_Mlp/0_LinearOperation",
    mine_name="LinearOperation_2_2_0",
    level="op",
    layer="layers.0",
    step=1,
    policy="op-table",
)
DISTANCE = "relative_euclidean_distance"


def bound_on(metric: str, *rules: ThresholdRule, **fields: object) -> Threshold:
    found = {t.metric: t for t in thresholds_for(CONTEXT, build(**fields), rules)}
    return found[metric]


def distance_rule(bound: float, source: str = "a.toml", **match: object) -> ThresholdRule:
    return rule_from_table({DISTANCE: bound, "match": match} if match else {DISTANCE: bound}, source)


def test_default_then_config_files_then_closest_marker_then_hook() -> None:
    first, second = distance_rule(0.1, "default.toml [[threshold]] 1"), distance_rule(0.2, "mine.toml")
    on_class = rule_from_marker({DISTANCE: 0.3}, "TestX")
    on_test = rule_from_marker({DISTANCE: 0.4}, "TestX::test_y")
    hook = rule_from_hook({DISTANCE: 0.5})
    markers = [on_test, on_class]  # iter_markers: closest first
    assert bound_on(DISTANCE).reason.startswith("default: T = ")
    assert bound_on(DISTANCE, *in_precedence([first])).reason == "set by default.toml [[threshold]] 1"
    assert bound_on(DISTANCE, *in_precedence([first, second])).bound == 0.2
    assert bound_on(DISTANCE, *in_precedence([first, second], [on_class])).bound == 0.3
    assert bound_on(DISTANCE, *in_precedence([first, second], markers)).bound == 0.4
    assert bound_on(DISTANCE, *in_precedence([first, second], markers)).reason == (
        "set by marker acc_threshold on TestX::test_y"
    )
    last = bound_on(DISTANCE, *in_precedence([first, second], markers, [hook]))
    assert (last.bound, last.reason) == (0.5, "set by hook pytest_acc_thresholds")


def test_rules_win_metric_by_metric() -> None:
    rules = [
        rule_from_table({DISTANCE: 0.1, "kl_divergence": 0.5}, "a"),
        rule_from_table({DISTANCE: 0.2}, "b"),
    ]
    assert bound_on(DISTANCE, *rules).reason == "set by b"
    assert bound_on("kl_divergence", *rules).reason == "set by a"


@pytest.mark.parametrize(
    "match",
    [
        {"op_type": "Linear"},
        {"op_type": "*Operation"},
        {"op_type": ["Conv*", "Linear*"]},
        {"name": "*mlp*"},
        {"name": "LinearOperation_2_*"},
        {"level": "op"},
        {"dtype": "float16"},
        {"dtype": "float*"},
        {"layer": "layers.0"},
        {"policy": "op-table"},
        {"step": 1},
        {"step": [0, 1, "warmup"]},
        {"op_type": "Linear*", "name": "*up_proj", "level": "op", "dtype": "float16", "layer": "layers.?"},
    ],
)
def test_a_rule_applies_where_all_its_criteria_hold(match: dict[str, Any]) -> None:
    assert bound_on(DISTANCE, distance_rule(0.77, **match)).bound == 0.77


@pytest.mark.parametrize(
    "match",
    [
        {"op_type": "linear"},
        {"name": "*attn*"},
        {"level": "layer"},
        {"dtype": "bfloat16"},
        {"layer": "layers.1"},
        {"policy": "manual"},
        {"step": 0},
        {"step": "warmup"},
        {"op_type": "Linear*", "layer": "layers.9"},
    ],
)
def test_a_rule_does_not_apply_where_one_criterion_fails(match: dict[str, Any]) -> None:
    assert bound_on(DISTANCE, distance_rule(0.77, **match)).bound != 0.77


def test_the_dtype_of_either_side_matches() -> None:
    rule = distance_rule(0.77, dtype="bfloat16")
    assert bound_on(DISTANCE, rule, golden_dtype="float32", mine_dtype="bfloat16").bound == 0.77


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.77), ("b*", 0.77), ("float32", None)])
def test_the_dtype_of_mine_can_be_asked_for_alone(dtype: str, bound: float | None) -> None:
    sides = {"golden_dtype": "float32", "mine_dtype": "bfloat16"}
    plain = bound_on(DISTANCE, **sides).bound
    assert bound_on(DISTANCE, distance_rule(0.77, mine_dtype=dtype), **sides).bound == (bound or plain)


def test_the_last_matching_factor_scales_t_and_is_named() -> None:
    plain = bound_on(DISTANCE).bound
    rules = [
        rule_from_table({"factor": 9}, "a.toml"),
        rule_from_table({"factor": 2, "reason": "noisy"}, "b.toml"),
        rule_from_table({"factor": 7, "match": {"level": "layer"}}, "c.toml"),
    ]
    scaled = bound_on(DISTANCE, *rules)
    assert scaled.bound == pytest.approx(2 * plain)
    assert "factor 2 from b.toml (noisy)" in scaled.reason


def test_a_metric_switched_off_stays_visible_and_cannot_fail() -> None:
    rule = rule_from_table({"cosine_similarity": False, "max_absolute_error": False}, "a.toml")
    off = bound_on("cosine_similarity", rule)
    assert (off.off, off.reason) == (True, "switched off by a.toml")
    found = build(relative_euclidean_distance=1e-6, cosine_similarity=None, max_absolute_error=math.nan)
    judged = judge(found, thresholds_for(CONTEXT, found, [rule]))
    assert judged.verdict == "pass"
    assert "all 3 bounds hold" in judged.sentence


def test_switching_off_what_was_never_bounded_changes_nothing() -> None:
    rule = rule_from_marker({"kl_divergence": None}, "t")
    assert thresholds_for(CONTEXT, build(), [rule]) == thresholds_for(CONTEXT, build())


@pytest.mark.parametrize("blind", [{}, {"kl_divergence": 1.0}])
def test_cosine_is_refused_as_the_only_gate(blind: dict[str, object]) -> None:
    rule = rule_from_table(
        {"cosine_similarity": 0.99, DISTANCE: False, "max_absolute_error": False, **blind}, "bad.toml"
    )
    with pytest.raises(SettingsError) as caught:
        thresholds_for(CONTEXT, build(), [rule])
    left = ", ".join(["cosine_similarity", "new_nonfinite", "lost_nonfinite", *blind])
    assert str(caught.value) == (
        f"bad.toml: bounds only {left}, which cannot gate: cosine similarity does not see scale or one bad "
        "row in a million, counts of NaN and Inf see nothing finite. Keep a bound on "
        "relative_euclidean_distance, max_absolute_error or another error size"
    )


def test_switching_everything_off_is_refused() -> None:
    rule = rule_from_table({"mismatches": False}, "bad.toml")
    with pytest.raises(
        SettingsError, match=r"bad\.toml: bounds only nothing, which cannot gate: cosine similarity does not"
    ):
        thresholds_for(CONTEXT, build(golden_dtype="int64", mine_dtype="int64"), [rule])


def test_one_error_size_is_enough_to_keep() -> None:
    rule = rule_from_table({"cosine_similarity": 0.9, DISTANCE: False}, "a.toml")
    assert bound_on("cosine_similarity", rule).bound == 0.9


def test_relative_bounds_do_not_apply_to_an_all_zero_golden() -> None:
    zero = {"golden_rms": 0.0, "golden_max_abs": 0.0}
    rule = rule_from_table({"cosine_similarity": 0.9, DISTANCE: 9.0, "max_absolute_error": 0.5}, "a.toml")
    found = thresholds_for(CONTEXT, build(**zero), [rule])
    assert [t.metric for t in found] == ["max_absolute_error", "new_nonfinite", "lost_nonfinite"]
    assert found[0].bound == 0.5


def test_size_bounds_do_not_apply_where_nothing_is_finite() -> None:
    rule = rule_from_table({"cosine_similarity": 0.9, "new_nonfinite": 3, "lost_nonfinite": 4}, "a.toml")
    found = thresholds_for(CONTEXT, build(golden_rms=None, golden_max_abs=None), [rule])
    assert [(t.metric, t.bound) for t in found] == [("new_nonfinite", 3.0), ("lost_nonfinite", 4.0)]


def test_bounds_on_statistics_do_not_apply_to_tensors() -> None:
    rule = rule_from_table({"max_stat_absolute_error": 1.0}, "a.toml")
    assert thresholds_for(CONTEXT, build(), [rule]) == thresholds_for(CONTEXT, build())


def test_a_custom_metric_is_bounded_beside_the_others() -> None:
    rule = rule_from_table({"snr": {"min": 40}}, "a.toml", custom=("snr",))
    found = build(
        relative_euclidean_distance=0.0,
        cosine_similarity=1.0,
        max_absolute_error=0.0,
        custom={"snr": (30.0, "")},
    )
    judged = judge(found, thresholds_for(CONTEXT, found, [rule]))
    assert judged.checks[-1].metric == "snr"
    assert judged.sentence == "snr 30 is below the required 40"


def test_the_context_of_a_pair_holds_what_rules_match_on() -> None:
    golden = Operand(CONTEXT.golden_path, CONTEXT.golden_name, "Linear", "output", ())
    mine = Operand(CONTEXT.mine_path, CONTEXT.mine_name, "LinearOperation", "output[0]", ())
    pair = Pair("t", 1, None, "op", "layers.0", 0, 5, "op-table", "names agree", golden, mine)
    assert JudgeContext.of(pair) == CONTEXT
    assert JudgeContext.of(pair, length=64).length == 64
    assert JudgeContext.of(replace(pair, computed_in="bfloat16")).computed_in == "bfloat16"


def test_a_bound_on_the_distance_sets_the_tolerance_of_the_bounds_derived_from_it() -> None:
    loose = distance_rule(0.5, "mine.toml")
    cosine = bound_on("cosine_similarity", loose)
    assert cosine.bound == pytest.approx(1 - 0.5**2 / 2)
    assert "T = 0.5 set by mine.toml" in cosine.reason
    fields = {"golden_rms": 2.0, "golden_max_abs": 20.0}
    assert bound_on("max_absolute_error", loose, **fields).bound == pytest.approx(0.5 * 20.0)


def test_a_derived_bound_that_is_named_too_is_taken_as_named() -> None:
    both = rule_from_table({DISTANCE: 0.5, "cosine_similarity": 0.9}, "a")
    assert bound_on("cosine_similarity", both).bound == 0.9


def test_switching_the_distance_off_leaves_the_derived_tolerance_to_the_others() -> None:
    plain = bound_on("max_absolute_error")
    off = [distance_rule(0.5), rule_from_table({DISTANCE: False}, "b")]
    assert bound_on("max_absolute_error", *off).bound == plain.bound


def test_a_distance_far_above_one_asks_nothing_of_the_angle() -> None:
    assert bound_on("cosine_similarity", distance_rule(9.0)).bound == -1.0
