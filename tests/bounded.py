"""`bounded`: a test that would take all memory, or never end, fails instead."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from types import FrameType

MEMORY = 2**30
"""Bytes beyond what the process has: what is tested takes some kilobytes."""
SECONDS = 120
"""Of processor time, which is no measure: what is tested takes a hundredth, and without its bound hours."""


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise AssertionError("it does not end")


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Limit memory and processor time of this process for a while."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
