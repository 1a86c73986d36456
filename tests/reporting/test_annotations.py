"""`::error` lines: few, one a root, and nothing in a name can become a command of its own."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, strategies

from acc_pytest.reporting.markdown import MOST, Annotations, annotation, on_github
from acc_pytest.reporting.row import Row, RowSide
from acc_pytest.reporting.summary import Tally
from acc_pytest.reporting.view import Diagnosis, Result, Root

COMMAND = re.compile(r"::error title=((?:[^:,\r\n%]|%[0-9A-F]{2})*)::((?:[^\r\n%]|%[0-9A-F]{2})*)")
"""What GitHub's runner takes for one command: no raw end of line, no raw separator in the title."""


def row(number: int | None, verdict: str = "fail", name: str = "Linear", **more: Any) -> Row:
    values: dict[str, Any] = {"sentence": f"{name} is wrong", "mine": RowSide(name=name), **more}
    return Row(f"d::{number}", verdict, number=number, **values)


def root(number: int) -> Root:
    one = row(number, name=f"root{number}")
    return Root(number, one.name, one.test_id, one, 3, None, None, "dataflow", f"{one.name} starts it")


def printed(view: Annotations, capsys: pytest.CaptureFixture[str], **more: Any) -> list[str]:
    view.finish(Result(1, Tally(), None, "", **more))
    capsys.readouterr()
    view.close()
    return capsys.readouterr().out.splitlines()


@given(strategies.text(), strategies.text())
def test_any_two_texts_are_one_command(title: str, message: str) -> None:
    assert COMMAND.fullmatch(annotation(title, message))


def test_the_escapes_are_those_of_github() -> None:
    """By GitHub's table: `%` everywhere, `:` and `,` in properties; ends of lines do not get that far."""
    assert annotation("100%, a:b", "100%, a:b") == "::error title=100%25%2C a%3Ab::100%25, a:b"


def test_only_github_is_github() -> None:
    assert on_github({"GITHUB_ACTIONS": "true"})
    assert not on_github({"GITHUB_ACTIONS": "false"})
    assert not on_github({"CI": "true"})


def test_roots_are_shown_in_order_and_never_more_than_ten(capsys: pytest.CaptureFixture[str]) -> None:
    view = Annotations()
    for number in range(50):
        view.add(row(number))
    roots = tuple(root(number) for number in range(0, 40, 2))
    lines = printed(view, capsys, diagnosis=Diagnosis(roots, 30, ""))
    assert len(lines) == MOST
    assert lines[0] == "::error title=root cause%3A root0::root0 starts it [d::0]"
    assert [int(line.partition("root cause%3A root")[2].partition("::")[0]) for line in lines] == list(
        range(0, 20, 2)
    )


def test_after_the_roots_comes_what_could_not_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    view = Annotations()
    for number in (9, 4, 7):
        view.add(row(number, "incomparable" if number != 4 else "fail", f"n{number}"))
    view.add(row(1, "incomparable", skipped=True))
    view.add(row(2, "pass"))
    lines = printed(view, capsys, diagnosis=Diagnosis((root(4),), 0, ""), problems=("below the floor",))
    assert lines == [
        "::error title=root cause%3A root4::root4 starts it [d::4]",
        "::error title=n7 could not be compared::n7 is wrong [d::7]",
        "::error title=n9 could not be compared::n9 is wrong [d::9]",
        "::error title=accuracy run::below the floor",
    ]


def test_without_causes_the_first_failing_rows_stand_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    view = Annotations()
    for number in reversed(range(1000)):
        view.add(row(number, name=f"n{number}"))
    view.add(row(None, name="own"))
    lines = printed(view, capsys)
    assert [line.partition("title=")[2].partition(" ")[0] for line in lines] == [f"n{n}" for n in range(10)]


def test_a_green_run_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    view = Annotations()
    view.add(row(0, "pass"))
    assert printed(view, capsys) == []


def test_an_interrupted_run_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    view = Annotations()
    view.add(row(0))
    view.close()
    assert capsys.readouterr().out == ""
