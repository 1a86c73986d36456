"""The pace of a long run, in a line: comparisons done, bytes read, time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TextIO

FIRST = 10.0
"""Seconds after which a run is worth a line."""
EVERY = 30.0
"""Seconds between two lines, at least."""
SHARE = 0.05
"""Of a run of hours a line comes when so much of the time so far has passed since the last one."""
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


class Pace:
    """The progress line, and when it is due. Times are seconds of any clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._next = began + FIRST

    def due(self, now: float) -> bool:
        """Whether enough time has passed since the last line (or the start)."""
        return now >= self._next

    def line(self, now: float, things: str, done: tuple[int, int, int], total: tuple[int, int, int]) -> str:
        """The line. `done` and `total`: how many things (`pairs`), their bytes, and what they cost.

        The time that is left is that of the cost that is left, at the pace so far: a large tensor takes as
        long as a thousand small ones.
        """
        passed = now - self._began
        self._next = now + max(EVERY, SHARE * passed)
        clauses = [f"{done[0]:,} of {total[0]:,} {things}"]
        if total[1]:
            name, unit = next(((name, size) for name, size in _UNITS if total[1] >= size), ("bytes", 1))
            clauses.append(f"{done[1] / unit:.3g} of {total[1] / unit:.3g} {name}")
        if done[2] and done[2] < total[2]:
            clauses.append(f"about {duration(passed * (total[2] - done[2]) / done[2])} left")
        return f"acc: {', '.join(clauses)}"


def still(now: float, began: float, doing: str) -> str:
    """The line of what cannot say how far it is."""
    return f"acc: {doing}, {duration(now - began)} so far"


def duration(seconds: float) -> str:
    """`40 s`, `2 min 30 s`, `1 h 5 min`: the two largest units, to be read at a glance."""
    left = round(seconds)
    if left < 60:
        return f"{left} s"
    if left < 3600:
        return " ".join(_named((left // 60, "min"), (left % 60 // 10 * 10, "s")))
    return " ".join(_named((left // 3600, "h"), (left % 3600 // 60, "min")))


def _named(*amounts: tuple[int, str]) -> Iterator[str]:
    yield from (f"{amount} {unit}" for amount, unit in amounts if amount)


# Progress of a command: a bar on a terminal, now and then a plain line anywhere else.


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
