"""Columns of a page: numbers to about a percent, texts exactly."""

from __future__ import annotations

import itertools
import math
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.reporting.html.data import STEPS_PER_DECADE, Numbers, Texts, differences
from acc_pytest.reporting.row import Scalar

from .made import value


def quantised(number: Scalar) -> int:
    """The code of one number in a column of its own."""
    column = Numbers()
    column.add(number)
    (code,) = column.packed([0])
    return code


@given(st.floats(1e-59, 1e59), st.sampled_from((1, -1)))
def test_a_number_survives_to_half_a_step(size: float, sign: int) -> None:
    found = value(quantised(sign * size), STEPS_PER_DECADE)
    assert found is not None
    assert abs(math.log10(found / (sign * size))) <= 0.5 / STEPS_PER_DECADE * (1 + 1e-9)


@pytest.mark.parametrize("number", [None, 0, 0.0, -0.0, math.nan, math.inf, -math.inf])
def test_what_has_no_logarithm_has_a_code_of_its_own(number: float | None) -> None:
    found = value(quantised(number), STEPS_PER_DECADE)
    assert repr(found) == repr(
        None if number is None else abs(float(number)) if number == 0 else float(number)
    )


@pytest.mark.parametrize("number", [5e-324, sys.float_info.max, 10**400, -(10**400), 1e-300, 2**63])
def test_every_code_fits_sixteen_bits(number: float) -> None:
    assert -(2**15) <= quantised(number) < 2**15


@pytest.mark.parametrize("word", ["7", True, False])
def test_what_is_no_number_is_nothing(word: str | bool) -> None:
    assert quantised(word) == 0


@given(st.lists(st.sampled_from(["a", "b", "", "c"])), st.randoms(use_true_random=False))
def test_texts_come_back_in_the_order_asked_for(texts: list[str], chance: Random) -> None:
    column = Texts()
    for text in texts:
        column.add(text)
    order = list(range(len(texts)))
    chance.shuffle(order)
    packed = column.packed(order, 100)
    found = [packed["texts"][code] for code in itertools.accumulate(packed["codes"])]
    assert found == [texts[index] for index in order]
    assert len(packed["texts"]) == len(set(texts))


def test_codes_are_given_in_order_of_appearance_so_that_they_differ_by_little() -> None:
    column = Texts()
    for text in ("z", "y", "x", "z", "y", "x"):
        column.add(text)
    assert list(column.packed(range(5, -1, -1), 10)["codes"]) == [0, 1, 1, -2, 1, 1]


def test_numbers_that_begin_late_are_nothing_before() -> None:
    column = Numbers(2)
    column.add(1.0)
    assert list(column.packed([0, 1, 2])) == [0, 0, 10 + 60 * STEPS_PER_DECADE]


def test_a_column_longer_than_a_block_stays_in_order() -> None:
    numbers, texts = Numbers(), Texts()
    for number in range(10_000):
        numbers.add(float(number))
        texts.add(str(number % 7))
    order = [9_999, 0, 4_096, 5]
    found = [value(code, STEPS_PER_DECADE) for code in numbers.packed(order)]
    assert found == pytest.approx([9_999, 0, 4_096, 5], rel=0.01)
    packed = texts.packed(order, 9)
    assert [packed["texts"][code] for code in itertools.accumulate(packed["codes"])] == ["3", "0", "1", "5"]


@pytest.mark.parametrize(("number", "distance"), [(0.9, 0.1), (1.5, 0.0), (math.nan, math.nan), (None, None)])
def test_a_distance_from_one_is_kept_where_it_is_asked_for(number: Scalar, distance: Scalar) -> None:
    column = Numbers(is_similarity=True)
    column.add(number)
    found = value(column.packed([0])[0], STEPS_PER_DECADE)
    assert found == distance if distance is None else found == pytest.approx(distance, rel=0.01, nan_ok=True)


@given(st.lists(st.integers(-100, 10**6)))
def test_differences_add_up(values: list[int]) -> None:
    assert list(itertools.accumulate(differences(values))) == values
