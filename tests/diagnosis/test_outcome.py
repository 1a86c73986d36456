"""The end of a run: its exit status, its lines, and reports that cannot be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.diagnosis.outcome import FAILED, NOTHING, OK, reported
from acc_pytest.diagnosis.run import with_cause
from acc_pytest.reporting.row import Cause, Row
from acc_pytest.reporting.view import Result, Run, View

from .plans import plan_of, row_of

PASS, FAIL = row_of(0, 0.5), with_cause(row_of(1, 5.0), Cause("root", "dataflow", root=1, root_name="Op_1"))
ALONE = replace(PASS, verdict="unmapped", sentence="nothing fits")
PLAN = replace(plan_of(((), (0,))), golden_total=4, golden_mapped=2)


class Noted(View):
    """Notes what it is asked; may have a problem, and may fail when its report is made."""

    def __init__(self, problem: str = "", error: str = "") -> None:
        self._problem, self._error = problem, error
        self.asked: list[object] = []

    @property
    def files(self) -> list[str]:
        return ["/there/r.csv"]

    def begin(self, run: Run) -> None:
        self.asked.append(run)

    def add(self, row: Row) -> None:
        self.asked.append(row)

    def end(self, complete: bool) -> None:
        self.asked.append(complete)

    def problems(self) -> list[str]:
        return [self._problem] if self._problem else []

    def finish(self, result: Result) -> None:
        if self._error:
            raise OSError(self._error)
        self.asked.append(result.exit_status)

    def close(self) -> None:
        self.asked.append("closed")


def ended(rows: Sequence[Row], run: Run, view: View, **more: Any) -> tuple[Result, int, list[str]]:
    """The result and status of a run with these rows, and what was shown."""
    shown: list[str] = []
    result, status = reported(run, [view], rows, more.pop("lacks", ()), show=shown.append, **more)
    return result, status, shown


@pytest.mark.parametrize(
    ("rows", "more", "status"),
    [
        ((), {}, NOTHING),
        ((ALONE,), {}, NOTHING),
        ((PASS,), {}, OK),
        ((PASS, FAIL), {}, FAILED),
        ((PASS,), {"lacks": ("rank 1 is missing",)}, FAILED),
        ((), {"lacks": ("rank 1 is missing",)}, FAILED),
        ((PASS,), {"problem": "thresholds are looser"}, FAILED),
        ((PASS,), {"error": "the disk is full"}, FAILED),
        ((PASS,), {"run": Run(plan=PLAN, floor=0.5)}, OK),
        ((PASS,), {"run": Run(plan=PLAN, floor=0.6)}, FAILED),
        ((PASS, FAIL), {"status_of": lambda tally: OK}, OK),
        ((), {"status_of": lambda tally: 2, "problem": "thresholds are looser"}, 2),
        ((PASS,), {"status_of": lambda tally: 2, "error": "the disk is full"}, 2),
    ],
)
def test_a_run_is_red_in_which_something_is_wrong(
    rows: tuple[Row, ...], more: dict[str, Any], status: int
) -> None:
    how = dict(more)
    view = Noted(how.pop("problem", ""), how.pop("error", ""))
    result, code, _ = ended(rows, how.pop("run", Run()), view, **how)
    assert code == status
    assert "error" in more or result.exit_status == status


def test_views_get_all_rows_and_are_closed_after_the_lines_are_shown() -> None:
    view, run = Noted(), Run(plan=PLAN)
    result, _, shown = ended((PASS, FAIL), run, view, notes=("three shards",))
    assert view.asked == [run, PASS, FAIL, True, FAILED, "closed"]
    assert result.lines[-2:] == ("three shards", "report: /there/r.csv")
    assert " ".join(map(str.strip, shown)) == " ".join(map(str.strip, result.lines))
    assert result.diagnosis is not None
    assert [root.name for root in result.diagnosis.roots] == ["Op_1"]
    without, _, _ = ended((PASS,), Run(), view)
    assert without.diagnosis is None


def test_what_is_missing_and_what_could_not_be_written_is_told() -> None:
    view = Noted(error="the disk is full")
    result, _, _ = ended((PASS,), Run(), view, lacks=("rank 1 is missing",))
    assert view.asked[2] is False
    assert result.problems == ("rank 1 is missing",)
    assert [line for line in result.lines if "disk" in line] == [
        "a report could not be written: the disk is full"
    ]
