"""`EnginePace`: how far the nodes are, in a line: how many, how fast, what is left."""

from __future__ import annotations

from ..reporting import pace

PER_PAIR = 2**20
"""Cost of a pair beyond its bytes, as bytes."""
SLOW = 0.1
"""GB/s below which a speed is written in MB/s."""


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class EnginePace:
    """Pace of a run: when a line is due, and what it says. Times are seconds of any clock."""

    def __init__(self) -> None:
        self._began = self._next = 0.0
        self._pairs = self._bytes = self._total = self._size = 0

    def begin(self, now: float, pairs: int, nbytes: int) -> None:
        """So many pairs of so many bytes are to be measured."""
        self._began, self._next = now, now + pace.FIRST
        self._total += pairs
        self._size += nbytes

    def ended(self, pairs: int, nbytes: int) -> None:
        """So many of them are."""
        self._pairs += pairs
        self._bytes += nbytes

    def due(self, now: float) -> bool:
        """Whether enough time has passed since the last line, and something is left."""
        return now >= self._next and self._pairs < self._total

    def line(self, now: float, nodes: int) -> str:
        """`acc: 4 nodes, 2.1 GB/s, 1,024 of 8,192 pairs left, about 40 s`; the pace is that so far."""
        passed = now - self._began
        self._next = now + max(pace.EVERY, pace.SHARE * passed)
        phrases = [counted(nodes, "node")]
        if self._pairs and passed:
            speed, unit = self._bytes / passed / 1e9, "GB/s"
            if speed < SLOW:
                speed, unit = 1e3 * speed, "MB/s"
            phrases.append(f"{speed:.2g} {unit}")
        phrases.append(f"{self._total - self._pairs:,} of {self._total:,} pairs left")
        if self._pairs:
            done, total = (PER_PAIR * self._pairs + self._bytes, PER_PAIR * self._total + self._size)
            phrases.append(f"about {pace.duration(passed * max(0, total - done) / done)}")
        return f"acc: {', '.join(phrases)}"
