"""Reports of generated tests in an xdist worker: one line at the start, one report with the rows.

xdist sends a message for each hook of a test, and execnet takes every report apart in Python: that is as much
work as comparing a small pair, half of it for the one controller of all workers.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ..reporting.row import Row
from ..reporting.texts import printable
from .host import WATCHED, is_read, say
from .run import LAST, SINK

ROWS = "acc_rows"
"""Attribute of a test report that carries rows from a worker to the controller."""
PACKED = "acc_packed"
"""Key of a report that travels as one piece. execnet would send neither all integers of a row nor names that
are not UTF-8."""


class WorkerReports:
    """A plugin of an xdist worker: keeps the rows of the running test for the report of its call."""

    def __init__(self, config: pytest.Config) -> None:
        self._rows: list[Row] = []
        config.stash[SINK] = self._rows.append

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the rows into the report, which travels to the controller."""
        report = yield
        if call.when == "call" and self._rows:
            setattr(report, ROWS, tuple(self._rows))
            self._rows.clear()
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self) -> Generator[None, dict[str, Any], dict[str, Any]]:
        """Pack a report with rows."""
        data = yield
        return {PACKED: pickle.dumps(data)} if data is not None and ROWS in data else data


class ReportsOfWorkers:
    """A plugin of the controller of xdist workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker whether somebody here looks at its reports. (`pytest.main` is given plugins that
        workers have not.)"""
        node.workerinput[WATCHED] = is_read(self._config, self._config.hook)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> None:
        """Unpack a report, for pytest to make one of."""
        unpack(data)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Say that a test has ended of which no message will say so."""
        if getattr(report, LAST, False):
            self._config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)


def unpack(data: dict[str, Any]) -> None:
    """Put what a worker has packed in its place."""
    if PACKED in data:
        # Our own bytes from our own worker, never a file.
        data.update(pickle.loads(data.pop(PACKED)))  # noqa: S301


def rows_of(report: Any) -> tuple[Row, ...]:
    """The rows that arrived with a report, taken out of it: pytest keeps reports until the end."""
    rows: tuple[Row, ...] = report.__dict__.pop(ROWS, ())
    return rows


# Workers that do not answer: the terminal says which, and at which test, while the run waits for them.
#
# xdist notices a worker whose process has ended. It waits without a word for one that is stopped (SIGSTOP, a
# debugger) or that hangs in a file system. So do we, for the user may let it go on; but with a line.


PATIENCE = 60.0
"""Seconds without an answer that are told. A worker that answers after all gets twice as many from then on,
for its tests are long."""
STOPPED = 5.0
"""Seconds without an answer of a process that is stopped: short enough stops are nobody's business."""
PAUSE = 1.0
"""Seconds between two looks."""
_WIDTH = 200


@dataclass(slots=True)
class Heard:
    """The last report of one worker, and its test. `process` is 0 where it runs on another machine.

    `begun`: it has collected, and may be running tests; `busy`: it is expected to say something.
    """

    worker: str
    process: int
    when: float
    what: str = "since it was started"
    test: str = ""
    begun: bool = False
    busy: bool = True
    reported: bool = False
    patience: float = PATIENCE


class Silence:
    """Watches the workers of a session, from a thread of the controller. Registered as a plugin there.

    No lock is taken: Ctrl-C may come at any moment, and each change is one step for the other thread.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._workers: dict[str, Heard] = {}
        self._ended = threading.Event()

    def guard_start(self) -> None:
        """Have Ctrl-C end workers that are being started, until tests run.

        execnet waits for their first answer also when it is interrupted: a minute, on a busy machine.
        """
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupted)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self.pytest_keyboard_interrupt()
        signal.default_int_handler(number, frame)

    def _end_guard(self) -> None:
        if signal.getsignal(signal.SIGINT) == self._interrupted:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """The process of a worker has been started."""
        self._workers[gateway.id] = Heard(gateway.id, _process_of(gateway), time.monotonic())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        """A worker begins to collect."""
        self._hear(node, "since it began to collect", busy=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        """A worker waits for tests."""
        self._hear(node, "since it has collected", busy=False)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended, and nothing more is expected of it."""
        self._workers.pop(node.gateway.id, None)

    def listen(self, dsession: Any) -> None:
        """Hear where a worker begins a test. (The hook that xdist calls then does not say which worker.)"""
        logstart = getattr(dsession, "worker_logstart", None)
        if logstart is None:
            return

        def worker_logstart(node: Any, nodeid: str, **more: Any) -> None:
            self._hear(node, "at", nodeid, busy=True)
            logstart(node=node, nodeid=nodeid, **more)

        dsession.worker_logstart = worker_logstart

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """A worker has done the setup, the call or the teardown of a test."""
        node = getattr(report, "node", None)
        if node is None:
            return
        ended = report.when == "teardown" or getattr(report, LAST, False)
        self._hear(node, "after" if ended else "at", report.nodeid, busy=not ended)

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self) -> None:
        """End workers that have nothing to put in order: those not yet begun, and those that are stopped.

        xdist asks them to end and waits, without a limit where they do not even read: a worker that imports
        torch on a busy machine for as long as that takes, one that is stopped for ever.
        """
        self._end_guard()
        for heard in list(self._workers.values()):
            if heard.process and (not heard.begun or is_stopped(heard.process)):
                with contextlib.suppress(OSError):
                    os.kill(heard.process, signal.SIGKILL)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Watch while tests run."""
        self._end_guard()
        thread = threading.Thread(target=self._watch, name="acc-silence", daemon=True)
        thread.start()
        try:
            return (yield)
        finally:
            self._ended.set()
            thread.join(2 * PAUSE)

    def _hear(self, node: Any, what: str, test: str = "", *, busy: bool) -> None:
        heard = self._workers.get(node.gateway.id)
        if heard is None:
            return
        if heard.reported:
            heard.patience *= 2
        heard.when, heard.what, heard.test = time.monotonic(), what, test
        heard.busy, heard.reported = busy, False
        heard.begun = heard.begun or not busy

    def _watch(self) -> None:
        while not self._ended.wait(PAUSE):
            for line in self.look(time.monotonic()):
                say(self._config, line)

    def look(self, now: float) -> Iterator[str]:
        """A line for each worker that is to be told of, once for one silence.

        A worker between two tests may have nothing to do; it is told of only when its process is stopped.
        """
        for heard in [worker for worker in list(self._workers.values()) if not worker.reported]:
            seconds = now - heard.when
            stopped = seconds >= STOPPED and is_stopped(heard.process)
            if stopped or (heard.busy and seconds >= heard.patience):
                heard.reported = True
                yield _line(heard, seconds, stopped)


def _line(heard: Heard, seconds: float, stopped: bool) -> str:
    worker = f"acc: worker {heard.worker}{f' (process {heard.process})' if heard.process else ''}"
    where = f"{heard.what} {printable(heard.test, _WIDTH)}".rstrip()
    if not stopped:
        return f"{worker} has not answered for {seconds:.0f} s, {where}; the run waits for it"
    return (
        f"{worker} is stopped, {where}; the run waits for it: "
        f"kill -CONT {heard.process} lets it go on, kill -KILL {heard.process} gives it up"
    )


def _process_of(gateway: Any) -> int:
    """The process of a worker on this machine, 0 for others. (execnet has it nowhere in public.)"""
    if not gateway.spec.popen:
        return 0
    return int(getattr(getattr(getattr(gateway, "_io", None), "popen", None), "pid", 0))


def is_stopped(process: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger; no where there is no /proc to say so."""
    if not process:
        return False
    try:
        status = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return False
    # The name stands in parentheses and may hold some; the state is the word after the last of them.
    return status.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
