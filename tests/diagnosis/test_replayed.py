"""What replay found of a pair: kept in its row, shown as checks, and read back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from acc_pytest.comparison import compare_tensors
from acc_pytest.diagnosis.evidence import (
    ACCUMULATED,
    as_accumulated,
    as_replayed,
    judged_by_replay,
    may_accumulate,
    needed_tolerance,
    replay_of,
    stored_replay,
    with_replay,
)
from acc_pytest.diagnosis.recomputation import Recomputation
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.rules import rule_from_marker
from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.row import Cause, Row
from acc_pytest.tensors.source import TensorSource

ROW = Row("test_x", "pass", "all is well")
RIGHT = Recomputation("right", 0.001, "", 0.002, 0.004, "twice its noise", 0.003, 0.01)
WRONG = Recomputation("wrong", 0.04, "", 0.002, 0.004, "twice its noise")
UNKNOWN = Recomputation(why="its inputs were not dumped")
ABOVE = Check("relative_l2", 0.3, 0.1, False, "T", False)
BELOW = Check("cosine", 0.9, 0.8, True, "T", True)


def shown(row: Row) -> list[tuple[str, float | None, float, bool, bool, str]]:
    return [(c.metric, c.measured, c.allowed, c.at_least, c.passed, c.reason) for c in row.checks]


@pytest.mark.parametrize("found", [RIGHT, WRONG, UNKNOWN, Recomputation("wrong", None, "2 rows are wrong")])
def test_a_row_gives_back_what_was_put_in(found: Recomputation) -> None:
    row = with_replay(ROW, found)
    assert replay_of(row) == stored_replay(row) == found
    assert with_replay(row, found) == row, "twice is once"


def test_right_operators_add_their_checks() -> None:
    row = with_replay(replace(ROW, checks=(BELOW,)), RIGHT)
    assert (row.verdict, row.sentence, row.notes) == ("pass", "all is well", ())
    assert shown(row)[1:] == [
        ("replay_error", 0.001, 0.004, False, True, "twice its noise"),
        ("replay_row_error", 0.003, 0.01, False, True, "the worst row; twice its noise"),
    ]


def test_a_wrong_operator_fails_its_row_whatever_golden_says() -> None:
    row = with_replay(replace(ROW, skipped=True, reasons=("another",)), WRONG)
    said = "the operator is wrong on its own inputs: relative L2 error 0.04 (20 times its rounding)"
    assert (row.verdict, row.skipped, row.sentence, row.reasons) == ("fail", False, said, (said, "another"))
    assert shown(row) == [("replay_error", 0.04, 0.004, False, False, "twice its noise")]


@pytest.mark.parametrize(
    "found",
    [
        Recomputation("wrong", None, "2 rows are wrong"),
        Recomputation("wrong", 0.1, "2 rows are wrong", 0.1, 0.2),
    ],
)
def test_what_is_wrong_beyond_no_bound_has_a_check_that_fails(found: Recomputation) -> None:
    row = with_replay(ROW, found)
    assert row.sentence == "the operator is wrong on its own inputs: 2 rows are wrong"
    assert shown(row)[-1] == ("replay_wrong", 1.0, 0.0, False, False, "2 rows are wrong")
    of_rows = with_replay(ROW, Recomputation("wrong", 0.1, "w", 0.1, 0.2, "r", 0.5, 0.4))
    assert [check[0] for check in shown(of_rows)] == ["replay_error", "replay_row_error"]


def test_a_wrong_operator_of_which_nothing_more_is_known() -> None:
    row = with_replay(ROW, Recomputation("wrong", reason="by its bound"))
    assert row.sentence == "the operator is wrong on its own inputs"
    assert shown(row) == [("replay_wrong", 1.0, 0.0, False, False, "by its bound")]


def test_an_operator_that_was_not_computed_is_a_note() -> None:
    row = with_replay(replace(ROW, notes=("seen",)), UNKNOWN)
    assert (row.verdict, row.checks) == ("pass", ())
    assert row.notes == ("seen", "not computed again: its inputs were not dumped")


def test_without_golden_replay_is_the_verdict() -> None:
    unknown = judged_by_replay(ROW, UNKNOWN)
    why = "not computed again: its inputs were not dumped"
    assert (unknown.verdict, unknown.sentence, unknown.reasons, unknown.skipped, unknown.notes) == (
        "incomparable", why, (why,), True, (),
    )  # fmt: skip
    right = judged_by_replay(ROW, RIGHT)
    said = "the operator is right on its own inputs"
    assert (right.verdict, right.sentence) == ("pass", f"{said}: relative L2 error 0.001")
    assert judged_by_replay(ROW, Recomputation("right")).sentence == said
    assert judged_by_replay(ROW, WRONG).verdict == "fail"


def test_rows_that_hold_something_else_have_no_replay() -> None:
    assert replay_of(ROW) is None
    assert as_replayed(ROW) is ROW
    for context in (
        {"replay_outcome": "perhaps"},
        {"replay_outcome": "right", "replay_error": "much"},
        {"replay_outcome": 1},
    ):
        assert replay_of(replace(ROW, context=context)) is None, context
    assert replay_of(replace(ROW, context={"replay_why": "it"})) == Recomputation(why="it")


def test_rows_without_replay_know_what_looking_for_their_cause_found() -> None:
    assert stored_replay(ROW) is None
    assert stored_replay(replace(ROW, cause=Cause("root", "local"))) is None
    looked = replace(ROW, cause=Cause("root", "local", local="wrong", local_error=0.5))
    assert stored_replay(looked) == Recomputation("wrong", 0.5)
    assert stored_replay(with_replay(looked, RIGHT)) == RIGHT


def lifted_row() -> Row:
    """A pair of bfloat16 beyond its bound of T = 0.02: relative L2 0.1."""
    golden = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
    mine = (golden + 0.1 * noise).bfloat16()
    judge = Judge((rule_from_marker({"relative_euclidean_distance": 0.02}, "x"),))
    row = compare_tensors(TensorSource(golden), TensorSource(mine), lambda: judge, "id", "x")
    assert row.verdict == "fail"
    return replace(row, checks=tuple(check._replace(reason="derived") for check in row.checks))


def test_accumulated_rounding_passes_up_to_its_own_bound_and_says_so() -> None:
    row = lifted_row()
    assert may_accumulate(row)
    need = needed_tolerance(row)
    assert need == pytest.approx(0.1, rel=0.05)
    passed = as_accumulated(row, 0.12)
    assert (passed.verdict, passed.reasons, passed.context[ACCUMULATED]) == ("pass", (), 0.12)
    assert passed.times_lifted == pytest.approx(0.1 / 0.02, rel=0.1)
    assert passed.sentence in passed.notes
    assert "times the bound without it: T = 0.12" in passed.sentence
    distance = next(check for check in passed.checks if check.metric == "relative_euclidean_distance")
    assert (distance.allowed, distance.passed) == (0.12, True)
    assert "else <= 0.02" in distance.reason
    assert not any(math.isinf(check.allowed) for check in passed.checks)


def test_the_needed_tolerance_is_the_least_that_lifts() -> None:
    row = lifted_row()
    need = needed_tolerance(row)
    assert all(check.passed for check in as_accumulated(row, need * 1.0001).checks)
    assert not all(check.passed for check in as_accumulated(row, need * 0.999).checks)


def test_no_rounding_lifts_a_nan_or_a_bound_that_somebody_set() -> None:
    row = lifted_row()
    checks = tuple(replace_metric(check, "new_nonfinite") for check in row.checks)
    assert needed_tolerance(replace(row, checks=checks)) == math.inf
    meant = tuple(check._replace(reason="set by marker") for check in row.checks)
    assert needed_tolerance(replace(row, checks=meant)) == math.inf


def replace_metric(check: Check, metric: str) -> Check:
    return check if check.passed else check._replace(metric=metric)


def test_tensors_of_other_tokens_are_not_judged() -> None:
    row = replace(ROW, verdict="incomparable", sentence="other shapes", reasons=("other shapes",))
    assert not may_accumulate(row)
    row = replace(row, shapes_differ=True)
    assert may_accumulate(row)
    tie = as_accumulated(row, 0.0)
    assert (tie.verdict, tie.reasons, tie.red) == ("tie", ("other shapes",), False)
    assert tie.sentence == "other shapes: a choice above differs by rounding that has accumulated"


def test_what_a_gate_found_is_no_rounding() -> None:
    assert not may_accumulate(ROW)
    gate = ABOVE._replace(metric="baseline.relative_l2")
    assert not may_accumulate(replace(ROW, verdict="fail", checks=(ABOVE, gate)))
    assert may_accumulate(replace(ROW, verdict="fail", checks=(ABOVE, gate._replace(passed=True))))


@pytest.mark.parametrize(
    ("found", "beyond"),
    [
        (Recomputation("wrong", 0.041, allowed=0.02), True),
        (Recomputation("wrong", 0.039, allowed=0.02), False),
        (Recomputation("wrong", 0.01, allowed=0.02, row_error=0.9, row_allowed=0.4), True),
        (Recomputation("wrong", 0.01, allowed=0.02, row_error=0.7, row_allowed=0.4), False),
        (Recomputation("right", 0.041, allowed=0.02), False),
        (Recomputation("wrong", None, "2 of 9 elements are not those it moves"), False),
    ],
)
def test_an_operator_is_wrong_beyond_doubt_at_twice_its_bound(found: Recomputation, beyond: bool) -> None:
    assert found.is_beyond(2.0) is beyond
