"""The protocol of generated tests: pytest's own hooks, without what is in vain for each of thousands."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Literal
from xml.etree import ElementTree

import pytest
from _pytest.junitxml import LogXML

from .host import READERS, implementations, is_read, of_xdist, runs_tests_otherwise, strange, watched
from .mode import GeneratedItem
from .run import LAST, RUN

LOGGING, CAPTURE = "logging-plugin", "capturemanager"
"""Plugins of pytest that surround each phase of a test, by their names."""
PHASES = ("pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown")
THRESHOLDS = ("pytest_acc_thresholds", "pytest_acc_case_thresholds")
REPORTS = ("pytest_runtest_makereport", "pytest_runtest_logreport", "pytest_report_teststatus")
"""Hooks that see the report of each phase."""
SHOW_PHASES = ("durations", "setupshow", "setuponly", "usepdb")
"""Options of pytest that want the report of each phase."""

_NO_KEYWORDS: Mapping[str, Literal[1]] = {}

Phase = Literal["setup", "call", "teardown"]


class RuntestProtocol:
    """A plugin for generated tests that another one of the same collector follows.

    Of skipped tests there may be 30,000: each gets one report, not a whole protocol. Others run with
    `PhaseHooks`. The last below a collector goes the usual way, which also tears down what tests before have
    set up.
    """

    def __init__(self) -> None:
        self._hooks: dict[Path, PhaseHooks | None] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Report the skip of a skipped test; have another one use the hooks it needs."""
        if not isinstance(item, GeneratedItem) or nextitem is None or nextitem.parent is not item.parent:
            return None
        if reason := item.test.skip_reason:
            _begin(item)
            names = (item.name, *(mark.name for mark in item.test.marks))
            keywords: dict[str, Literal[1]] = dict.fromkeys(names, 1)
            why = (str(item.path), 0, f"Skipped: {reason}")
            report = pytest.TestReport(item.nodeid, item.location, keywords, "skipped", why, "setup")
            item.ihook.pytest_runtest_logreport(report=report)
            _end(item)
            return True
        hooks = item.phase_hooks = self._hooks_of(item)
        if hooks is None or not hooks.reports_once:
            return None
        _begin(item)
        _run(item, nextitem, hooks)
        if not hooks.keeps_properties:
            # What only hooks and fixtures would read of a test that has run: half a kilobyte of each.
            item.user_properties.clear()
            item.stash = item._store = pytest.Stash()  # two names, until pytest drops the second
        return True

    def _hooks_of(self, item: GeneratedItem) -> PhaseHooks | None:
        """The hooks of all items of a directory; `None` where what pytest captures might be missed."""
        if item.path not in self._hooks:
            hooks = item.session.gethookproxy(item.path)
            self._hooks[item.path] = (
                PhaseHooks(item.config, hooks) if _is_silent(item.config, hooks) else None
            )
        return self._hooks[item.path]


def _begin(item: pytest.Item) -> None:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)


def _end(item: pytest.Item) -> None:
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _run(item: pytest.Item, nextitem: pytest.Item, hooks: PhaseHooks) -> None:
    """Set up, run and tear down a test. One that does not fail has one report, that of its call.

    A report of each phase would be a third of what pytest does for a test, and pytest keeps them all.
    """
    setup = _phase(item, "setup")
    if setup.excinfo is not None:
        _report(item, setup)
    else:
        call = _phase(item, "call")
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        if not report.failed:
            _report_once(item, report, _teardown(item, nextitem), hooks)
            return
        _report(item, setup)
        _log(item, call, report)
    _report(item, _teardown(item, nextitem))
    _end(item)


def _report_once(
    item: pytest.Item, report: pytest.TestReport, teardown: pytest.CallInfo[None], hooks: PhaseHooks
) -> None:
    """Report the call of a test that does not fail, and its teardown only where that does."""
    if not hooks.keeps_properties:
        report.keywords = _NO_KEYWORDS  # the terminal keeps reports, and reads other things of them
    if teardown.excinfo is None:
        setattr(report, LAST, True)
        item.ihook.pytest_runtest_logreport(report=report)
        hooks.end_test(nodeid=item.nodeid, location=item.location)
        return
    item.ihook.pytest_runtest_logreport(report=report)
    _report(item, teardown)
    _end(item)


def _teardown(item: pytest.Item, nextitem: pytest.Item) -> pytest.CallInfo[None]:
    stops = item.session.shouldfail or item.session.shouldstop
    return _phase(item, "teardown", nextitem=None if stops else nextitem)


def _phase(item: pytest.Item, when: Phase, **given: Any) -> pytest.CallInfo[None]:
    hook = getattr(item.ihook, f"pytest_runtest_{when}")
    return pytest.CallInfo.from_call(
        lambda: hook(item=item, **given), when=when, reraise=(pytest.exit.Exception, KeyboardInterrupt)
    )


def _report(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    _log(item, call, item.ihook.pytest_runtest_makereport(item=item, call=call))


def _log(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Hand out a report; of a failure that nobody expects or asks for, what raised it too."""
    item.ihook.pytest_runtest_logreport(report=report)
    if call.excinfo is not None and report.failed and not hasattr(report, "wasxfail"):
        item.ihook.pytest_exception_interact(node=item, call=call, report=report)


class PhaseHooks:
    """The hooks of a directory, those of phases without the plugins that capture what nobody writes there.

    `reports_once`: nobody asks for the report of a setup or teardown that passes. `end_test` ends a test for
    all but xdist, whose controller knows it by the only report (`ReportsOfWorkers`).

    Before each phase pytest puts two handlers on every logger that does not propagate, of which torch has
    forty, and takes them off afterwards: that is as much as all else it does for a test.
    """

    def __init__(self, config: pytest.Config, hooks: Any) -> None:
        self._hooks = hooks
        self.reports_once = _reports_once(config, hooks)
        self.keeps_properties = is_read(config, hooks)
        manager = config.pluginmanager
        logging, capture = manager.get_plugin(LOGGING), manager.get_plugin(CAPTURE)

        def without(name: str, *left_out: object) -> Callable[..., Any]:
            callers = {
                id(implementation.plugin) for implementation in implementations(hooks, name)
            }.difference(map(id, left_out))
            return manager.subset_hook_caller(
                name, [p for p in manager.get_plugins() if id(p) not in callers]
            )

        self.pytest_runtest_setup = without("pytest_runtest_setup", logging, capture)
        self.pytest_runtest_call = without("pytest_runtest_call", logging)
        self.pytest_runtest_teardown = without("pytest_runtest_teardown", logging, capture)
        self.end_test = without("pytest_runtest_logfinish", *of_xdist(hooks, "pytest_runtest_logfinish"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hooks, name)


def _is_silent(config: pytest.Config, hooks: Any) -> bool:
    """Whether only code of pytest, of ours and of libraries runs in generated tests, and no log is shown.

    What a library logs all the same is a warning or an error, which Python then writes to standard error,
    and that is captured.
    """
    if strange(hooks, *PHASES):
        return False
    if any(implementations(hooks, name) for name in THRESHOLDS):
        return False
    if config.pluginmanager.hasplugin(LOGGING) and _shows_logs(config):
        return False
    modes = [mode.settings for mode in config.stash[RUN].modes]
    return not any(settings.metrics or settings.model for settings in modes)


def _reports_once(config: pytest.Config, hooks: Any) -> bool:
    """Whether one report is enough of a test that does not fail."""
    if strange(hooks, *REPORTS) or watched(config) or runs_tests_otherwise(hooks):
        return False
    if config.getoption("xmlpath", None) and not has_usual_report():
        return False
    return not any(config.getoption(name, None) for name in SHOW_PHASES)


def _shows_logs(config: pytest.Config) -> bool:
    """Whether logs are shown while tests run, or kept in a file: both name the phase."""
    log_options = [config.getoption(name, None) for name in ("log_cli_level", "log_file")]
    return any(log_options) or bool(config.getini("log_cli")) or bool(config.getini("log_file"))


# pytest's JUnit file of many tests: finished cases wait on the disk, not in memory, until it is written.
#
# pytest keeps the XML tree of every test to the end, 20 KB for a pair with its properties. Here each finished
# case is written to a nameless file as the text that it will have, and a mark stands in the report for it. As
# soon as pytest has written the report, the marks are replaced. The file is the same, byte by byte.


_MARK = ElementTree.Element("acc-stored")
_MARK_TEXT = ElementTree.tostring(_MARK)
"""No text of a report has this: a `<` in it would be escaped."""
_FINISHED = {"to_xml"}
"""All that pytest leaves in the reporter of a test case that is finished."""


class StoredCase:
    """Stands for a reporter of pytest whose test case is in the spool."""

    __slots__ = ("length", "start")

    def __init__(self, start: int, length: int) -> None:
        self.start, self.length = start, length

    def to_xml(self) -> ElementTree.Element:
        """The mark."""
        return _MARK


@functools.cache
def has_usual_report() -> bool:
    """Whether the JUnit report of this pytest is one that we know."""
    return isinstance(getattr(LogXML(os.devnull, None), "node_reporters_ordered", None), list)


def junit_report(config: pytest.Config) -> LogXML | None:
    """The plugin of pytest that writes the JUnit file in this process, if one is to be written."""
    plugins = config.pluginmanager.get_plugins() if has_usual_report() else ()
    return next((plugin for plugin in plugins if isinstance(plugin, LogXML)), None)


class JunitSpool:
    """A plugin of the process that writes a JUnit file; `report` is the plugin of pytest that does."""

    def __init__(self, config: pytest.Config, report: LogXML) -> None:
        self._report = report
        self._keeps_properties = strange(config.hook, *READERS)
        self._size = self._scanned = 0
        self._open: list[int] = []
        self._file: IO[bytes] | None = None
        for implementation in implementations(config.hook, "pytest_sessionfinish"):
            if implementation.plugin is report:
                # A conftest may read the file when it finishes in its turn, so the marks go before that.
                implementation.function = self._replacing_marks(implementation.function)
                self._file = _nameless(report.logfile)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Finish the case of a test that sends no report of its teardown, and store what is finished."""
        last = getattr(report, LAST, False)
        if last:
            ended = copy.copy(report)
            ended.when, ended.duration, ended.outcome = "teardown", 0.0, "passed"
            self._report.pytest_runtest_logreport(ended)
        if not self._keeps_properties and not report.failed:
            report.user_properties = []  # the terminal keeps reports
        if last or report.when == "teardown":
            self._store(self._report.node_reporters_ordered)

    def _store(self, cases: list[Any]) -> None:
        """Store the cases that are finished. With `-n` a few are not, one for each worker."""
        if self._file is None:
            return
        self._open.extend(range(self._scanned, len(cases)))
        self._scanned = len(cases)
        for place in [place for place in self._open if vars(cases[place]).keys() == _FINISHED]:
            text = ElementTree.tostring(cases[place].to_xml(), encoding="unicode").encode()
            # Where the disk is full, what pytest has in memory stays there.
            with contextlib.suppress(OSError):
                _write(self._file, text)
                cases[place] = StoredCase(self._size, len(text))
                self._size += len(text)
            self._open.remove(place)

    def _replacing_marks(self, write: Callable[[], None]) -> Callable[[], None]:
        """A function that writes the report as `write` does, and then replaces the marks."""

        def write_report() -> None:
            write()
            if self._file is not None:
                cases: list[Any] = self._report.node_reporters_ordered
                stored = [case for case in cases if isinstance(case, StoredCase)]
                # Replace the marks in a report by the cases for which they stand, in their order.
                with open(self._report.logfile, "rb") as file:
                    pieces = file.read().split(_MARK_TEXT)
                with open(self._report.logfile, "wb") as file:
                    file.write(pieces[0])
                    for case, piece in zip(stored, pieces[1:]):
                        file.write(os.pread(self._file.fileno(), case.length, case.start))
                        file.write(piece)

        return write_report


def _nameless(report: str) -> IO[bytes] | None:
    """A file without a name, on the disk of the report; `None` where the report is a pipe or a terminal, in
    which nothing can be replaced, or where no file can be made."""
    if os.path.exists(report) and not os.path.isfile(report):
        return None
    home = os.path.dirname(report)
    with contextlib.suppress(OSError):
        return tempfile.TemporaryFile(dir=home if os.path.isdir(home) else None, buffering=0)
    return None


def _write(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file.fileno(), view) :]
