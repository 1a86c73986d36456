"""The controller's view of a run: header, rows as they arrive, exit status, summary.

Registered as a plugin of its own in the process that owns the terminal; an xdist worker has none.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..base.reason import Reason, rendered
from ..diagnosis.outcome import ended
from ..errors import AccError, guarded
from ..reporting.failure_text import LINES, FailureText, briefly, rerun
from ..reporting.recorder import Recorder
from ..reporting.texts import LONGEST, columns, message, on_screen, paragraph, printable, terminal_width
from ..reporting.view import Run, View
from ..session import door
from .run import SINK
from .worker_reports import rows_of

if TYPE_CHECKING:
    from ..diagnosis.repro.view import CaseOf
    from ..reporting.row import Row
    from ..settings import Settings
    from .mode import GeneratedTest
    from .run import AccRun


NAME = 200
"""Characters of the id of a test."""
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
"""How a run ends that was not stopped."""


class RunReport:
    """Collects the rows of a run and feeds its views."""

    def __init__(self, config: pytest.Config, run: AccRun, views: Sequence[View]) -> None:
        self._config = config
        self._modes = run.modes
        self._plan = next((mode.plan for mode in run.modes if mode.plan is not None), None)
        self._floor = run.settings.min_coverage if run.settings is not None else 0.0
        self._ledger = None
        if self._plan is not None:
            from ..diagnosis.summary import Ledger

            self._ledger = Ledger()
        self._recorder = Recorder(views if self._ledger is None else [*views, self._ledger])
        self._is_active = self._plan is not None or bool(views)
        self._is_begun = False
        self._lines: tuple[str, ...] = ()
        self._refused = ""
        self._collected: Sequence[str] | None = None
        self._reported: set[str] = set()
        self._briefs: dict[tuple[str, bool], tuple[str, ...]] = {}
        config.stash[SINK] = self._add

    def pytest_report_header(self) -> list[str]:
        """Say what is run."""
        with door("describing the run"):
            return [line for mode in self._modes for line in mode.header()]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Begin. With `-q` pytest prints no header, so an explanation that was asked for is printed here."""
        # before pytest 8.4 the option is the terminal's, and `-p no:terminal` takes it away
        if self._config.getoption("verbose", default=0) < 0:
            with door("describing the run"):
                for line in (line for mode in self._modes for line in mode.explanation()):
                    self._config.get_terminal_writer().line(line)
        self.begin()

    def begin(self) -> None:
        """Open the views, and write what no test stands for first, so that a run that is killed has it.

        A run that a fixture opens begins when its first test does.
        """
        option = self._config.option
        if self._is_begun or option.collectonly or self._config.getoption("setupplan", default=False):
            return  # where tests are only listed (`--co`, `--setup-plan`), there is nothing to report
        with door("opening the reports"):
            run = Run(environment=environment())
            for mode in self._modes:
                run = mode.described(run)
            self._recorder.begin(run)
            for row in (row for mode in self._modes for row in mode.early_rows()):
                self._recorder.add(row)
        self._is_begun = True

    def _add(self, row: Row) -> None:
        """Record a row, and keep what the short summary may say of it."""
        self._recorder.add(row)
        if row.red or row.excused:
            self._briefs.setdefault((row.test_id, row.red), briefly(row))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note the tests that the workers are to run; all workers collect the same."""
        self._collected = ids

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write the rows of a finished test, and give its failure back the form xdist took from it."""
        self._reported.add(report.nodeid)
        for arrived in rows_of(report):
            self._add(arrived)
        if report.failed:
            # Give a failed test without a row its row, and the text of a failure its form. A worker that
            # dies after the comparison has not ended its test (`when` of xdist is no phase then).
            has_row = report.nodeid in self._recorder.tally.tests
            if has_row and report.when not in ("setup", "call", "teardown"):
                self._reported.discard(report.nodeid)
            test = None if has_row else self._tests.get(report.nodeid)
            if test is not None and (row := test.lost_row(lost(report))) is not None:
                self._add(row)
            ours = has_row or test is not None
            if isinstance(report.longrepr, FailureText) or (ours and isinstance(report.longrepr, str)):
                report.longrepr = FailureText(str(report.longrepr), limit=self._limit)

    @functools.cached_property
    def _limit(self) -> int | None:
        """How many lines of a failure the terminal shows: with `--tb=line` pytest shows the first itself."""
        style = self._config.getoption("tbstyle", default="auto")
        if style in ("line", "no"):
            return 0
        verbose = self._config.get_verbosity(pytest.Config.VERBOSITY_ASSERTIONS) > 0
        return None if style == "long" or (verbose and style != "short") else LINES

    @functools.cached_property
    def _tests(self) -> dict[str, GeneratedTest]:
        return {test.node_id: test for mode in self._modes for test in mode.chosen}

    @functools.cached_property
    def _unmapped_ids(self) -> frozenset[str]:
        return frozenset(node_id for node_id, test in self._tests.items() if not test.compares)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Settle the exit status, and let the views finish, when all others have finished.

        What others write at the end (`--junitxml`, pytest's cache) may meet a full disk or a directory that
        is gone; our reports do not depend on it, and the run is red. Nor do they on a Ctrl-C while
        xdist waits for its workers to end, which pytest would answer with a traceback.
        """
        try:
            yield
        except OSError as error:
            if not self._is_active:
                raise
            self._refused = Reason("a file of pytest or of a plugin could not be written: {}", error)
            _redden(session)
        except KeyboardInterrupt:
            if not self._is_active:
                raise
            self._refused = "interrupted while the run ended"
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if self._is_begun:
            try:
                self._sum_up(session)
            except AccError as error:
                _redden(session)
                self._lines = (message(str(error)),)

    @guarded("summing up the run")
    def _sum_up(self, session: pytest.Session) -> None:
        """A run is red that compared nothing, that falls short (`shortfalls`), in which a view found
        something wrong, or that lacks a report.
        """
        tally = self._recorder.tally
        for row in [row for mode in self._modes for row in mode.late_rows(tally.tests)]:
            self._recorder.add(row)
        # Something was to be compared, be it only nodes without a partner, and nothing was.
        only_unmapped = bool(self._reported) and self._reported <= self._unmapped_ids
        elsewhere = any(mode.compares_elsewhere for mode in self._modes)
        in_vain = not tally.compared and (tally.tried or (only_unmapped and not elsewhere))
        if session.exitstatus == pytest.ExitCode.OK and in_vain:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        # A sentence for each thing that makes the run incomplete. Tests that were deselected do not.
        lacks = [sentence for mode in self._modes for sentence in mode.lacks]
        collected = self._collected or [item.nodeid for item in session.items]
        stopped = "the run was stopped" if session.exitstatus not in ENDED else ""
        if not self._collected and not self._reported and self._config.pluginmanager.hasplugin("dsession"):
            stopped = "no worker collected the tests"
        if absent := [node_id for node_id in collected if node_id not in self._reported]:
            counts = len(absent), len(collected), printable(absent[0], NAME)
            lacks.append(
                Reason("incomplete: {} of {} tests did not come to their end, the first {}", *counts)
            )
        elif stopped:
            lacks.append(Reason("incomplete: {}", stopped))
        status = int(session.exitstatus)
        result, status = ended(self._recorder, self._ledger, self._plan, self._floor, status, lacks=lacks)
        session.exitstatus = status
        self._lines = result.lines

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say where the error starts, how bad it gets, and where the reports are."""
        ours = self._recorder.tally.tests | self._unmapped_ids
        # Shorten what the reports in pytest's `stats` say of tests of ours, for a terminal of `width`
        # columns. `briefs` has what may be said of a failure, the fullest first. The reports have been
        # printed, counted and written by then; only the short summary comes after.
        width = terminal_width()
        for report in terminalreporter.stats.get("failed", ()):
            if isinstance(report.longrepr, FailureText) and (
                forms := self._briefs.get((report.nodeid, True))
            ):
                brief = _fitting(forms, report, width) or rendered(forms[-1])
                report.longrepr = replace(report.longrepr, brief=brief)
        for report in terminalreporter.stats.get("xfailed", ()):
            if report.nodeid in ours and (reason := getattr(report, "wasxfail", None)):
                room, start = max(width, LONGEST), f"{WORD}{report.nodeid} - "
                forms = self._briefs.get((report.nodeid, False), (reason,))
                report.wasxfail = _fitting(forms, report, room) or paragraph(reason, start, room)
        for report in terminalreporter.stats.get("skipped", ()):
            if report.nodeid in ours and isinstance(report.longrepr, tuple):
                reason = str(report.longrepr[2]).removeprefix(_SKIPPED)
                report.longrepr = (
                    os.getcwd(),
                    0,
                    _SKIPPED + paragraph(reason, BESIDE_SKIPS, max(width, LONGEST)),
                )
        summary = self._lines if self._plan is not None or self._recorder.tally.tried else ()
        lines = (*summary, self._refused) if self._refused else summary
        if not lines:
            return
        terminalreporter.write_sep("=", "acc-pytest")
        for line in on_screen(lines):
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        """Close the reports, also after Ctrl-C."""
        self._recorder.close()


def _redden(session: pytest.Session) -> None:
    """Make a run fail that would be green; one that fails already keeps its reason."""
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def lost(report: Any) -> str:
    """Why a test has no result: the last line of what pytest says of it, but for our command to re-run it."""
    lines = str(report.longreprtext).strip().split("\n")
    return next((line for line in reversed(lines) if line and not line.startswith(rerun())), "no result")


WORD = "FAILED "
"""The word before an id; `XFAIL` is as good here."""
BESIDE_SKIPS = "SKIPPED [99999] .:0: "
"""The text before the reason of a skip, whose place is no line of ours: pytest would name the plugin's."""
_SKIPPED = "Skipped: "


def _fitting(forms: Sequence[str], report: Any, width: int) -> str:
    """The first of these texts that fits one line beside the id; empty where none does."""
    room = width - columns(f"{WORD}{report.nodeid} - ")
    return next((text for text in map(rendered, forms) if columns(text) <= room), "")


# The views of a run that the options ask for.


def open_views(
    settings: Settings,
    *,
    csv: bool,
    columns: Mapping[str, str] | None = None,
    name: str = "acc_report.csv",
    case_of: CaseOf | None = None,
) -> list[View]:
    """The views that `settings` ask for, files made later.

    `csv` says whether a CSV is wanted, `columns` which columns it has, `name` what it is called without
    `--acc-csv`. `case_of` gives the case of a single-operator check.
    """
    from ..gate.opening import views_of
    from ..reporting.history import HistoryFile
    from ..reporting.markdown import Annotations, MarkdownSummary, on_github, step_summary
    from ..reporting.rows_file import RowsFile

    views: list[View] = []
    if csv:
        from ..reporting.csv_report import CsvReport, new_report

        file = functools.partial(new_report, Path(os.path.abspath(settings.output)), settings.csv, name)
        views.append(CsvReport(file, settings.custom_metrics if columns is None else (), columns))
    views += views_of(settings)
    if settings.rows:
        views.append(RowsFile(settings.rows, settings.plain))
    history = HistoryFile(settings.history) if settings.history else None
    views += [history] if history is not None else []
    if settings.html:
        from ..reporting.html.view import HtmlReport

        views.append(HtmlReport(settings.html, history))
    if settings.json:
        from ..reporting.json_report import JsonReport

        views.append(JsonReport(settings.json))
    if settings.repro:
        from ..diagnosis.repro.view import ReproBundles

        views.append(ReproBundles(settings.repro, settings.standard, case_of))
    if summary := settings.summary or step_summary(os.environ):
        views.append(MarkdownSummary(summary, append=not settings.summary))
    if on_github(os.environ):
        views.append(Annotations())
    return views


# On what a run ran, for reports that are read elsewhere.


_PACKAGES = ("acc-pytest", "pytest", "torch", "numpy", "torch-npu")


def environment() -> dict[str, str]:
    """Python, platform, machine and the versions of the packages that matter; absent ones are left out."""
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
