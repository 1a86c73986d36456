"""Run a command without a shell, in a session of its own, and hand on what the user sends us.

Ctrl-C and friends reach every process that the command started, not only the first one, which often is
a script that would die and leave its workers running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO

from ...errors import LaunchError

_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PATIENCE = 3
"""The third signal of the user kills, for programs that ignore the others."""
_GRACE = 5.0
"""Seconds between asking a program to end and killing it."""


@dataclass(frozen=True, slots=True)
class ChildExit:
    """The end of a command: its exit code (128 + n for signal n), and the signal that was handed on, or 0."""

    code: int
    signal: int = 0
    stopped: bool = False


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: IO[bytes] | None = None,
    stop: Callable[[], bool] | None = None,
    every: float = 0.5,
) -> ChildExit:
    """Run `command` to its end.

    `output` gets stdout and stderr, and stdin is empty then; else the child has ours. `stop` is asked about
    every `every` seconds whether to end the program early. Raises `LaunchError` for a command that does not
    start.
    """
    with _Signals() as signals:
        child = _start(command, environment, output)
        signals.hand_on_to(child)
        stopped = False
        try:
            while stop is not None and not stopped:
                try:
                    child.wait(every)
                    break
                except subprocess.TimeoutExpired:
                    stopped = stop()
            if stopped:
                _end(child)
            code = child.wait()
        except BaseException:
            _end(child)
            raise
    if signals.first:
        return ChildExit(128 + signals.first, signals.first, stopped)
    return ChildExit(128 - code if code < 0 else code, stopped=stopped)


def _start(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=None if output is None else subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise LaunchError(f"{command[0]}: cannot be started: {reason}") from error


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the whole group to end, then make it."""
    _send(child, signal.SIGTERM)
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _send(child, signal.SIGKILL)
        child.wait()


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all gone
        os.killpg(child.pid, number)  # the session's first process names the group


class _Signals:
    """While open, the user's signals go to the child's group, and `first` is the first of them."""

    def __init__(self) -> None:
        self.first = 0
        self._count = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for number in _HANDED_ON:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # nohup stays nohup
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hand_on_to(self, child: subprocess.Popen[bytes]) -> None:
        """The receiver of signals; one that came before it was there goes to it now."""
        self._child = child
        if self.first:
            _send(child, self.first)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.first = self.first or number
        self._count += 1
        if self._child is not None:
            _send(self._child, number if self._count < _PATIENCE else signal.SIGKILL)
