"""Lines wrapped to a screen."""

from __future__ import annotations

import shlex

import pytest

from acc_pytest.reporting.texts import LONGEST, columns, paragraph, wrapped, wrapped_command


def test_what_fits_is_left_alone() -> None:
    assert wrapped("  a  line   with gaps", 80) == ["  a  line   with gaps"]


def test_words_are_wrapped_and_the_rest_is_indented() -> None:
    assert wrapped("note: one two three", 12) == ["note: one", "    two", "    three"]


def test_what_follows_a_label_is_set_under_it() -> None:
    assert wrapped("mine    float16 [7] Linear", 20) == ["mine    float16 [7]", "        Linear"]


def test_a_path_longer_than_the_width_stays_whole() -> None:
    path = "/" + "d" * (LONGEST - 10)
    assert wrapped(f"the file {path} is cut", 40) == ["the file", f"    {path}", "    is cut"]


@pytest.mark.parametrize("part", ["directory/", "x", "\u76ee\u5f55/"])
def test_what_no_line_can_hold_is_folded_and_loses_nothing(part: str) -> None:
    path = "/" + part * 300
    lines = wrapped(f"error: {path} is a pipe", 80)
    assert max(map(columns, lines)) <= LONGEST
    assert "".join(lines).replace(" ", "") == f"error: {path} is a pipe".replace(" ", "")


def test_a_text_is_wrapped_for_where_something_stands_before_it() -> None:
    assert paragraph("one two\nthree four", "ERROR: ", 20) == "one two\nthree four"
    assert paragraph("one two three four", "ERROR: ", 20) == "one two three\n    four"
    assert paragraph("/" + "d" * 60, "ERROR: ", 40) == "\n    /" + "d" * 60
    assert paragraph("/" + "d/" * 60, "ERROR: ", 40).startswith("/d/d/")
    assert paragraph("one two", "i" * 1000, 20) == "\n   one two"


def test_a_wide_character_takes_two_columns() -> None:
    assert columns("ab\u6f02e\u0301") == 5


def test_a_command_stays_one_command() -> None:
    command = shlex.join(["pytest", "--acc-golden=a b", "--acc-mine=" + "m" * 90, "d::step0::x[1]", "-q"])
    lines = wrapped_command(command, 60)
    assert len(lines) > 1
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)
