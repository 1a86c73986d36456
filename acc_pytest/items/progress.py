"""Lines about how far a long run is, in terminals and in the logs of CI, with and without -n."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ..own_lines import say
from ..reporting.pace import EVERY, FIRST, Pace, still
from .shards import PER_TEST, Sizes, entry_cost, pair_cost

if TYPE_CHECKING:
    from ..session import AccSession
    from .opcheck_session import OpcheckSession

Costs = Mapping[str, int]
"""What each generated test costs (`pair_cost`), by its id."""


def costs_of(acc: AccSession | None, checks: OpcheckSession | None) -> Costs:
    """The costs of all generated tests of this machine."""
    sizes = Sizes()
    found: dict[str, int] = {}
    if acc is not None and acc.stored is None:
        found.update((acc.naming.node_id(pair), pair_cost(pair, sizes)) for _, pair in acc.chosen)
    if checks is not None:
        given = checks.settings.input
        found.update(("::".join(names), entry_cost(entry, given, sizes)) for names, entry in checks.chosen)
    return found


class PaceLines:
    """A plugin of the process that has the terminal.

    `costs` is asked once, when the first line is due: it looks at every file, which short runs do without.
    """

    def __init__(
        self,
        config: pytest.Config,
        things: str,
        costs: Callable[[], Costs],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._things = things
        self._costs_of = costs
        self._costs: Costs | None = None
        self._clock = clock
        self._pace: Pace | None = None
        self._asked: Sequence[str] = ()
        self._ended: list[str] = []
        self._done = self._total = (0, 0, 0)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which tests are to run."""
        if session.items:
            self._asked = [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Note which tests workers are to run; they all have the same."""
        self._asked = self._asked or ids

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test has ended, and its dot was written. (Workers start long before their first one does.)"""
        now = self._clock()
        if self._pace is None:
            self._pace = Pace(now)
        if report.when != "call" and not (report.when == "setup" and not report.passed):
            return
        self._ended.append(report.nodeid)
        if self._pace.due(now):
            self._count()
            if self._done[0] < self._total[0]:
                say(self._config, self._pace.line(now, self._things, self._done, self._total))

    def _count(self) -> None:
        """Add what has ended since the last line."""
        if self._costs is None:
            self._costs = self._costs_of()
            self._total = _sum(self._costs, self._asked)
        self._done = _plus(self._done, _sum(self._costs, self._ended))
        self._ended.clear()


def _sum(costs: Costs, ids: Sequence[str]) -> tuple[int, int, int]:
    """How many of the tests are generated ones, their bytes and their cost. (xdist may append `@group`.)"""
    found = [
        costs[name] for one in ids if (name := one.partition("@")[0] if one not in costs else one) in costs
    ]
    return len(found), sum(found) - PER_TEST * len(found), sum(found)


def _plus(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


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
