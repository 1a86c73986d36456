"""A fault in one case of many is reported with its name."""

from __future__ import annotations

import pytest

from tests.each_case import check_each


def test_every_case_that_fails_is_named_and_the_others_are_checked_too() -> None:
    checked: list[int] = []

    def even(number: int) -> None:
        checked.append(number)
        assert number % 2 == 0, f"{number} is odd"
        if number == 4:
            pytest.fail("four")

    with pytest.raises(pytest.fail.Exception) as raised:
        check_each([(f"case {number}", number) for number in range(6)], even)
    said = str(raised.value)
    assert checked == [*range(6)]
    assert said.startswith("4 of 6 cases fail\ncase 1: AssertionError: 1 is odd\n")
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith("case ")] == [
        "case 1",
        "case 3",
        "case 4",
        "case 5",
    ]


def test_all_right_is_no_failure_and_nothing_to_check_is_one() -> None:
    check_each([("only", 1)], lambda case: case)
    with pytest.raises(AssertionError, match="there are no cases"):
        check_each([], lambda case: case)
