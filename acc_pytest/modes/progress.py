"""Lines about how far a long run is, in terminals and in the logs of CI, with and without -n."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from ..own_lines import say
from ..reporting.pace import EVERY, FIRST, Pace, still
from .mode import Mode
from .shards import PER_TEST, cost_of


def costs_of(modes: Sequence[Mode]) -> Mapping[str, int]:
    """The cost (`cost_of`) of each test of this machine that progress lines count, by test id."""
    tests = [test for mode in modes if mode.noun for test in mode.chosen if test.compares]
    return {test.node_id: cost_of(test) for test in tests}


class PaceLines:
    """A plugin of the process that has the terminal.

    `costs` is asked once, when the first line is due: it looks at every file, which short runs do without.
    """

    def __init__(self, config: pytest.Config, noun: str, costs: Callable[[], Mapping[str, int]]) -> None:
        self._config = config
        self._noun = noun
        self._costs = functools.cache(costs)
        self._pace: Pace | None = None
        self._selected: Sequence[str] = ()
        self._ended: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which tests are to run."""
        if session.items:
            self._selected = [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Note which tests workers are to run; they all have the same."""
        self._selected = self._selected or ids

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test has ended, and its dot was written. (Workers start long before their first one does.)"""
        now = time.monotonic()
        if self._pace is None:
            self._pace = Pace(now)
        if report.when != "call" and not (report.when == "setup" and not report.passed):
            return
        self._ended.append(report.nodeid)
        if self._pace.due(now):
            done, total = self._sum(self._ended), self._sum(self._selected)
            if done[0] < total[0]:
                say(self._config, self._pace.line(now, self._noun, done, total))

    def _sum(self, ids: Sequence[str]) -> tuple[int, int, int]:
        """The number of generated tests, their bytes and their cost. (xdist may append `@group`.)"""
        costs = self._costs()
        counted = [costs[name] for name in (test_id.partition("@")[0] for test_id in ids) if name in costs]
        return len(counted), sum(counted) - PER_TEST * len(counted), sum(counted)


@contextmanager
def while_it_lasts(
    config: pytest.Config, doing: str, first: float = FIRST, every: float = EVERY
) -> Iterator[None]:
    """Say now and then that something before the first test goes on, if it takes long."""
    ended, began = threading.Event(), time.monotonic()

    def watch() -> None:
        pause = first
        while not ended.wait(pause):
            say(config, still(time.monotonic(), began, doing))
            pause = every

    thread = threading.Thread(target=watch, name="acc-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
