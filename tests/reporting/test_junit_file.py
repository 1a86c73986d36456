"""Rows as JUnit: outcomes as tests end, counts that agree, and no name or text that breaks the file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from acc_pytest.errors import AccError
from acc_pytest.reporting.junit import JunitFile, address
from acc_pytest.reporting.row import Cause, Row
from acc_pytest.reporting.summary import Tally
from acc_pytest.reporting.view import Result, Run


def written(path: Path, *rows: Row, warns: bool = False) -> ElementTree.Element:
    view = JunitFile(str(path / "j.xml"), warns=warns)
    view.begin(Run())
    for row in rows:
        view.add(row)
    view.finish(Result(0, Tally(), None, ""))
    view.land()
    assert view.files == [str(path / "j.xml")]
    return ElementTree.parse(path / "j.xml").getroot()


def outcomes(root: ElementTree.Element) -> dict[str, str]:
    return {
        f"{case.get('classname')}.{case.get('name')}": "".join(one.get("type") or one.tag for one in case)
        for case in root.iter("testcase")
    }


@pytest.mark.parametrize(
    ("node_id", "expected"),
    [
        ("d::step0::layers.3::Linear_1[in][0]", ("d.step0.layers.3", "Linear_1[in][0]")),
        ("tests/e2e/test_own.py::test_it[a::b/c]", ("tests.e2e.test_own", "test_it[a::b/c]")),
        ("tests/test_own.py::Class::test_it", ("tests.test_own.Class", "test_it")),
    ],
)
def test_addresses_are_those_of_pytest(node_id: str, expected: tuple[str, str]) -> None:
    assert address(node_id) == expected


def test_each_outcome_is_what_the_test_had(tmp_path: Path) -> None:
    cause = Cause("inherited", "dataflow", text="its input was wrong")
    root = written(
        tmp_path,
        Row("d::pass", "pass", "good"),
        Row("d::fail", "fail", "bad"),
        Row("d::inherited", "inherited", "bad", cause=cause),
        Row("d::strict", "inherited", "bad", cause=cause, strict=True),
        Row("d::known", "known", "accepted"),
        Row("d::broken", "incomparable", "file is cut"),
        Row("d::described", "incomparable", "no values", skipped=True),
        Row("d::alone", "unmapped", "no partner"),
        Row("d::must", "unmapped", "no partner", strict=True),
        Row("", "unmapped", "no test"),
        Row("d::two", "pass", "good"),
        Row("d::two", "fail", "bad"),
    )
    assert outcomes(root) == {
        "d.pass": "",
        "d.fail": "failure",
        "d.inherited": "pytest.xfail",
        "d.strict": "failure",
        "d.known": "pytest.xfail",
        "d.broken": "failure",
        "d.described": "pytest.skip",
        "d.alone": "pytest.skip",
        "d.must": "failure",
        "d.two": "failure",
    }
    suite = root.find("testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")} == {
        "tests": "10",
        "failures": "5",
        "skipped": "4",
        "errors": "0",
    }
    messages = [one.get("message") for one in root.iter("skipped")]
    assert messages == ["its input was wrong", "accepted", "no values", "no partner"]


@pytest.mark.parametrize(
    "text", ['"><x y="', "]]>", "a\x00b\x1b[31m\ufffe", "\ud800", "&amp;<b>", "x" * 10_000]
)
def test_any_text_leaves_a_file_that_can_be_read(tmp_path: Path, text: str) -> None:
    root = written(tmp_path, Row(f"d::{text}", "fail", text, reasons=(text,)), Row("d::s", "unmapped", text))
    assert {one.tag for one in root.iter()} == {"testsuites", "testsuite", "testcase", "failure", "skipped"}
    failure = root.find(".//failure")
    assert failure is not None
    assert len(failure.get("message", "")) <= 1000


def test_inherited_failures_that_were_warnings_pass(tmp_path: Path) -> None:
    rows = (Row("d::inherited", "inherited", "bad"), Row("d::known", "known", "accepted"))
    assert outcomes(written(tmp_path, *rows, warns=True)) == {"d.inherited": "", "d.known": "pytest.xfail"}


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AccError, match="cannot be written"):
        JunitFile(str(tmp_path / "file" / "j.xml")).begin(Run())
