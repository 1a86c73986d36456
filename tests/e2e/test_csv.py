"""--acc-output and --acc-csv: the report file, complete and in the old tool's columns."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.judging.replay import context_of, measurement_of
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import judge
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.row import VERDICTS
from acc_pytest.reporting.rows_file import read_rows as read_file
from tests.opcheck.made import softmax_dump
from tests.reporting.html.made import column, read_page

from .conftest import QUICKER, Run, dump_options, read_rows

OLD = [
    "token_id",
    "data_id",
    "golden_data_path",
    "golden_op_type",
    "golden_dtype",
    "golden_shape",
    "golden_max_value",
    "golden_min_value",
    "golden_mean_value",
    "my_data_path",
    "my_op_type",
    "my_dtype",
    "my_shape",
    "my_max_value",
    "my_min_value",
    "my_mean_value",
    "cosine_similarity",
    "max_relative_error",
    "mean_relative_error",
    "max_absolute_error",
    "mean_absolute_error",
    "kl_divergence",
    "relative_euclidean_distance",
    "cmp_fail_reason",
]
"""compare.md 9.2: the 24 main columns in order."""


def test_a_row_holds_what_the_old_tool_said_and_in_its_order(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, "-k", "layers.1").stdout.fnmatch_lines(["report: out/acc.csv"])
    columns = list(read_rows()[0])
    assert columns[:24] == OLD
    assert {"verdict", "layer", "policy", "my_name", "worst_index", "thresholds", "test_id"} <= set(
        columns[24:]
    )
    row = next(row for row in read_rows() if row["my_name"] == faulty.faulty[0])
    assert row["verdict"] == "fail"
    assert row["golden_dtype"] == "torch.float32"
    assert row["my_dtype"] == "torch.float16"
    assert re.fullmatch(r"\[\d+(, \d+)*\]", row["my_shape"])
    assert Path(row["my_data_path"]).is_absolute()
    assert Path(row["my_data_path"]).is_file()
    assert float(row["golden_max_value"]) >= float(row["golden_mean_value"]) >= float(row["golden_min_value"])
    assert float(row["relative_euclidean_distance"]) > 0
    assert row["cmp_fail_reason"]
    assert row["token_id"] == "0"


def test_the_report_is_complete(acc: Run, partly: DemoPaths) -> None:
    outcomes = acc(partly).parseoutcomes()
    rows = read_rows()
    verdicts = [row["verdict"] for row in rows]
    assert verdicts.count("fail") == outcomes["failed"]
    assert verdicts.count("pass") == outcomes["passed"]
    assert verdicts.count("unmapped") > 0
    numbers = sorted(int(row["data_id"]) for row in rows)
    assert numbers == list(range(len(rows)))
    unmapped = [verdict == "unmapped" for verdict in verdicts]
    assert unmapped == sorted(unmapped, reverse=True), "written before the first test"


def test_the_report_is_one_file_and_with_a_timestamp_one_a_run(
    pytester: pytest.Pytester, clean: DemoPaths
) -> None:
    pytester.makeini("[pytest]")
    words = [*QUICKER, *dump_options(clean), "--acc-output=new/dir", "-k", "RmsNorm"]
    for _ in range(2):
        pytester.runpytest_inprocess(*words)
        pytester.runpytest_inprocess(*words, "-oacc_csv=ait_cmp_report_TIMESTAMP.csv")
    first, *names = sorted(path.name for path in Path("new/dir").iterdir())
    assert (first, len(names)) == ("acc_report.csv", 2)
    assert all(re.fullmatch(r"ait_cmp_report_\d{14}(_\d)?\.csv", name) for name in names)


def test_collect_only_writes_no_report(acc: Run, clean: DemoPaths) -> None:
    acc(clean, "--co")
    assert not Path("out").exists()


def test_a_place_that_cannot_be_written_is_one_error(acc: Run, clean: DemoPaths) -> None:
    Path("out").write_text("a file where the directory should be")
    result = acc(clean)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --acc-csv */out/acc.csv: cannot be written: Not a directory"])


def test_ctrl_c_keeps_the_rows_that_were_written(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        ran = []

        def pytest_runtest_teardown(item):
            ran.append(item)
            if len(ran) == 5:
                raise KeyboardInterrupt
        """
    )
    result = acc(clean, subprocess=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert sum(row["verdict"] == "pass" for row in read_rows()) == 5
    result.stdout.fnmatch_lines(["verdicts: 5 pass; the run is incomplete"])


def test_a_pair_whose_setup_fails_has_a_row_too(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import pytest

        def pytest_runtest_setup(item):
            if item.name.startswith("RmsNorm"):
                pytest.fail("no room on the device", pytrace=False)
        """
    )
    acc(clean, "-k", "step0 and RmsNorm")
    found = [row["cmp_fail_reason"] for row in read_rows() if row["verdict"] == "incomparable"]
    assert found
    assert set(found) == {"not compared: no room on the device"}


def test_pandas_reads_numbers_as_numbers_and_missing_ones_as_missing(acc: Run, partly: DemoPaths) -> None:
    pandas = pytest.importorskip("pandas")
    acc(partly, "-k", "RmsNorm")
    frame = pandas.read_csv("out/acc.csv")
    compared, unmapped = frame[frame.verdict == "pass"], frame[frame.verdict == "unmapped"]
    assert len(compared)
    assert (compared.cosine_similarity > 0.999).all()
    assert (compared.max_absolute_error >= 0).all()
    assert len(unmapped)
    assert unmapped.cosine_similarity.isna().all()


# --acc-rows: a line for every comparison, the same whoever runs the tests; of operator checks too.


ROWS = "--acc-rows=out/rows.jsonl"


def test_rows_hold_what_the_csv_holds_and_enough_to_judge_again(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, ROWS)
    result.stdout.fnmatch_lines(["report: *out/rows.jsonl"])
    stored = read_file("out/rows.jsonl")
    assert (stored.exit_status, stored.run.title) == (1, "comparison")
    assert stored.run.plan is not None
    assert stored.run.plan.name == "msit_dump"
    assert stored.run.settings["golden"] == str(faulty.golden)
    assert {(row.test_id, row.verdict) for row in stored.rows} == {
        (row["test_id"], row["verdict"]) for row in read_rows()
    }
    for row in stored.rows:
        if row.statistics:
            measurement = measurement_of(row.statistics)
            again = judge(measurement, thresholds_for(context_of(row.context), measurement))
            assert [(c.metric, c.measured, c.allowed) for c in again.checks] == [
                (c.metric, c.measured, c.allowed) for c in row.checks
            ]


def test_a_run_that_stops_early_is_incomplete_and_has_no_summary_when_it_was_killed(
    acc: Run, faulty: DemoPaths, pytester: pytest.Pytester
) -> None:
    acc(faulty, ROWS, "-x")
    stopped = read_file("out/rows.jsonl")
    assert (stopped.exit_status, stopped.complete) == (1, False)
    pytester.makeconftest("import os\ndef pytest_runtest_teardown(item):\n    os._exit(9)\n")
    acc(faulty, ROWS, subprocess=True)
    assert read_file("out/rows.jsonl") == stopped
    stored = read_file("out/rows.jsonl.partial")
    assert (stored.exit_status, stored.complete) == (None, False)
    assert len([row for row in stored.rows if row.test_id]) == 1


def test_a_file_that_cannot_be_written_is_a_usage_error(acc: Run, clean: DemoPaths) -> None:
    Path("file").touch()
    result = acc(clean, "--acc-rows=file/rows.jsonl")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --acc-rows *file/rows.jsonl: cannot be written: Not a directory"])


def test_people_s_own_comparisons_leave_rows_without_dumps(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(acc_compare):\n    acc_compare([1.0], [1.0], name='x')\n")
    assert pytester.runpytest_inprocess(*QUICKER, ROWS).ret == 0
    lines = [json.loads(line) for line in Path("out/rows.jsonl").read_text().splitlines()]
    assert [line["record"] for line in lines] == ["run", "row", "summary"]
    assert lines[1]["golden"]["name"] == "x"


# --acc-html: the page of a run, made through pytest.


PAGE = "--acc-html=out/page.html"


def read(path: str = "out/page.html") -> tuple[dict[str, Any], dict[str, Any]]:
    return read_page(Path(path).read_text(encoding="utf-8"))


def test_the_page_has_every_row_of_the_csv(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, PAGE)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["report: *out/page.html"])
    rows = read_rows()
    head, body = read()
    assert column(body, "name") == [row["my_name"] for row in rows]
    assert [VERDICTS[code] for code in body["verdicts"]] == [row["verdict"] for row in rows]
    assert list(itertools.accumulate(body["numbers"])) == [int(row["data_id"]) for row in rows]
    assert head["exit"] == 1
    assert sum(head["counts"].values()) == len(rows)
    assert head["plan"]["golden"]["root"] == str(next(faulty.golden.iterdir()))
    assert "python" in dict(head["environment"])
    assert any(line.startswith("verdict hash: ") and head["hash"] in line for line in head["lines"])


def test_the_worst_pairs_are_looked_into(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, PAGE)
    _, body = read()
    failing = [place for place, code in enumerate(body["verdicts"]) if VERDICTS[code] != "pass"]
    for place in failing[:60]:
        pictures = body["details"][str(place)]["pictures"]
        assert sum(pictures["errors"]["bins"]) > 0
        index, golden, mine, error = pictures["worst"][0]
        assert [index, golden, mine] == body["details"][str(place)]["worst"]
        assert error == pytest.approx(abs(mine - golden), rel=1e-3)


def test_files_that_are_gone_by_the_end_are_said(
    acc: Run, faulty: DemoPaths, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    copy = shutil.copytree(faulty.mine.parent, tmp_path / "copy")
    paths = DemoPaths(copy / faulty.golden.relative_to(faulty.mine.parent), copy / faulty.mine.name)
    pytester.makeconftest(
        f"""
        import shutil, pytest
        @pytest.hookimpl(tryfirst=True)
        def pytest_sessionfinish():
            shutil.rmtree({str(paths.golden)!r})
        """
    )
    acc(paths, PAGE)
    _, body = read()
    said = [detail["pictures"]["absent"] for detail in body["details"].values() if "pictures" in detail]
    assert said
    assert all("golden" in text for text in said)


def test_the_command_of_the_page_runs_one_test_again(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, PAGE)
    head, body = read()
    place = body["verdicts"].index(VERDICTS.index("fail"))
    test_id = f"{column(body, 'home')[place]}::{column(body, 'leaf')[place]}"
    assert head["rerun"].startswith("pytest --acc-golden=")
    assert "--acc-html" not in head["rerun"]
    result = acc(faulty, test_id)
    result.assert_outcomes(failed=1)


def test_operator_checks_have_the_same_page(pytester: pytest.Pytester, tmp_path: Path) -> None:
    dump = softmax_dump(tmp_path, wrong=True)
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={dump.csv}", "--acc-csv=r.csv", PAGE)
    assert result.ret == 1
    head, body = read()
    assert (head["title"], head["plan"]) == ("opcheck", None)
    assert column(body, "type") == ["SoftmaxOperation", "LinearOperation", "TransposeOperation"]
    (failed,) = [detail for detail in body["details"].values() if "pictures" in detail]
    assert "golden was computed" in failed["pictures"]["absent"]
    assert failed["case"]["op_name"] == "SoftmaxOperation"
    assert failed["mine"]["files"][0].endswith("after/outtensor0.bin")


def test_an_ini_file_may_ask_for_the_page(pytester: pytest.Pytester, clean: DemoPaths) -> None:
    pytester.makeini("[pytest]\nacc_html = shown.html\nacc_output = out\n")
    assert pytester.runpytest_inprocess(*QUICKER, *dump_options(clean)).ret == 0
    head, body = read("shown.html")
    assert head["exit"] == 0
    assert set(body["verdicts"]) == {0}


def test_a_place_that_cannot_be_written_stops_the_run_before_its_first_test(
    acc: Run, clean: DemoPaths
) -> None:
    Path("file").write_text("")
    result = acc(clean, "--acc-html=file/page.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*ERROR: --acc-html */file/page.html: cannot be written: Not a directory"])
    result.assert_outcomes()


def test_nothing_is_written_where_tests_are_only_listed(acc: Run, clean: DemoPaths) -> None:
    acc(clean, PAGE, "--co", "-q")
    assert not Path("out/page.html").exists()


def test_own_tests_may_have_a_page(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_own="""
        import torch
        def test_it(acc_compare):
            acc_compare(torch.ones(4), torch.ones(4) * 2)
        """
    )
    result = pytester.runpytest_inprocess(*QUICKER, PAGE)
    result.assert_outcomes(failed=1)
    head, body = read()
    assert head["title"] == "comparison"
    assert head["verdict"]["text"].startswith("Fails at test_own.py::test_it: 1e5 times")
    assert "in no file" in body["details"]["0"]["pictures"]["absent"]
