"""`--acc-shard i/n`: the share of the tests that one of n machines runs.

Tests are dealt out by what they cost, the dearest first, each to the shard that has least so far. The cost is
the size of the files, which is known without any earlier run. Each test belongs to exactly one shard,
whatever process asks, so that the shards of a matrix together are the whole run.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import pytest

from ..errors import AccError
from ..tensors.kept_file import file_size
from .generated import GeneratedItem
from .mode import GeneratedTest, Mode

PER_TEST = 2**20
"""The cost of a comparison beyond its bytes, as bytes: a millisecond, in which a core compares a megabyte."""
PER_UNMAPPED = 2**18
"""The cost of a node without a partner, which is only reported."""


def deal(costs: Sequence[int], shards: int) -> list[int]:
    """The shard, from 0, of each of the tests with these `costs` (from 0, any unit).

    Longest first to the least loaded, equal costs in their order, equal loads to the lower shard: no
    shard has more than the mean and one test (R. L. Graham, SIAM J. Appl. Math. 17, 1969).
    """
    loads = [(0, shard) for shard in range(shards)]
    owners = [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        load, shard = loads[0]
        owners[place] = shard
        heapq.heapreplace(loads, (load + costs[place], shard))
    return owners


def cost_of(test: GeneratedTest) -> int:
    """The cost of a test, in bytes to be read."""
    return (PER_TEST if test.compares else PER_UNMAPPED) + bytes_of(test)


def bytes_of(test: GeneratedTest) -> int:
    """The bytes of the files that a test reads; a missing one has none (its test will say so)."""
    return sum(map(_size, set(test.files())))


def _size(path: str) -> int:
    try:
        return file_size(path)
    except (AccError, OSError, ValueError):
        return 0


def deal_out(modes: Sequence[Mode], number: int, count: int) -> None:
    """Give each mode its share of shard `number` of `count`. All are dealt out together."""
    tests = [test for mode in modes for test in mode.shared_out]
    owners = deal(list(map(cost_of, tests)), count)
    shard = [test for test, owner in zip(tests, owners) if owner == number - 1]
    for mode in modes:
        mode.share = frozenset(test.number for test in shard if test.mode is mode)


class Shard:
    """A plugin for shard `number` of `count` (from 1).

    Tests without a number, people's own and those of fuzzing, are left to the first shard.
    """

    def __init__(self, number: int, count: int, modes: Sequence[Mode]) -> None:
        self._number = number
        self._count = count
        self._size = sum(len(mode.share or ()) for mode in modes)
        self._total = sum(len(mode.shared_out) for mode in modes)

    def pytest_report_header(self) -> str:
        """Say that this is not the whole run."""
        tests = f"{self._size} of {self._total} generated tests"
        return f"acc shard: {self._number} of {self._count}, {tests}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave tests without a place in plan or list to the first shard."""
        if self._number == 1:
            return
        deselected = [item for item in items if not _is_generated(item)]
        if deselected:
            config.hook.pytest_deselected(items=deselected)
            items[:] = [item for item in items if _is_generated(item)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A shard of which the plan had too few tests is no failure: the others have them."""
        nothing = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not self._size
        if nothing and (self._total or self._number > 1):
            session.exitstatus = pytest.ExitCode.OK


def _is_generated(item: pytest.Item) -> bool:
    """Whether a test has a number: our own, and people's tests of pairs."""
    if isinstance(item, GeneratedItem):
        return item.test.number is not None
    called = getattr(item, "callspec", None)
    return called is not None and called.params.get("acc_pair") is not None
