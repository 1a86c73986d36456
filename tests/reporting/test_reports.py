"""Cells, file names, and rows that are on disk at once."""

from __future__ import annotations

import csv
import io
import math
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import AccError
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Plan
from acc_pytest.outputs import Growing
from acc_pytest.reporting.csv_report import OLD_COLUMNS, OUR_COLUMNS, CsvReport, new_report, plain_text, text
from acc_pytest.reporting.junit import JunitFile, address
from acc_pytest.reporting.row import Cause, Row, RowSide, WorstElement
from acc_pytest.reporting.summary import Tally, run_verdict, times
from acc_pytest.reporting.view import Diagnosis, Result, Root, Run

from .html.made import inherited, made_row, result_of

DANGEROUS = "=+-@"


def written(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def begun(begin_file: Callable[[], Growing], custom: Sequence[str] = ()) -> CsvReport:
    report = CsvReport(begin_file, custom)
    report.begin(Run())
    return report


@pytest.mark.parametrize("start", DANGEROUS)
def test_text_that_a_spreadsheet_would_run_is_made_text(start: str) -> None:
    assert text(start + "cmd|' /C calc'!A0") == "'" + start + "cmd|' /C calc'!A0"


@pytest.mark.parametrize("start", ["\0", "\t", "\r", "\n", "\x1b"])
def test_what_cannot_be_seen_is_seen_in_a_cell(start: str) -> None:
    assert text(start + "=1+1") == start.encode("unicode_escape").decode() + "=1+1"


@given(st.text(st.characters(exclude_categories=())))
def test_no_text_cell_starts_a_formula_and_each_is_read_back(value: str) -> None:
    cell = text(value)
    assert cell[:1] not in set(DANGEROUS)
    assert plain_text(cell) == value
    cell.encode()
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\r\n").writerow(["x", cell])
    ((_, read),) = csv.reader(io.StringIO(buffer.getvalue(), newline=""))
    assert read == cell


def test_numbers_stay_numbers_and_missing_is_empty(tmp_path: Path) -> None:
    report = begun(lambda: new_report(tmp_path, "r.csv"), ["snr"])
    row = Row(
        "id",
        "fail",
        "",
        step="warmup",
        metrics={"mean_error": -0.25, "cosine_similarity": 1e-7, "kl_divergence": None},
        counts={"elements": 2**60},
        custom={"snr": float("nan")},
        golden=RowSide(min=-1.5, node="-x"),
        worst=WorstElement("[0]", -3, -0.5),
        reasons=("one", "two"),
    )
    report.add(row)
    report.land()
    (cells,) = written(*report.files)
    assert cells["token_id"] == "warmup"
    assert cells["mean_error"] == "-0.25"
    assert cells["cosine_similarity"] == "1e-07"
    assert cells["kl_divergence"] == ""
    assert cells["max_absolute_error"] == ""
    assert cells["elements"] == str(2**60)
    assert cells["snr"] == "nan"
    assert cells["golden_min_value"] == "-1.5"
    assert cells["golden_node"] == "'-x"
    assert cells["worst_golden_value"] == "-3"
    assert cells["cmp_fail_reason"] == "one; two"


def test_every_column_finds_its_value_in_an_empty_row(tmp_path: Path) -> None:
    report = begun(lambda: new_report(tmp_path, "r.csv"))
    report.add(Row("", "pass", ""))
    report.land()
    (cells,) = written(*report.files)
    assert list(cells) == [*OLD_COLUMNS, *OUR_COLUMNS]
    assert {name for name, value in cells.items() if value} == {"verdict"}


def test_a_row_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    report = begun(lambda: new_report(tmp_path, "r.csv"))
    for count in range(1, 4):
        report.add(Row(f"id{count}", "pass", ""))
        assert len(written(f"{tmp_path}/r.csv.partial")) == count
    assert report.files == []


def test_a_timestamp_is_utc_and_its_name_never_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "gmtime", lambda: (2026, 11, 21, 3, 4, 5, 5, 325, 0))
    files = [new_report(tmp_path / "made", "ait_cmp_report_TIMESTAMP.csv") for _ in range(3)]
    names = [Path(file.path).name for file in files]
    assert names == [
        "ait_cmp_report_20261121030405.csv",
        "ait_cmp_report_20261121030405_1.csv",
        "ait_cmp_report_20261121030405_2.csv",
    ]


def test_a_named_report_is_replaced_and_may_lie_elsewhere(tmp_path: Path) -> None:
    named = tmp_path / "x" / "r.csv"
    named.parent.mkdir()
    named.write_text("old")
    report = begun(lambda: new_report(tmp_path / "unused", str(named)))
    report.add(Row("id", "pass", ""))
    assert named.read_text() == "old"
    report.land()
    assert not (tmp_path / "unused").exists()
    assert named.read_text().startswith("token_id,")


# Rows as JUnit: outcomes as tests end, counts that agree, and no name or text that breaks the file.


def written_junit(path: Path, *rows: Row, warns: bool = False) -> ElementTree.Element:
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
    root = written_junit(
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
    root = written_junit(
        tmp_path, Row(f"d::{text}", "fail", text, reasons=(text,)), Row("d::s", "unmapped", text)
    )
    assert {one.tag for one in root.iter()} == {"testsuites", "testsuite", "testcase", "failure", "skipped"}
    failure = root.find(".//failure")
    assert failure is not None
    assert len(failure.get("message", "")) <= 1000


def test_inherited_failures_that_were_warnings_pass(tmp_path: Path) -> None:
    rows = (Row("d::inherited", "inherited", "bad"), Row("d::known", "known", "accepted"))
    assert outcomes(written_junit(tmp_path, *rows, warns=True)) == {
        "d.inherited": "",
        "d.known": "pytest.xfail",
    }


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AccError, match="cannot be written"):
        JunitFile(str(tmp_path / "file" / "j.xml")).begin(Run())


# The verdict of a run in one sentence: what breaks first, or that nothing does, or that it is not known.


PLAN = Plan("/g", "/m", "torch", "atb", "dump", (), (), (), 1, 1, 1, 1)
PAIRS = Run(plan=PLAN)


def root_of(row: Row, **fields: Any) -> Root:
    assert row.number is not None
    given: dict[str, Any] = {
        "inherited": 0,
        "amplification": None,
        "share": None,
        "basis": "",
        "sentence": "",
    }
    return Root(row.number, fields.pop("name", row.name), row.test_id, row, **(given | fields))


def said(rows: list[Row], roots: list[Root], run: Run = PAIRS, complete: bool = True, **fields: Any) -> str:
    diagnosis = Diagnosis(tuple(roots), 0, "") if roots else None
    result = result_of(rows, diagnosis=diagnosis, **fields)
    result.tally.complete = complete
    return run_verdict(run, result).text


FAILING = made_row(2, share=151, layer=3)


def test_a_run_breaks_at_its_first_root() -> None:
    other = made_row(7, share=3)
    assert (
        said([FAILING], [root_of(FAILING)])
        == "Breaks at RopeOperation, layers.3, prefill: 151 times its bound"
    )
    assert said([FAILING, other], [root_of(FAILING), root_of(other)]).endswith("its bound; and 1 more")


def test_what_was_fed_is_said_in_its_own_words() -> None:
    row = replace(FAILING, fed="token ids")
    found = said([row], [root_of(row, fed="token ids differ at step 1: golden 5, mine 203")])
    assert found == "The run was fed something else: token ids differ at step 1: golden 5, mine 203"
    row = replace(FAILING, fed="weight")
    found = said([row], [root_of(row, fed="weight norm differs")])
    assert found == "The models differ: weight norm differs"


def test_a_root_named_after_another_operator_is_called_so() -> None:
    assert said([FAILING], [root_of(FAILING, name="NormLinear_2")]).startswith(
        "Breaks at NormLinear_2, layers.3"
    )


def test_a_later_step_is_a_decode_and_a_graph_stays_a_step() -> None:
    later = replace(FAILING, step=2)
    assert ", decode 2: " in said([later], [root_of(later)])
    graph = replace(FAILING, step=2, graph="graph_1")
    assert ", graph_1, step 2: " in said([graph], [root_of(graph)])


def test_a_known_root_is_no_break_of_a_green_run() -> None:
    known = replace(FAILING, verdict="known")
    result = result_of([made_row(0), known], diagnosis=Diagnosis((root_of(known),), 0, ""))
    found = run_verdict(PAIRS, result)
    assert (found.tone, found.text) == ("good", "No difference beyond its bound: 2 pairs")
    assert found.lead == "1 of them differ in a way that is known and accepted."


def test_no_number_of_times_is_said_in_the_words_of_the_row() -> None:
    check = Check("new_nonfinite", 3.0, 0.0, False, "", False)
    row = replace(FAILING, checks=(check,), sentence="3 elements are NaN only in mine")
    assert row.excess == math.inf
    assert said([row], [root_of(row)]).endswith("prefill: 3 elements are NaN only in mine")


def test_nothing_compared_is_said() -> None:
    assert said([], [], exit_status=5) == "Nothing was compared"
    skipped = made_row(1, verdict="incomparable", skipped=True, checks=())
    assert said([skipped], [], exit_status=5) == "Nothing was compared: none of 1 pairs could be"


def test_a_green_comparison_in_a_red_run_says_why_it_is_red() -> None:
    rows = [made_row(0)]
    problem = run_verdict(PAIRS, result_of(rows, exit_status=1, problems=("the baseline is stale",)))
    assert (problem.tone, problem.lead) == ("bad", "the baseline is stale")
    assert problem.text == "No difference beyond its bound: 1 pairs, but the run fails"
    pairs: Any = (None,)
    plan = replace(PLAN, pairs=pairs, golden_total=10, golden_mapped=2, mine_total=0)
    floor = run_verdict(Run(plan=plan, floor=0.5), result_of(rows, exit_status=1))
    assert floor.lead == "only 20.0% of the nodes could be mapped, the floor is 50.0%"
    other = run_verdict(PAIRS, result_of(rows, exit_status=1))
    assert other.lead == "pytest ended with exit status 1."


def test_a_run_that_was_stopped_is_incomplete() -> None:
    nine: Any = (None,) * 9
    plan = replace(PLAN, pairs=nine)
    assert said([made_row(0)], [], Run(plan=plan), complete=False, exit_status=2) == (
        "Incomplete: 1 of 9 pairs were compared, none fails"
    )
    broken = said([FAILING], [root_of(FAILING)], complete=False)
    assert broken.startswith("Incomplete, and already broken: breaks at RopeOperation")


def test_without_roots_the_worst_is_named() -> None:
    checks = [
        replace(made_row(n, share=share), layer="", step="") for n, share in ((0, 4), (1, 40), (2, 0.1))
    ]
    checks.append(replace(checks[1], checks=made_row(1, share=3).checks))
    found = run_verdict(Run("opcheck"), result_of(checks))
    assert found.text == "2 of 3 tests fail"
    assert found.lead == "3 of 4 outputs fail, the worst: RmsNormOperation_0_1, output[0]: 40 times its bound"
    assert said(checks[:1], [], Run()) == "Fails at LinearOperation: 4 times its bound"


def test_unmapped_nodes_that_must_not_be_are_no_failed_comparison() -> None:
    row = made_row(1, verdict="unmapped", strict=True, checks=(), sentence="no such node")
    assert said([row], []) == "Fails at RmsNormOperation_0_1: no such node"


def test_strictly_inherited_failures_count_as_inherited() -> None:
    rows = [FAILING, inherited(made_row(5, share=9, strict=True), FAILING)]
    lead = run_verdict(PAIRS, result_of(rows, diagnosis=Diagnosis((root_of(FAILING),), 1, ""))).lead
    assert lead == "1 of 2 pairs fails on its own; 1 more inherits from what fails."


@pytest.mark.parametrize(
    ("excess", "words"),
    [(1.3, "1.3"), (12.4, "12"), (99.6, "100"), (151.4, "151"), (2.3e7, "2e7"), (4e30, "4e30")],
)
def test_a_number_of_times_has_no_digits_that_mean_nothing(excess: float, words: str) -> None:
    assert times(excess) == words
