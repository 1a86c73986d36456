"""Mistakes of our own on strange input: one sentence each, never pytest's internal error."""

from __future__ import annotations

from typing import NoReturn

import pytest

import acc_pytest.comparison.compare
import acc_pytest.gate.opening
import acc_pytest.mapping.planner
import acc_pytest.reporting.csv_report
from acc_pytest import cli, errors
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.mapping.pair import Pair
from acc_pytest.mapping.reconcile import Opened, open_pair
from acc_pytest.reporting.row import Row

from .conftest import Run


def _fails(*_: object, **__: object) -> NoReturn:
    raise IndexError("no such thing")


@pytest.fixture
def broken_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acc_pytest.mapping.planner, "_mapped", _fails)
    monkeypatch.setattr(errors, "_with_traceback", False)


@pytest.mark.usefixtures("broken_plan")
@pytest.mark.parametrize("debug", [False, True])
def test_a_plan_that_fails_is_one_line_that_names_both_dumps(acc: Run, clean: DemoPaths, debug: bool) -> None:
    result = acc(clean, *(["--acc-debug"] if debug else []))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert "IndexError: no such thing" in line
    for path in (clean.golden, clean.mine):
        assert str(path) in line
    assert ("Traceback" in result.stderr.str()) is debug


@pytest.mark.usefixtures("broken_plan")
@pytest.mark.parametrize("debug", [False, True])
def test_a_command_that_fails_is_one_line(
    clean: DemoPaths, capsys: pytest.CaptureFixture[str], debug: bool
) -> None:
    words = ["map", "-gp", str(clean.golden), "-mp", str(clean.mine), *(["--acc-debug"] if debug else [])]
    assert cli.main(words) == 4
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("acc: error: planning ")
    assert ("Traceback" in said) is debug


def test_a_pair_that_fails_is_one_red_test_among_others(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Pair] = []

    def open_broken(pair: Pair) -> Opened:
        seen.append(pair)
        return _fails() if len(seen) == 3 else open_pair(pair)

    monkeypatch.setattr(acc_pytest.comparison.compare, "open_pair", open_broken)
    result = acc(clean)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1, passed=len(seen) - 1)
    result.stdout.fnmatch_lines(["*comparing golden and mine: IndexError: no such thing (pass --acc-debug *"])


def test_a_report_that_fails_is_left_out_and_said_once(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(self: object, row: Row) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(acc_pytest.reporting.csv_report.CsvReport, "add", add)
    result = acc(clean, "--acc-rows=rows.jsonl")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes().keys() == {"passed"}
    (line,) = [line for line in result.outlines if "No space left" in line]
    assert line.startswith("a report could not be written: ")
    assert "acc.csv" in line
    assert any(line.startswith("report: ") and "rows.jsonl" in line for line in result.outlines)


def test_gates_that_fail_end_the_run_before_its_first_test(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acc_pytest.gate.opening, "_lock", _fails)
    result = acc(clean)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line.startswith("ERROR: opening baseline, lock")]
