"""What is kept of a row for root analysis."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from acc_pytest.diagnosis.pair_state import PairState, level_of
from acc_pytest.diagnosis.recomputation import Recomputation
from acc_pytest.diagnosis.replayed import with_replay
from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.row import Row, RowSide

from .plans import row_of

ROW = row_of(4, 0.5)


def state(row: Row) -> PairState:
    return PairState.of(row, 4)


@pytest.mark.parametrize(
    ("verdict", "compared", "failing"),
    [
        ("pass", True, False),
        ("tie", True, False),
        ("fail", True, True),
        ("inherited", True, True),
        ("known", True, True),
        ("unmapped", False, False),
        ("incomparable", False, False),
    ],
)
def test_a_verdict_says_whether_a_pair_was_compared_and_fails(
    verdict: str, compared: bool, failing: bool
) -> None:
    found = state(replace(ROW, verdict=verdict))
    assert (found.compared, found.failing) == (compared, failing)


def test_numbers_and_names_are_those_of_the_row() -> None:
    found = state(ROW)
    assert (found.number, found.name, found.level, found.error) == (4, "Op_4", 0.5, 0.005)
    assert (found.shapes_differ, found.said, found.masked, found.replayed) == (False, "", False, "")
    assert state(replace(ROW, metrics={})).error is None
    assert state(replace(ROW, metrics={"relative_euclidean_distance": "N/A"})).error is None
    assert state(replace(ROW, shapes_differ=True)).shapes_differ


def test_what_a_run_was_fed_speaks_for_itself() -> None:
    assert state(replace(ROW, fed="mask")).said == ROW.sentence


@pytest.mark.parametrize(("least", "masked"), [(-65504.0, True), (-1e4, True), (-12.0, False), (None, False)])
def test_values_of_a_mask_are_seen(least: float | None, masked: bool) -> None:
    assert state(replace(ROW, golden=RowSide(min=least))).masked is masked


@pytest.mark.parametrize("outcome", ["right", "wrong", ""])
def test_what_replay_found_is_kept(outcome: str) -> None:
    row = with_replay(ROW, Recomputation(outcome, 0.5, "why"))
    assert state(row).replayed == outcome


def test_the_level_is_that_of_the_worst_check_against_golden() -> None:
    off = Check("max_absolute_error", 9.0, math.inf, False, "", True)
    replay = Check("replay_error", 9.0, 1.0, False, "", False)
    more = Check("max_absolute_error", 3.0, 4.0, False, "", True)
    assert level_of(replace(ROW, checks=(*ROW.checks, off, replay, more))) == 0.75
    assert level_of(replace(ROW, checks=(off,))) == 0.0
    assert level_of(replace(ROW, checks=(), verdict="fail")) == math.inf
