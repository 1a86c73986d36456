"""Columns of a page: numbers to about a percent, texts exactly."""

from __future__ import annotations

import itertools
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.reporting.html.columns import STEPS_PER_DECADE, Numbers, Texts, differences, quantised

from .made import value


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
def test_texts_come_back_in_the_order_asked_for(texts: list[str], chance: object) -> None:
    column = Texts()
    for text in texts:
        column.add(text)
    order = list(range(len(texts)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    packed = column.packed(order, 100)
    found = [packed["texts"][code] for code in itertools.accumulate(packed["codes"])]
    assert found == [texts[index] for index in order]
    assert len(packed["texts"]) == len(set(texts))


def test_codes_are_given_in_order_of_appearance_so_that_they_differ_by_little() -> None:
    column = Texts()
    for text in ("z", "y", "x", "z", "y", "x"):
        column.add(text)
    assert column.packed(range(5, -1, -1), 10)["codes"] == [0, 1, 1, -2, 1, 1]


def test_numbers_that_begin_late_are_nothing_before() -> None:
    column = Numbers(2)
    column.add(1.0)
    assert column.packed([0, 1, 2]) == [0, 0, 10 + 60 * STEPS_PER_DECADE]


@given(st.lists(st.integers(-100, 10**6)))
def test_differences_add_up(values: list[int]) -> None:
    assert list(itertools.accumulate(differences(values))) == values
