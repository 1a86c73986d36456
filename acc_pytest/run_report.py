"""The controller's view of a run: header, rows as they arrive, exit status, summary.

Registered as a plugin of its own in the process that owns the terminal; an xdist worker has none.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from .diagnosis.outcome import result_of
from .errors import AccError
from .guard import guarded
from .recording import SINK, rows_of
from .reporting.failure_text import FailureText
from .reporting.header import header_lines, judging_lines
from .reporting.numbers import briefly
from .reporting.printable import message
from .reporting.recorder import Recorder
from .reporting.summary import coverage
from .reporting.view import Run, View
from .reporting.wrapping import near, on_screen, terminal_width
from .session import door
from .short_summary import make_fit

if TYPE_CHECKING:
    from .diagnosis.summary import Ledger
    from .mapping.pair import Pair
    from .reporting.row import Row
    from .session import AccSession, Alone


class RunReport:
    """Collects the rows of a run and feeds its views. `acc` is `None` where no dumps are compared."""

    def __init__(self, config: pytest.Config, acc: AccSession | None, views: Sequence[View]) -> None:
        self._config = config
        self._acc = acc
        self._ledger = _ledger(acc)
        self._recorder = Recorder(views if self._ledger is None else [*views, self._ledger])
        self._is_active = acc is not None or bool(views)
        self._is_refused = False
        self._lines: tuple[str, ...] = ()
        self._refused: tuple[str, ...] = ()
        self._reported: set[str] = set()
        self._unmapped: dict[str, Alone] = {}
        self._ran_alone = self._ran_other = False
        self._briefs: dict[str, tuple[str, ...]] = {}
        config.stash[SINK] = self._add

    def pytest_report_header(self) -> list[str]:
        """Say what is compared, how much of it could be mapped and, if asked, how."""
        if self._acc is None:
            return []
        with door("describing the plan"):
            judging = judging_lines(self._acc.standard, self._acc.noise)
            return [*(self._explanation() or on_screen(header_lines(self._acc.plan))), *on_screen(judging)]

    def _explanation(self) -> list[str]:
        """The plan in words, if asked for."""
        if self._acc is None or not self._acc.settings.explain_mapping:
            return []
        from .mapping.explain import explain

        return list(map(message, explain(self._acc.plan)))

    @property
    def _runs_nothing(self) -> bool:
        """Whether tests are only listed (`--co`, `--setup-plan`), so that there is nothing to report."""
        return bool(self._config.option.collectonly or self._config.getoption("setupplan", default=False))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Open the views, and write what no test stands for first, so that a run that is killed has it.

        With `-q` pytest prints no header, so an explanation that was asked for is printed here.
        """
        # before pytest 8.4 the option is the terminal's, and `-p no:terminal` takes it away
        if self._config.getoption("verbose", default=0) < 0:
            with door("describing the plan"):
                for line in self._explanation():
                    self._config.get_terminal_writer().line(line)
        if self._runs_nothing:
            return
        self._is_refused = True
        with door("opening the reports"):
            self._recorder.begin(self._run())
            self._begin_unmapped()
        self._is_refused = False

    def _begin_unmapped(self) -> None:
        """Write the rows of unmapped nodes; but those whose tests fail have theirs when these have run."""
        from .reporting.recorder import unmapped_row

        if self._acc is None:
            return
        outcome = self._acc.settings.unmapped
        later = {one.number for one in self._acc.alone} if outcome == "fail" else set()
        for one in self._acc.unmapped:
            if not self._acc.has_share_in(one.number):
                continue
            if one.number in later:
                self._unmapped[one.node_id] = one
            else:
                node_id = "" if outcome == "ignore" else one.node_id
                self._recorder.add(unmapped_row(one.node, one.number, node_id))

    def _run(self) -> Run:
        """What the views are told before the first test."""
        from .reporting.environment import environment

        acc = self._acc
        if acc is None:
            return Run(environment=environment())
        return Run(
            acc.stored.title if acc.stored is not None else "comparison",
            plan=acc.plan,
            command=tuple(acc.command),
            floor=acc.settings.min_coverage,
            environment=environment(),
        )

    def _add(self, row: Row) -> None:
        """Record a row, and keep what the short summary may say of it."""
        self._recorder.add(row)
        if row.red:
            self._briefs.setdefault(row.test_id, briefly(row))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write the rows of a finished test, and give its failure back the form xdist took from it."""
        self._reported.add(report.nodeid)
        for arrived in rows_of(report):
            self._add(arrived)
        if report.nodeid in self._alone_ids:
            self._ran_alone = True
            self._add_failed(report)
        else:
            self._ran_other = True
        if not report.failed:
            return
        if report.nodeid in self._recorder.tally.tests:
            if isinstance(report.longrepr, str):
                report.longrepr = FailureText(report.longrepr)
        elif (row := self._lost_row(report)) is not None:
            self._recorder.add(row)

    def _add_failed(self, report: Any) -> None:
        """Write the row of an unmapped node whose test has failed."""
        from .reporting.recorder import unmapped_row

        one = self._unmapped.pop(report.nodeid, None) if report.failed else None
        if one is not None:
            self._recorder.add(unmapped_row(one.node, one.number, one.node_id, strict=True))

    def _end_unmapped(self) -> None:
        """Write the rows of unmapped nodes whose tests were to fail, but did not run."""
        from .reporting.recorder import unmapped_row

        for one in self._unmapped.values():
            self._recorder.add(unmapped_row(one.node, one.number, one.node_id))
        self._unmapped.clear()

    @functools.cached_property
    def _alone_ids(self) -> frozenset[str]:
        return frozenset() if self._acc is None else frozenset(one.node_id for one in self._acc.alone)

    def _lost_row(self, report: Any) -> Row | None:
        """The row of a generated test that ended without one; `None` for people's own tests."""
        numbered = self._by_id.get(report.nodeid)
        return None if numbered is None else _lost(numbered, report)

    @functools.cached_property
    def _by_id(self) -> Mapping[str, tuple[int, Pair]]:
        if self._acc is None:
            return {}
        return {self._acc.naming.node_id(pair): (number, pair) for number, pair in self._acc.chosen}

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
            self._refused = (f"a file of pytest or of a plugin could not be written: {error}",)
            _redden(session)
        except KeyboardInterrupt:
            if not self._is_active:
                raise
            self._refused = ("interrupted while the run ended",)
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if not self._runs_nothing and not self._is_refused:
            self._finish(session)

    def _finish(self, session: pytest.Session) -> None:
        try:
            with guarded("summing up the run"):
                self._sum_up(session)
        except AccError as error:
            _redden(session)
            self._lines = (message(str(error)),)

    def _sum_up(self, session: pytest.Session) -> None:
        """A run is red that compared nothing, whose mapping covers less than the floor, in which a view
        found something wrong, or of which a report could not be written.
        """
        self._end_unmapped()
        tally = self._recorder.tally
        tried = tally.tried or (self._ran_alone and not self._ran_other and not self._has_no_pairs())
        if session.exitstatus == pytest.ExitCode.OK and tried and not tally.compared:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        self._recorder.end(self._is_complete(session))
        if self._recorder.problems or self._below_floor():
            _redden(session)
        plan = self._acc.plan if self._acc is not None else None
        floor = self._acc.settings.min_coverage if self._acc is not None else 0.0
        result = result_of(self._recorder, self._ledger, plan, floor, int(session.exitstatus))
        wrong = self._recorder.finish(result)
        if wrong:
            _redden(session)
        said = (*wrong, *(f"report: {near(file)}" for file in self._recorder.files))
        self._lines = (*result.lines, *map(message, said))

    def _has_no_pairs(self) -> bool:
        """Whether other machines compare all the pairs there are."""
        acc = self._acc
        pairs = 0 if acc is None else len(acc.plan.pairs)
        return acc is not None and acc.share is not None and pairs > 0 and min(acc.share, default=0) >= pairs

    def _is_complete(self, session: pytest.Session) -> bool:
        """Whether every test that was collected and not deselected has run."""
        stopped = session.shouldstop or session.shouldfail
        ended = session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.TESTS_FAILED,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        return ended and not stopped and len(self._reported) >= session.testscollected

    def _below_floor(self) -> bool:
        acc = self._acc
        return acc is not None and bool(acc.plan.pairs) and coverage(acc.plan) < acc.settings.min_coverage

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say where the error starts, how bad it gets, and where the reports are."""
        ours = self._recorder.tally.tests | self._alone_ids
        make_fit(terminalreporter.stats, self._briefs, ours, terminal_width())
        shown = self._lines if self._acc is not None or self._recorder.tally.tried else ()
        lines = (*shown, *self._refused)
        if not lines:
            return
        terminalreporter.write_sep("=", "acc-pytest")
        for line in on_screen(lines):
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        """Close the reports, also after Ctrl-C."""
        self._recorder.close()


def _ledger(acc: AccSession | None) -> Ledger | None:
    """What sums up root causes, where pairs are compared."""
    if acc is None:
        return None
    from .diagnosis.summary import Ledger

    return Ledger()


def _redden(session: pytest.Session) -> None:
    """Make a run fail that would be green; one that fails already keeps its reason."""
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _lost(numbered: tuple[int, Pair], report: Any) -> Row:
    """The row of a generated test that ended without one: its worker died, or its setup failed."""
    from .comparison import incomparable, pair_row

    return incomparable(pair_row(numbered[1], report.nodeid, numbered[0]), f"not compared: {lost(report)}")


def lost(report: Any) -> str:
    """Why a test has no result: the last line of what pytest says of it."""
    return str(report.longreprtext.strip().rpartition("\n")[2]) or "no result"
