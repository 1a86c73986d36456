"""--acc-rows: a line for every comparison, the same whoever runs the tests; of operator checks too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acc_pytest.judging.replay import context_of, measurement_of
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import judge
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.rows_file import read_rows

from .conftest import QUICKER, Run
from .conftest import read_rows as read_csv

ROWS = "--acc-rows=out/rows.jsonl"


def test_rows_hold_what_the_csv_holds_and_enough_to_judge_again(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, ROWS)
    result.stdout.fnmatch_lines(["report: *out/rows.jsonl"])
    stored = read_rows("out/rows.jsonl")
    assert (stored.exit_status, stored.run.title) == (1, "comparison")
    assert stored.run.plan is not None
    assert stored.run.plan.name == "msit_dump"
    assert stored.run.settings["golden"] == str(faulty.golden)
    assert {(row.test_id, row.verdict) for row in stored.rows} == {
        (row["test_id"], row["verdict"]) for row in read_csv()
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
    stopped = read_rows("out/rows.jsonl")
    assert (stopped.exit_status, stopped.complete) == (1, False)
    pytester.makeconftest("import os\ndef pytest_runtest_teardown(item):\n    os._exit(9)\n")
    acc(faulty, ROWS, subprocess=True)
    assert read_rows("out/rows.jsonl") == stopped
    stored = read_rows("out/rows.jsonl.partial")
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
