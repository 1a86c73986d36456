"""`TaskPatience`: how long an answer is waited for before its task counts as lost."""

from __future__ import annotations

from .progress import PER_PAIR

_SLOWEST = 4 * 2**20
"""Bytes a second that a node reads at least, as long as nothing better is known."""
_SLOWER = 10.0
"""Factor by which a task may be slower than the slowest so far, byte for byte."""


class TaskPatience:
    """Learns from tasks that were answered. A task weighs its bytes, and something for each of its pairs.

    Any task may take so many `seconds`, beside those for its bytes: a process starts, a file system is slow.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._slowest = 0.0

    def answered(self, seconds: float, nbytes: int, pairs: int) -> None:
        """A task has kept a core so long."""
        self._slowest = max(self._slowest, seconds / _weight(nbytes, pairs))

    def with_task(self, nbytes: int, pairs: int) -> float:
        """Seconds for which the answer of a task is waited for, from the moment it was handed out."""
        weight = _weight(nbytes, pairs)
        return max(self._seconds + weight / _SLOWEST, _SLOWER * self._slowest * weight)


def _weight(nbytes: int, pairs: int) -> int:
    return nbytes + PER_PAIR * pairs
