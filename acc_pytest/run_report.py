"""The controller's view of a run: header, rows as they arrive, exit status, summary.

Registered as a plugin of its own in the process that owns the terminal; an xdist worker has none.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .options import values
from .recording import SINK, rows_of
from .reporting.failure_text import FailureText
from .reporting.header import header_lines
from .reporting.recorder import Recorder
from .reporting.summary import coverage, summary_lines

if TYPE_CHECKING:
    from .mapping.pair import Pair
    from .reporting.csv_report import CsvReport
    from .reporting.row import Row
    from .session import AccSession

REPORT_FIELDS = ("output", "csv")


class RunReport:
    """Collects the rows of a run. `acc` is `None` where no dumps are compared.

    Without dumps a CSV is written only when `--acc-output` or `--acc-csv` asks for one: the rows then
    come from `acc_compare` in people's own tests.
    """

    def __init__(self, config: pytest.Config, acc: AccSession | None) -> None:
        self._config = config
        self._acc = acc
        given = values(config)
        wanted = acc is not None or any(name in given for name in REPORT_FIELDS)
        directory, name = Path(given.get("output", ".")), given.get("csv", "")
        self._recorder = Recorder(functools.partial(self._open, directory, name) if wanted else None)
        config.stash[SINK] = self._recorder.add

    def _open(self, directory: Path, name: str) -> CsvReport:
        from .reporting.csv_report import CsvReport, new_report

        custom = self._acc.settings.custom_metrics if self._acc is not None else ()
        try:
            return CsvReport(new_report(directory, name), custom)
        except OSError as error:
            raise pytest.UsageError(
                f"the CSV report cannot be written ({error}); name another place: --acc-output, --acc-csv"
            ) from None

    def pytest_report_header(self) -> list[str]:
        """Say what is compared, how much of it could be mapped and, if asked, how."""
        if self._acc is None:
            return []
        return self._explanation() or header_lines(self._acc.plan)

    def _explanation(self) -> list[str]:
        """The plan in words, if asked for."""
        if self._acc is None or not self._acc.settings.explain_mapping:
            return []
        from .mapping.explain import explain

        return list(explain(self._acc.plan))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Write what no test stands for first, so that a run that is killed has it.

        With `-q` pytest prints no header, so an explanation that was asked for is printed here.
        """
        if self._config.get_verbosity() < 0:
            for line in self._explanation():
                self._config.get_terminal_writer().line(line)
        if self._acc is not None and not self._config.option.collectonly:
            self._recorder.begin(self._acc.plan)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write the rows of a finished test, and give its failure back the form xdist took from it."""
        for arrived in rows_of(report):
            self._recorder.add(arrived)
        if not report.failed:
            return
        if report.nodeid in self._recorder.tally.tests:
            if isinstance(report.longrepr, str):
                report.longrepr = FailureText(report.longrepr)
        elif (row := self._lost_row(report)) is not None:
            self._recorder.add(row)

    def _lost_row(self, report: Any) -> Row | None:
        """The row of a generated test that ended without one; `None` for people's own tests."""
        numbered = self._by_id.get(report.nodeid)
        return None if numbered is None else _lost(numbered, report)

    @functools.cached_property
    def _by_id(self) -> dict[str, tuple[int, Pair]]:
        if self._acc is None:
            return {}
        return {self._acc.naming.node_id(pair): (number, pair) for number, pair in self._acc.chosen}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn a run red that compared nothing, or whose mapping covers less than the floor."""
        tally = self._recorder.tally
        if session.exitstatus == pytest.ExitCode.OK and tally.tried and not tally.compared:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        green = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self._below_floor() and session.exitstatus in green and not self._config.option.collectonly:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _below_floor(self) -> bool:
        acc = self._acc
        return acc is not None and bool(acc.plan.pairs) and coverage(acc.plan) < acc.settings.min_coverage

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say where the error starts, how bad it gets, and where the report is."""
        acc, tally = self._acc, self._recorder.tally
        if self._config.option.collectonly or (acc is None and not tally.tried):
            return
        plan, floor = (acc.plan, acc.settings.min_coverage) if acc is not None else (None, 0.0)
        terminalreporter.write_sep("=", "acc-pytest")
        for line in summary_lines(tally, plan, floor, self._recorder.files):
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        """Close the report, also after Ctrl-C."""
        self._recorder.close()


def _lost(numbered: tuple[int, Pair], report: Any) -> Row:
    """The row of a generated test that ended without one: its worker died, or its setup failed."""
    from .comparison import incomparable, pair_row

    return incomparable(pair_row(numbered[1], report.nodeid, numbered[0]), f"not compared: {lost(report)}")


def lost(report: Any) -> str:
    """Why a test has no result: the last line of what pytest says of it."""
    return str(report.longreprtext.strip().rpartition("\n")[2]) or "no result"
