"""`Row` and `Check`: the trip to another process, excess, what counts as red."""

from __future__ import annotations

import math
import pickle

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.base.vocabulary import number
from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.row import Row, RowSide, WorstElement, native

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
sides = st.builds(
    RowSide, node=st.text(max_size=5), path=st.text(max_size=5), max=st.none() | st.floats(allow_nan=False)
)
checks = st.builds(
    Check,
    metric=st.text(max_size=5),
    measured=st.none() | st.floats(allow_nan=False),
    allowed=st.floats(allow_nan=False),
    at_least=st.booleans(),
    reason=st.text(max_size=5),
    passed=st.booleans(),
)
rows = st.builds(
    Row,
    test_id=st.text(max_size=5),
    verdict=st.sampled_from(["pass", "fail", "incomparable"]),
    sentence=st.text(max_size=5),
    number=st.none() | st.integers(0),
    golden=sides,
    mine=sides,
    metrics=st.dictionaries(st.text(max_size=3), st.none() | st.floats(allow_nan=False), max_size=3),
    counts=st.dictionaries(st.text(max_size=3), st.none() | st.integers(0, 2**70), max_size=3),
    custom=st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False) | st.text(max_size=3), max_size=3),
    worst=st.builds(WorstElement, index=st.text(max_size=5), golden=scalars, mine=scalars),
    checks=st.lists(checks, max_size=3).map(tuple),
    reasons=st.lists(st.text(max_size=5), max_size=3).map(tuple),
)


@given(rows)
def test_a_row_survives_the_trip_to_another_process(row: Row) -> None:
    assert pickle.loads(pickle.dumps(row)) == row


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (numpy.float32(0.5), 0.5),
        (numpy.int64(3), 3),
        (torch.tensor(2.5), 2.5),
        (True, True),
        (None, None),
        ("text", "text"),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_native_makes_builtins_of_foreign_scalars(value: object, wanted: object) -> None:
    made = native(value)
    assert made == wanted
    assert type(made) is type(wanted)


@pytest.mark.parametrize(
    ("measured", "allowed", "at_least", "excess"),
    [
        (0.2, 0.1, False, 2.0),
        (0.05, 0.1, False, 0.5),
        (0.2, 0.0, False, math.inf),
        (None, 0.1, False, math.inf),
        (math.nan, 0.1, False, math.inf),
        # 1 - cos grows with the square of the error: 4 times the distance from 1 is twice the error.
        (0.96, 0.99, True, 2.0),
        (0.9, 1.0, True, math.inf),
    ],
)
def test_excess_is_the_measured_error_in_multiples_of_the_allowed(
    measured: float | None, allowed: float, at_least: bool, excess: float
) -> None:
    check = Check("m", measured, allowed, at_least, "", passed=False)
    # Two subtractions from 1 and a division: a few roundings of 2^-53 relative to distances >= 0.01.
    assert check.excess == pytest.approx(excess, rel=100 * 4 * 2.0**-53)


def test_nothing_allowed_and_nothing_measured_is_no_excess() -> None:
    assert Check("m", 0.0, 0.0, False, "", passed=True).excess == 0.0


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (Check("m", 0.0, 0.25, False, "", True), "<= 0.25"),
        (Check("m", 0.0, 0.999, True, "", True), ">= 0.999"),
        (Check("m", 0.0, 1 - 2.0**-40, True, "", True), ">= 1 - 9.09e-13"),
        (Check("m", 0.0, math.inf, False, "", True), "off"),
        (Check("m", 0.0, -math.inf, True, "", True), "off"),
    ],
)
def test_a_bound_reads_as_people_write_it(check: Check, text: str) -> None:
    assert check.bound == text


def test_numbers_that_six_digits_would_round_to_one_keep_their_distance() -> None:
    assert number(1.0) == "1"
    assert number(0.9999999) == "1 - 1e-07"
    assert number(1.0000001) == "1"
    assert number(7) == "7"


@pytest.mark.parametrize(
    ("verdict", "skipped", "red"),
    [
        ("pass", False, False),
        ("fail", False, True),
        ("incomparable", False, True),
        ("incomparable", True, False),
    ],
)
def test_a_row_is_red_when_its_test_fails(verdict: str, skipped: bool, red: bool) -> None:
    assert Row("id", verdict, "", skipped=skipped).red is red


def test_a_row_is_called_by_mines_node() -> None:
    assert Row("id", "pass", "", golden=RowSide(name="g"), mine=RowSide(name="m")).name == "m"
    assert Row("id", "pass", "", golden=RowSide(name="g")).name == "g"
    assert Row("id", "pass", "").name == "id"
