"""`--acc-shard i/n`: the share of the tests that one of n machines runs.

Tests are dealt out by what they cost, the dearest first, each to the shard that has least so far. The cost is
the size of the files, which is known without any earlier run. Each test belongs to exactly one shard,
whatever process asks, so that the shards of a matrix together are the whole run.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from .. import options
from ..errors import AccError
from ..session import door

if TYPE_CHECKING:
    from ..mapping.pair import Pair
    from ..opcheck.entry import Entry
    from ..session import AccSession
    from .opcheck_session import OpcheckSession

CHANNEL = "acc_shard"
"""Key of our numbers in xdist's `workerinput`."""
PER_TEST = 2**20
"""What a comparison costs beyond its bytes, as bytes: a millisecond, in which a core compares a megabyte."""
PER_UNMAPPED = 2**18
"""What a node without a partner costs, which is only reported."""
STATES = ("before", "after")
"""Where ATB dumps the tensors of an operation, below its directory."""


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


class Sizes:
    """Sizes of files in bytes, each looked up once; 0 for one that cannot be (its test will say so)."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, paths: Iterable[str]) -> int:
        """The sum over different files."""
        return sum(self._one(path) for path in dict.fromkeys(paths))

    def _one(self, path: str) -> int:
        size = self._known.get(path)
        if size is None:
            try:
                size = os.stat(path).st_size
            except (OSError, ValueError):
                size = 0
            self._known[path] = size
        return size


def pair_cost(pair: Pair, sizes: Sizes) -> int:
    """What comparing a pair costs, in bytes to be read."""
    return PER_TEST + sizes.of(ref.path for side in (pair.golden, pair.mine) for ref in side.refs)


def entry_cost(entry: Entry, given: str, sizes: Sizes) -> int:
    """What checking one operation costs; `given` is the directory of `--acc-opcheck-input`."""
    from ..opcheck.locate import locate

    try:
        directory, _ = locate(entry, given)
    except (AccError, OSError):
        return PER_TEST
    homes = [os.path.join(directory, state) for state in STATES] if directory else []
    return PER_TEST + sizes.of(file for home in homes for file in _files(home))


def _files(directory: str) -> list[str]:
    try:
        return [one.path for one in os.scandir(directory)]
    except OSError:
        return []


class Shard:
    """Shard `number` of `count` (from 1), a plugin. `own` are the numbers of its tests in plan or list.

    Tests without such a number, people's own and those of fuzzing, are left to the first shard.
    """

    def __init__(self, number: int, count: int, own: Sequence[int], total: int) -> None:
        self._number = number
        self._count = count
        self._own = own
        self._total = total

    def pytest_report_header(self) -> str:
        """Say that this is not the whole run."""
        tests = f"{len(self._own)} of {self._total} generated tests"
        return f"acc shard: {self._number} of {self._count}, {tests}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave tests without a place in plan or list to the first shard."""
        if self._number == 1:
            return
        others = [item for item in items if not _is_generated(item)]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if _is_generated(item)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A shard of which the plan had too few tests is no failure: the others have them."""
        nothing = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not self._own
        if nothing and (self._total or self._number > 1):
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell an xdist worker which tests are its machine's, so that it looks at no files."""
        node.workerinput[CHANNEL] = (self._total, list(self._own))


def _is_generated(item: pytest.Item) -> bool:
    if item.get_closest_marker("acc_op") or item.get_closest_marker("acc_unmapped"):
        return True
    called = getattr(item, "callspec", None)
    return called is not None and called.params.get("acc_pair") is not None


def open_shard(config: pytest.Config, acc: AccSession | None, checks: OpcheckSession | None) -> None:
    """Leave `acc` and `checks` with the tests of the shard that `--acc-shard` names.

    Raises `pytest.UsageError`.
    """
    text = options.values(config, options.SHARING).get("shard")
    if text is None:
        return
    from ..settings import shard_from

    with door("reading --acc-shard"):
        number, count = shard_from(text)
    if hasattr(config, "workerinput"):
        total, own = config.workerinput[CHANNEL]
    else:
        costs = list(_costs(acc, checks))
        total = len(costs)
        own = [place for place, owner in enumerate(deal(costs, count)) if owner == number - 1]
    share = frozenset(own)
    if acc is not None:
        acc.share = share
        acc.chosen = tuple(one for one in acc.chosen if one[0] in share)
        acc.alone = tuple(one for one in acc.alone if one.number in share)
    if checks is not None:
        mine = {names for place, (names, _) in enumerate(checks.named) if place in share}
        checks.chosen = tuple(one for one in checks.chosen if one[0] in mine)
    config.pluginmanager.register(Shard(number, count, own, total), "acc_shard")


def _costs(acc: AccSession | None, checks: OpcheckSession | None) -> Iterator[int]:
    """What each test costs, in the order of their numbers; one of the two is `None`."""
    sizes = Sizes()
    if acc is not None:
        yield from (pair_cost(pair, sizes) for pair in acc.plan.pairs)
        yield from (PER_UNMAPPED for _ in acc.plan.unmapped)
    if checks is not None:
        given = checks.settings.input
        yield from (entry_cost(entry, given, sizes) for _, entry in checks.named)
