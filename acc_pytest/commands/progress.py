"""Progress of a command: a bar on a terminal, now and then a plain line anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

_WIDTH = 24
_ON_A_TERMINAL = 0.1
_ELSEWHERE = 10.0
"""Seconds between two lines of a log that nobody watches."""


class Progress:
    """Says `text` of `done` in `total` things on a stream. `total` may be unknown (0) and may grow."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._bar = stream.isatty()
        self._every = _ON_A_TERMINAL if self._bar else _ELSEWHERE
        self._next = clock() + (0.0 if self._bar else self._every)
        self._width = 0

    def show(self, done: int, total: int, text: str) -> None:
        """Say it, unless something was said a moment ago."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._every
        line = f"{done}/{total} {text}" if total else text
        if not self._bar:
            print(f"acc: {line}", file=self._stream, flush=True)
            return
        if total:
            full = min(_WIDTH, _WIDTH * done // total)
            line = f"[{'#' * full}{'.' * (_WIDTH - full)}] {line}"
        self._write(line)

    def close(self) -> None:
        """Make the line free for what is printed next."""
        if self._width:
            self._write("")

    def _write(self, line: str) -> None:
        blank = " " * max(0, self._width - len(line))
        self._stream.write(f"\r{line}{blank}" + ("" if line else "\r"))
        self._stream.flush()
        self._width = len(line)


def size(count: float) -> str:
    """Bytes in a unit that leaves one to four digits before the point."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
