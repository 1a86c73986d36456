"""Workers that do not answer: the terminal says which, and at which test, while the run waits for them.

xdist notices a worker whose process has ended. One that is stopped (SIGSTOP, a debugger), or that hangs in a
file system, it waits for without a word. So do we, for the user may let it go on; but with a line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .own_lines import say
from .reporting.printable import printable

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
    """What was last heard of one worker. `process` is 0 where it runs on another machine.

    `begun`: it has collected, and may be running tests; `busy`: it is expected to say something.
    """

    worker: str
    process: int
    when: float
    what: str = "since it was started"
    begun: bool = False
    busy: bool = True
    told: bool = False
    patience: float = PATIENCE


class Silence:
    """Watches the workers of a session, from a thread of the controller. Registered as a plugin there."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._workers: dict[str, Heard] = {}
        self._ended = threading.Event()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A worker is being started."""
        name = node.gateway.id
        with self._lock:
            self._workers[name] = Heard(name, _process_of(node), time.monotonic())

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
        with self._lock:
            self._workers.pop(node.gateway.id, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """A worker has done the setup, the call or the teardown of a test."""
        node = getattr(report, "node", None)
        if node is None:
            return
        ended = report.when == "teardown"
        name = printable(report.nodeid, _WIDTH)
        self._hear(node, f"after {name}" if ended else f"at {name}", busy=not ended)

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self) -> None:
        """End workers that have nothing to put in order: those not yet begun, and those that are stopped.

        xdist asks them to end and waits, without a limit where they do not even read: a worker that imports
        torch on a busy machine for as long as that takes, one that is stopped for ever.
        """
        with self._lock:
            workers = list(self._workers.values())
        for heard in workers:
            if heard.process and (not heard.begun or is_stopped(heard.process)):
                with contextlib.suppress(OSError):
                    os.kill(heard.process, signal.SIGKILL)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Watch while tests run."""
        thread = threading.Thread(target=self._watch, name="acc-silence", daemon=True)
        thread.start()
        try:
            return (yield)
        finally:
            self._ended.set()
            thread.join()

    def _hear(self, node: Any, what: str, *, busy: bool) -> None:
        with self._lock:
            heard = self._workers.get(node.gateway.id)
            if heard is None:
                return
            if heard.told:
                heard.patience *= 2
            heard.when, heard.what, heard.busy, heard.told = time.monotonic(), what, busy, False
            heard.begun = heard.begun or not busy

    def _watch(self) -> None:
        while not self._ended.wait(PAUSE):
            for line in self.look(time.monotonic()):
                say(self._config, line)

    def look(self, now: float) -> Iterator[str]:
        """A line for each worker that is to be told of, once for one silence.

        A worker between two tests may have nothing to do; it is told of only when its process is stopped.
        """
        with self._lock:
            silent = [heard for heard in self._workers.values() if not heard.told]
        for heard in silent:
            seconds = now - heard.when
            stopped = seconds >= STOPPED and is_stopped(heard.process)
            if stopped or (heard.busy and seconds >= heard.patience):
                heard.told = True
                yield _line(heard, seconds, stopped)


def _line(heard: Heard, seconds: float, stopped: bool) -> str:
    worker = f"acc: worker {heard.worker}{f' (process {heard.process})' if heard.process else ''}"
    if not stopped:
        return f"{worker} has not answered for {seconds:.0f} s, {heard.what}; the run waits for it"
    return (
        f"{worker} is stopped, {heard.what}; the run waits for it: "
        f"kill -CONT {heard.process} lets it go on, kill -KILL {heard.process} gives it up"
    )


def _process_of(node: Any) -> int:
    """The process of a worker on this machine, 0 for others. (execnet has it nowhere in public.)"""
    known = getattr(node.gateway, "_rinfo", None)
    if known is None or not node.gateway.spec.popen:
        return 0
    return int(getattr(known(), "pid", 0))


def is_stopped(process: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger; no where there is no /proc to say so."""
    if not process:
        return False
    try:
        said = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return False
    # The name stands in parentheses and may hold some; the state is the word after the last of them.
    return said.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
