"""pytest's JUnit file of many tests: finished cases wait on the disk, not in memory, until it is written.

pytest keeps the XML tree of every test to the end, 20 KB for a pair with its properties. Here each finished
case is written to a nameless file as the text that it will have, and a mark stands in the report for it. As
soon as pytest has written the report, the marks are replaced. The file is the same, byte by byte.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any
from xml.etree import ElementTree

import pytest
from _pytest.junitxml import LogXML

from .onlookers import READERS, implementations, strange
from .recording import LAST

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
                _fill_in(self._report.logfile, self._file, stored)

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


def _fill_in(report: str, spool: IO[bytes], cases: Sequence[StoredCase]) -> None:
    """Replace the marks in a report by the cases for which they stand, in their order."""
    with open(report, "rb") as file:
        pieces = file.read().split(_MARK_TEXT)
    with open(report, "wb") as file:
        file.write(pieces[0])
        for case, piece in zip(cases, pieces[1:]):
            file.write(os.pread(spool.fileno(), case.length, case.start))
            file.write(piece)
