"""What people may write in a [[threshold]] table or a marker, and what each mistake is told."""

from __future__ import annotations

import pytest

from acc_pytest.errors import SettingsError
from acc_pytest.judging.rules import rule_from_marker, rule_from_table
from acc_pytest.judging.threshold import Bound, PairCriteria


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
