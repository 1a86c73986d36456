"""Names taken apart, and inputs told apart: the two small searches of the mapping."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.mapping.torchair.operators import arrivals, readings

NAMES = {"Add", "Add_1", "Add_12", "Mul", "Mul_1", "MulAdd"}


def test_a_fused_name_is_read_to_its_end() -> None:
    assert readings("Mul_1Add_12", NAMES) == [("Mul_1", "Add_12")]
    assert readings("Add", NAMES) == [("Add",)]


def test_a_beginning_that_is_a_name_is_no_reading() -> None:
    assert readings("Add_25", NAMES) == []
    assert readings("Add_1_ub_fusion", NAMES) == []
    assert readings("Add_12x", NAMES) == []


def test_the_fewest_names_win() -> None:
    assert readings("MulAdd_1", NAMES) == [("Mul", "Add_1")]
    assert readings("MulAddAdd", NAMES) == [("MulAdd", "Add")]


def test_readings_of_equal_length_are_all_told() -> None:
    assert sorted(readings("aab", {"a", "ab", "aa", "b"})) == [("a", "ab"), ("aa", "b")]


def test_a_name_with_thousands_of_readings_is_bounded() -> None:
    assert len(readings("a" * 400, {"a" * size for size in range(3, 8)})) <= 16


@given(st.lists(st.sampled_from(sorted(NAMES)), min_size=1, max_size=6))
def test_what_was_put_together_is_among_the_readings_or_beaten_by_fewer(parts: list[str]) -> None:
    found = readings("".join(parts), NAMES)
    assert tuple(parts) in found or len(found[0]) < len(parts)


def test_equal_numbers_leave_no_choice() -> None:
    assert arrivals("ab", [[True, False], [False, True]], 2) == ["a", "b"]


def test_an_input_left_out_is_found_by_its_shape_or_not_at_all() -> None:
    # Of a, b, c one was not dumped; only c may be the second input, so a or b is the first.
    assert arrivals("abc", [[True, False], [True, False], [False, True]], 2) == [None, "c"]
    assert arrivals("abc", [[True, True]] * 3, 2) == [None, None]


def test_one_tensor_twice_is_no_choice() -> None:
    assert arrivals("aa", [[True], [True]], 1) == ["a"]


def test_more_inputs_than_edges_are_none_of_them() -> None:
    assert arrivals("a", [[True, True]], 2) == [None, None]
    assert arrivals("", [], 2) == [None, None]
