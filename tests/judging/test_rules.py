"""What people may write in a [[threshold]] table or a marker, and what each mistake is told."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import SettingsError
from acc_pytest.judging.rules import (
    Known,
    known_from_table,
    rule_from_hook,
    rule_from_marker,
    rule_from_table,
    rules_and_known,
)
from acc_pytest.judging.threshold import Bound, JudgeContext, PairCriteria, Threshold, ThresholdRule
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.tolerance import CAP, cap_of, tolerance
from acc_pytest.judging.verdict import judge
from acc_pytest.mapping.pair import Operand, Pair
from acc_pytest.tensors.dtypes import by_name

from .plain import build


def test_a_full_table_becomes_a_rule() -> None:
    rule = rule_from_table(
        {
            "match": {"op_type": "Linear*", "dtype": ["float16"], "step": 0},
            "cosine_similarity": 0.99,
            "max_absolute_error": 1,
            "kl_divergence": False,
            "factor": 2,
            "reason": "int8 weights",
        },
        "x.toml [[threshold]] 1",
    )
    assert rule.match == PairCriteria(op_type=("Linear*",), dtype=("float16",), step=(0,))
    assert rule.bounds == (
        Bound("cosine_similarity", 0.99, True),
        Bound("max_absolute_error", 1.0, False),
        Bound("kl_divergence", None, False),
    )
    assert (rule.factor, rule.origin) == (2.0, "x.toml [[threshold]] 1 (int8 weights)")


def test_a_misspelt_key_is_one_sentence_with_the_nearest() -> None:
    with pytest.raises(SettingsError) as caught:
        rule_from_marker({"cosine_similarty": 0.9}, "test_a.py::test_b")
    assert str(caught.value) == (
        "marker acc_threshold on test_a.py::test_b: unknown key 'cosine_similarty'; "
        "did you mean 'cosine_similarity'?"
    )


def test_a_marker_switches_off_with_none_and_names_its_test() -> None:
    rule = rule_from_marker({"cosine_similarity": None}, "test_a.py::test_b")
    assert rule.bounds == (Bound("cosine_similarity", None, True),)
    assert rule.source == "marker acc_threshold on test_a.py::test_b"


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            {"cosine_similarty": 0.9},
            "x.toml: unknown key 'cosine_similarty'; did you mean 'cosine_similarity'?",
        ),
        ({"zzz": 1}, "known: cosine_similarity, max_relative_error"),
        ({"zzz": 1}, "l1norm_stat_relative_error, factor, match, reason"),
        ({"cosine_similarity": float("nan")}, "cosine_similarity must be a finite number"),
        ({"max_absolute_error": float("inf")}, "max_absolute_error must be a finite number"),
        ({"max_absolute_error": True}, "must be a finite number"),
        ({"max_absolute_error": "1"}, "must be a finite number"),
        ({"max_absolute_error": -1}, "max_absolute_error must be >= 0, got -1"),
        ({"factor": 0}, "factor must be > 0, got 0; it multiplies the tolerance"),
        ({"factor": False}, "factor must be a finite number"),
        ({}, "sets nothing"),
        ({"match": {"level": "op"}}, "sets nothing"),
        ({"factor": 2, "reason": 3}, "reason must be a string, got 3"),
        ({"factor": 2, "match": "Linear"}, "match must be a table"),
        ({"factor": 2, "match": {"optype": "x"}}, "match criterion 'optype'; did you mean 'op_type'?"),
        ({"factor": 2, "match": {"level": "ops"}}, "unknown level 'ops'; did you mean 'op'?"),
        ({"factor": 2, "match": {"dtype": "fp16"}}, "unknown dtype 'fp16'"),
        ({"factor": 2, "match": {"dtype": []}}, "match.dtype is an empty list"),
        ({"factor": 2, "match": {"name": ""}}, "match.name must be a string"),
        ({"factor": 2, "match": {"op_type": 3}}, "match.op_type must be a string"),
        ({"factor": 2, "match": {"step": -1}}, "match.step must be"),
        ({"factor": 2, "match": {"step": True}}, "match.step must be"),
        ({"factor": 2, "match": {"step": "prefill"}}, "match.step must be"),
    ],
)
def test_a_mistake_is_told_with_its_place(table: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        rule_from_table(table, "x.toml")
    assert str(caught.value).startswith("x.toml")
    assert told in str(caught.value)


def test_a_custom_metric_needs_a_direction() -> None:
    assert rule_from_table({"snr": {"min": 3}}, "x", ("snr",)).bounds == (Bound("snr", 3.0, True),)
    assert rule_from_table({"snr": {"max": 3}}, "x", ("snr",)).bounds == (Bound("snr", 3.0, False),)
    assert rule_from_table({"snr": False}, "x", ("snr",)).bounds == (Bound("snr", None, False),)
    for wrong in (3, {"above": 3}, {"min": 1, "max": 2}):
        with pytest.raises(
            SettingsError,
            match="snr is a custom metric, so give the side of its bound",
        ):
            rule_from_table({"snr": wrong}, "x", ("snr",))


# Known differences and threshold rules as config files hold them, and what each mistake is told.


TODAY = datetime.date(2027, 3, 31)
TABLE = {
    "match": {"op_type": "Linear"},
    "reason": " int8 ",
    "owner": " mo ",
    "expires": TODAY,
    "at_most": {"mismatches": 3},
}


def known(**changed: object) -> Known:
    return known_from_table(TABLE | changed, "x.toml [[known]] 1", TODAY, ("snr",))


def test_a_full_table_becomes_an_entry() -> None:
    entry = known(at_most={"mean_absolute_error": 1, "snr": 0.5})
    assert entry == Known(
        match=PairCriteria(op_type=("Linear",)),
        reason="int8",
        owner="mo",
        expires=TODAY,
        source="x.toml [[known]] 1",
        at_most=(("mean_absolute_error", 1.0), ("snr", 0.5)),
        expired=False,
    )
    assert entry.origin == "int8 (mo, until 2027-03-31)"


@pytest.mark.parametrize(
    ("expires", "expired"),
    [
        ("2027-03-31", False),
        ("2027-03-30", True),
        (datetime.datetime(2027, 3, 30, 23, 59), True),
        (datetime.date(2028, 1, 1), False),
    ],
)
def test_an_entry_holds_to_the_end_of_its_last_day(expires: object, expired: bool) -> None:
    entry = known(expires=expires)
    assert entry.expired is expired
    assert type(entry.expires) is datetime.date


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"why": "x"}, "unknown key 'why'; known: match, reason, owner, expires, at_most"),
        ({"reason": " "}, "reason must be a text that is not empty"),
        ({"owner": 3}, "owner must be a text that is not empty"),
        ({"match": {}}, "match is missing; without it every failure would be accepted"),
        ({"match": {"optype": "x"}}, "unknown match criterion 'optype'; did you mean 'op_type'?"),
        ({"expires": "soon"}, "expires must be a date such as 2027-03-31"),
        ({"expires": None}, "expires must be a date such as 2027-03-31"),
        ({"expires": "2028-04-01"}, "expires must be at most a year ahead, 2028-03-31, got 2028-04-01"),
        *(
            ({"match": match}, "match is about every operator; name those that differ")
            for match in ({"name": "*"}, {"op_type": ["Linear", "**"]}, {"step": 1}, {"dtype": "float16"})
        ),
        ({"at_most": {}}, "at_most must be a table of how far off is accepted, such as { mean_absolute_"),
        ({"at_most": None}, "at_most must be a table of how far off is accepted, such as { mean_absolute_"),
        (
            {"at_most": 3},
            "at_most must be a table of how far off is accepted, such as { mean_absolute_error = 0.02 }, got",
        ),
        ({"at_most": {"zzz": 3}}, "at_most: unknown metric 'zzz'; known: cosine_similarity, max_relative"),
        ({"at_most": {"snt": 3}}, "at_most: unknown metric 'snt'; did you mean 'snr'?"),
        (
            {"at_most": {"cosine_similarity": 1}},
            "at_most.cosine_similarity has no upper bound (larger is better); name an error metric",
        ),
        ({"at_most": {"snr": True}}, "at_most.snr must be a finite number, got True"),
        ({"at_most": {"snr": "1"}}, "at_most.snr must be a finite number, got '1'"),
        ({"at_most": {"snr": float("inf")}}, "at_most.snr must be a finite number, got inf"),
    ],
)
def test_a_mistake_in_a_known_difference_is_told_with_its_place(
    changed: dict[str, object], told: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        known(**changed)
    assert str(caught.value).startswith(f"x.toml [[known]] 1: {told}")


def test_a_file_holds_rules_and_entries_each_with_its_number() -> None:
    content = {
        "threshold": [{"mismatches": 1}, {"snr": {"max": 2}}],
        "known": [TABLE, TABLE | {"at_most": {"snr": 1}}],
    }
    rules, entries = rules_and_known(content, Path("there/x.toml"), ("snr",))
    assert [rule.source for rule in rules] == ["x.toml [[threshold]] 1", "x.toml [[threshold]] 2"]
    assert [rule.bounds[0] for rule in rules] == [Bound("mismatches", 1.0, False), Bound("snr", 2.0, False)]
    assert [entry.source for entry in entries] == ["x.toml [[known]] 1", "x.toml [[known]] 2"]
    assert [entry.at_most for entry in entries] == [(("mismatches", 3.0),), (("snr", 1.0),)]
    assert rules_and_known({}, Path("x.toml")) == ((), ())


def test_what_has_expired_is_decided_by_the_day_it_is_read() -> None:
    today = datetime.datetime.now(datetime.timezone.utc).date()
    days = [today - datetime.timedelta(2), today + datetime.timedelta(2)]
    tables = [TABLE | {"expires": day} for day in days]
    _, entries = rules_and_known({"known": tables}, Path("x.toml"))
    assert [entry.expired for entry in entries] == [True, False]


@pytest.mark.parametrize("name", ["threshold", "known"])
@pytest.mark.parametrize("value", [{"mismatches": 1}, [3]])
def test_what_is_no_list_of_tables_is_refused(name: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        rules_and_known({name: value}, Path("there/x.toml"))
    assert str(caught.value) == f"there/x.toml: {name} must be written as [[{name}]] tables"


# Rules over defaults: precedence, matching, switching off, and the refusal of blind gates.


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
    assert bound_on(DISTANCE, first).reason == "set by default.toml [[threshold]] 1"
    assert bound_on(DISTANCE, first, second).bound == 0.2
    assert bound_on(DISTANCE, first, second, on_class).bound == 0.3
    assert bound_on(DISTANCE, first, second, *reversed(markers)).bound == 0.4
    assert bound_on(DISTANCE, first, second, *reversed(markers)).reason == (
        "set by marker acc_threshold on TestX::test_y"
    )
    last = bound_on(DISTANCE, first, second, *reversed(markers), hook)
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


# T: its value per dtype and depth, its cap, and that real rounding stays within its parts.


FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize(
    ("dtype", "depth", "expected"),
    [
        ("float16", 0, 8 * 2**-11),
        ("float16", 3, 16 * 2**-11),
        ("bfloat16", 0, 8 * 2**-8),
        ("float32", 0, 8 * 2**-24),
        ("float64", 0, 8 * 2**-53),
    ],
)
def test_without_sums_t_is_eight_roundings_of_the_format_per_layer(
    dtype: str, depth: int, expected: float
) -> None:
    # One accumulated term counts one rounding of the accumulator: 2^-24, or 2^-53 for float64.
    accumulator = 2.0**-53 if dtype == "float64" else 2.0**-24
    value = tolerance(dtype, dtype, depth, 1).value
    assert value == pytest.approx(expected + 8 * accumulator * math.sqrt(1 + depth), rel=1e-12)


def test_the_coarser_side_decides_whichever_side_it_is_on() -> None:
    wide = tolerance("float32", "bfloat16", 2, 64)
    assert wide == tolerance("bfloat16", "float32", 2, 64)
    assert wide.format.name == "bfloat16"


def test_an_integer_side_counts_as_exact() -> None:
    assert tolerance("int8", "float16", 0, 1).format.name == "float16"


def test_two_exact_sides_have_no_tolerance() -> None:
    with pytest.raises(ValueError, match="must be a float dtype, got int32 and bool"):
        tolerance("int32", "bool", 0, 1)


def test_complex_is_judged_like_its_components() -> None:
    assert tolerance("complex64", "complex64", 1, 8).value == tolerance("float32", "float32", 1, 8).value


@given(st.sampled_from(FLOATS), st.integers(0, 200), st.integers(1, 10**6))
def test_t_never_shrinks_with_depth_or_length_and_never_exceeds_the_cap(
    dtype: str, depth: int, length: int
) -> None:
    here = tolerance(dtype, dtype, depth, length).value
    assert 0 < here <= tolerance(dtype, dtype, depth + 1, length).value <= CAP
    assert here <= tolerance(dtype, dtype, depth, 2 * length).value


def test_fp8_is_capped_and_says_so() -> None:
    assert tolerance("float8_e5m2", "float16", 0, 1).value == CAP
    assert "capped at 0.25" in tolerance("float8_e5m2", "float16", 0, 1).reason


@pytest.mark.parametrize(("factor", "times"), [(0.5, 1.0), (1.0, 1.0), (1.5, 1.5), (2.0, 2.0), (43.0, 2.0)])
def test_a_factor_raises_the_cap_to_half_of_golden_at_most(factor: float, times: float) -> None:
    assert cap_of(factor) == times * CAP


def test_an_unknown_length_is_taken_as_a_typical_hidden_width() -> None:
    assert tolerance("float32", "float32", 0, None) == tolerance("float32", "float32", 0, 4096)


def test_the_reason_names_format_length_depth_and_factor() -> None:
    reason = tolerance("float16", "float32", 1, 64, None, 4.0, "moe.toml [[threshold]] 1").reason
    for part in ("2^-11 of float16", "64 terms", "1 layer before", "factor 4 from moe.toml [[threshold]] 1"):
        assert part in reason


def test_the_rounding_of_what_it_was_computed_from_is_still_there() -> None:
    coarse = tolerance("float32", "float32", 0, 1, computed_in="bfloat16")
    assert coarse.value == tolerance("bfloat16", "bfloat16", 0, 1).value
    assert "u = 2^-8 of bfloat16, which it was computed from, sums" in coarse.reason
    assert tolerance("bfloat16", "float32", 0, 1, computed_in="float16") == tolerance(
        "bfloat16", "float32", 0, 1
    )


def test_few_tokens_get_room_for_how_they_differ_and_say_so() -> None:
    many = tolerance("float16", "float16", 0, 64)
    one, eight = (tolerance("float16", "float16", 0, 64, rows=rows) for rows in (1, 8))
    assert one.value == 2 * many.value
    assert eight.value == pytest.approx(many.value * 2 ** (1 / math.sqrt(8)))
    assert one.rounding == many.rounding
    assert "2 for the spread of only 1 row" in one.reason
    assert "1.28 for the spread of only 8 rows" in eight.reason
    assert tolerance("float16", "float16", 0, 64, rows=5000) == many


def test_small_tensors_get_room_for_their_scatter_and_say_so() -> None:
    large = tolerance("float16", "float16", 0, 64)
    small = tolerance("float16", "float16", 0, 64, elements=36)
    assert small.value == pytest.approx(large.value * math.exp(3.72 / 6))
    assert "1.86 for the scatter of only 36 elements" in small.reason
    # 3.72 / sqrt(n) of 140,000 elements is ln 1.01: up to there it is worth saying
    assert tolerance("float16", "float16", 0, 64, elements=139_000).value > large.value
    assert tolerance("float16", "float16", 0, 64, elements=140_000) == large


@pytest.mark.parametrize("elements", [16, 36, 128, 1024])
def test_the_scatter_covers_all_but_one_in_a_thousand_tensors_of_plain_noise(elements: int) -> None:
    # 3.72 sigma is one in 10,000 where the logarithm is normal; for few elements its tail is heavier.
    generator = torch.Generator().manual_seed(elements)
    golden = torch.randn(20_000, elements, generator=generator)
    noise = torch.randn(20_000, elements, generator=generator)
    ratio = noise.norm(dim=1) / golden.norm(dim=1)
    room = (
        tolerance("float16", "float16", 0, 64, elements=elements).value
        / tolerance("float16", "float16", 0, 64).value
    )
    assert (ratio > room).float().mean() <= 1e-3


def test_below_the_normal_range_the_spacing_replaces_the_roundoff() -> None:
    # rms = 2^-20 is 16 spacings of 2^-24: rounding may change it by half a spacing, 2^-5 of it. T caps.
    deep = tolerance("float16", "float16", 0, 1, 2.0**-20)
    assert deep.value == CAP  # 8 * (2^-5 + 2^-24) is more
    assert "u = 0.031, the spacing of subnormal float16 against rms 9.5e-07, sums" in deep.reason
    shallow = tolerance("float16", "float16", 0, 1, 2.0**-16)
    assert shallow.value == pytest.approx(8 * (2.0**-9 + 2.0**-24), rel=1e-12)
    at_the_edge = tolerance("float16", "float16", 0, 1, 2.0**-14)
    assert at_the_edge.value == tolerance("float16", "float16", 0, 1).value


@pytest.mark.parametrize("dtype", [d for d in FLOATS if hasattr(torch, d)])
def test_formats_agree_with_torch(dtype: str) -> None:
    info, found = torch.finfo(getattr(torch, dtype)), by_name(dtype).format
    assert found is not None
    assert found.roundoff == info.eps / 2
    assert found.smallest_normal == info.tiny
    # torch and IEEE agree: the smallest subnormal is the spacing below the normal range.
    assert found.spacing == pytest.approx(info.tiny * info.eps, rel=0, abs=0)


def test_accumulating_k_terms_in_float32_stays_within_sqrt_k_roundings() -> None:
    generator = torch.Generator().manual_seed(7)
    a = torch.randn(64, 4096, generator=generator)
    b = torch.randn(4096, generator=generator)
    running = torch.zeros(64)
    for k in range(4096):  # one rounding per term, the slowest order a kernel can choose
        running = running + a[:, k] * b[k]
    right = a.double() @ b.double()
    error = (running.double() - right).norm() / right.norm()
    assert 0 < error <= math.sqrt(4096) * 2.0**-24


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_stored_results_stay_within_t_of_one_layer(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    golden = torch.randn(64, 64, generator=generator, dtype=torch.float64)
    mine = golden.to(dtype)
    for _ in range(16):
        rotation = torch.linalg.qr(torch.randn(64, 64, generator=generator, dtype=torch.float64))[0]
        golden = golden @ rotation
        mine = (mine.double() @ rotation).to(dtype)
    error = ((mine.double() - golden).norm() / golden.norm()).item()
    t = tolerance(str(dtype).removeprefix("torch."), "float64", 0, 64).value
    assert t / 20 < error < t
