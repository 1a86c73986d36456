"""`--acc-shard i/n`: the share of the tests that one of n machines runs.

Tests are dealt out by what they cost, the dearest first, each to the shard that has least so far. The cost is
the size of the files, which is known without any earlier run. Each test belongs to exactly one shard,
whatever process asks, so that the shards of a matrix together are the whole run.
"""

from __future__ import annotations

import functools
import heapq
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.mark.expression import Expression

from ..errors import AccError, SettingsError, guarded, shows_tracebacks
from ..reporting.progress import EVERY, FIRST, Pace, still
from ..reporting.texts import on_screen
from ..session import door
from ..tensors.kept_dump import file_size
from .causes import MAY_NOT_RUN
from .host import AUTO, implementations, say
from .mode import GeneratedItem, GeneratedTest, Mode
from .pairs import PairMode, PairTest

if TYPE_CHECKING:
    from ..judging.threshold import ThresholdRule
    from ..reference.recomputation import Recomputer
    from ..remote.engine.engine import Engine
    from ..reporting.row import Row


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
        if deselected := [item for item in items if not _is_generated(item)]:
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


# The number of xdist workers for a run: they take half a second to start, and hand over each row.


BYTE = 0.25e-9
"""Seconds that a process takes for each byte of a pair."""
SENT, TAKEN = 0.3e-3, 0.4e-3
"""Seconds that a worker takes to send what it found, and that the controller takes for it."""
START, TORCH = 0.5, 0.9
"""Seconds until workers measure, when this process could, and what importing torch adds to that."""
LARGE = 2**22
"""Bytes of a pair of which several threads of one process take their share."""


def start_fewer(config: pytest.Config, modes: Sequence[Mode]) -> None:
    """Have xdist, which has not started any yet, start no worker with which the run takes longer.

    What `-n` says is the most: as many are started as are done first, which may be none. With people's own
    tests, `--tx` and `--dist each` all are; so is the one of `-n 1`, which nobody asks for to save time.
    """
    options: Any = config.option
    requested = len(options.tx) if getattr(options, "numprocesses", None) else 0
    if not modes or not requested or config.args or options.dist == "each" or options.collectonly:
        return
    is_auto = config.stash.get(AUTO, False)
    if (requested == 1 and not is_auto) or modes[0].settings.engine == "ray":
        return  # who measures on nodes is told to leave -n out
    tests = _selected(config, [test for mode in modes for test in mode.chosen])
    number = _best(modes, tests, requested)
    if number < requested and not is_auto:
        line = _line(number, requested, len(tests))
        config.pluginmanager.register(FewerWorkers(line), "acc_fewer_workers")
    options.numprocesses, options.tx = number, options.tx[:number]
    if not number:
        _without_workers(config)


def _best(modes: Sequence[Mode], tests: Sequence[GeneratedTest], limit: int) -> int:
    """The number of workers, up to `limit`, that end such tests first; 0 where none is of use."""
    number = min(limit, len(tests))
    if number < 2:
        return 0
    costs = [seconds for mode in modes if (seconds := mode.pair_seconds) is not None]
    if len(costs) < len(modes):
        return number
    from ..base.threads import cores

    had = os.environ.get("OMP_NUM_THREADS", "")
    threads = modes[0].settings.threads or (min(cores(), int(had) or 1) if had.isdigit() else cores())
    sizes = [bytes_of(test) for test in tests if test.compares]
    # What mapping these dumps needed torch for, comparing them does as well.
    start = START + TORCH if "torch" in sys.modules else START
    return worth(sizes, max(costs), number, cores(), threads, start)


def _selected(config: pytest.Config, tests: Sequence[GeneratedTest]) -> Sequence[GeneratedTest]:
    """The tests that `--lf` and `-k` are going to leave, as far as their ids say.

    A word of `-k` may also be one that people's own hooks give a test. Then the number of workers is not the
    best one, and that is all.
    """
    if config.getoption("lf", False) and config.cache is not None:
        failed = config.cache.get("cache/lastfailed", {})
        tests = [test for test in tests if test.node_id in failed] or tests
    if not (keyword := config.option.keyword):
        return tests
    with suppress(Exception):  # what is no expression pytest refuses in its own words
        expression = Expression.compile(keyword)
        return [test for test in tests if expression.evaluate(functools.partial(_has, test))]
    return tests


def _has(test: GeneratedTest, word: str, /, **_: object) -> bool:
    """Whether `word` is in a name or keyword of the test, or in the name of one of its markers."""
    names = (*test.names, *test.keywords, *(mark.name for mark in test.marks))
    return any(word.lower() in name.lower() for name in names)


def _line(number: int, requested: int, tests: int) -> str:
    """The header's line on workers that are not started, and the option that starts them."""
    what = f"{tests} test{'s' if tests != 1 else ''}"
    if number:
        why = f"{number} of {requested} are started: more would not be done with {what} sooner"
    else:
        why = f"none of {requested} is started: one process is done with {what} sooner"
    return f"acc workers: {why}; --tx '{requested}*popen' --dist load starts all"


class FewerWorkers:
    """A plugin of the controller that says in the header why there are fewer workers than `-n` asked for."""

    def __init__(self, line: str) -> None:
        self._line = line

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_header(self) -> list[str]:
        """After all other lines."""
        return list(on_screen([self._line]))


def worth(
    sizes: Iterable[int], pair_seconds: float, limit: int, cores: int, threads: int, start: float
) -> int:
    """The number of workers, up to `limit`, that end pairs of so many bytes first; 0: this process does.

    A pair takes `pair_seconds` beside its bytes. This process has so many `threads` for large pairs, as
    workers have together; these measure `start` seconds later.
    """
    sizes = list(sizes)
    work = sum(pair_seconds + size * BYTE for size in sizes)
    alone = sum(pair_seconds + size * BYTE / (threads if size > LARGE else 1) for size in sizes)
    sent, receiving = len(sizes) * SENT, len(sizes) * TAKEN
    seconds = {0: alone}
    for number in range(2, limit + 1):
        seconds[number] = start + max(receiving, (work + sent) / number, (work + sent + receiving) / cores)
    return min(seconds, key=lambda number: (seconds[number], number))


def _without_workers(config: pytest.Config) -> None:
    """Take xdist away, as `-n 0` does. It was told otherwise, and is about to start its session."""
    options: Any = config.option
    options.dist = "no"
    manager = config.pluginmanager
    for implementation in implementations(config.hook, "pytest_sessionstart"):
        if implementation.plugin is manager.get_plugin("dsession"):
            # Nothing in the place of xdist's session: pluggy has listed whom it will call.
            implementation.function = lambda session: None
    for name in ("dsession", "terminaldistreporter"):
        if manager.hasplugin(name):
            manager.unregister(name=name)
    terminal: Any = manager.get_plugin("terminalreporter")
    if terminal is not None:
        terminal.showfspath = None  # xdist shows no file names, for tests of many end in turn


# Lines about how far a long run is, in terminals and in the logs of CI, with and without -n.


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


# `acc_engine = ray`: the pairs of a run are measured on the nodes of a cluster, all else stays as it is.
#
# pytest collects, selects and runs the tests here. The test of a pair waits for its row instead of measuring
# it, so that order, ids, `--lf`, `-x`, reports and exit codes are those of any run.


OPTION = "acc_engine = ray"


def measured_on_nodes(config: pytest.Config, modes: Sequence[Mode]) -> PairMode | None:
    """The mode whose pairs nodes are to measure, if one is asked for.

    Raises `SettingsError` where there are no pairs to measure, or xdist is to run them.
    """
    asking = [mode for mode in modes if mode.settings.engine == "ray"]
    if not asking:
        return None
    mode = asking[0]
    if not isinstance(mode, PairMode) or mode.stored_rows is not None:
        raise SettingsError(f"{OPTION} measures the pairs of dumps, and here are none; leave it out")
    if config.pluginmanager.hasplugin("dsession"):
        raise SettingsError(f"{OPTION} measures on the nodes of the cluster, so leave -n out (or the engine)")
    return mode


class OnNodes:
    """A plugin that has the pairs of `mode` measured elsewhere while tests run."""

    def __init__(self, config: pytest.Config, mode: PairMode) -> None:
        self._config = config
        self._mode = mode

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Join the cluster and hand out the pairs; end all that at the end, however that comes."""
        items = {
            item.test.number: item
            for item in session.items
            if isinstance(item, GeneratedItem)
            and isinstance(item.test, PairTest)
            and item.test.mode is self._mode
            and not any(map(item.get_closest_marker, MAY_NOT_RUN))
        }
        if not items or self._config.option.collectonly or self._config.getoption("setupplan", default=False):
            return (yield)
        with door("joining the cluster"):
            engine, line = joined(self._mode, functools.partial(say, self._config))
        try:
            say(self._config, line)
            with door("handing out the pairs"):
                self._mode.nodes = RowsOfNodes(self._config, self._mode, engine, items)
            return (yield)
        finally:
            self._mode.nodes = None
            engine.close()

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        """Leave the cluster, when the reports are written: pictures may be of files on its nodes."""
        from ..remote.engine.ray_cluster import leave

        leave()


def joined(mode: PairMode, tell: functools.partial[None]) -> tuple[Engine, str]:
    """The engine that measures the pairs of a mode, and a line that says where. Raises `AccError`."""
    from ..remote.engine.dispatch import Placement
    from ..remote.engine.engine import Engine, Fleet, TaskPatience, counted
    from ..remote.engine.pool import ProbeQuestion, files_of
    from ..remote.engine.ray_cluster import RayPool
    from ..remote.engine.ray_cluster import joined as joined_cluster
    from ..remote.engine.work import shipped

    settings, plan = mode.settings, mode.plan
    placement = Placement(plan.pairs)
    functions = (*settings.metrics, *([settings.model] if settings.model else ()))
    roots = tuple(root for root in (plan.golden_root, plan.mine_root) if root)
    shipment = shipped(mode, shows_tracebacks()).packed()
    pool = RayPool(joined_cluster(settings.ray_address), shipment, settings.threads or 1)
    try:
        fleet = Fleet(pool, ProbeQuestion(placement.samples, roots, files_of(functions)), tell)
        fleet.start(time.monotonic())
    except BaseException:
        pool.close()
        raise
    nodes, cores = len(fleet.alive), sum(node.cpus for node in fleet.alive.values())
    line = f"acc: pairs are measured on {counted(nodes, 'node')} with {counted(cores, 'core')}"
    return Engine(pool, fleet, placement, tell, TaskPatience(settings.engine_patience)), line


class RowsOfNodes:
    """The rows of pairs from an engine, and the recomputer there. See `pairs.Nodes`."""

    def __init__(
        self, config: pytest.Config, mode: PairMode, engine: Engine, items: dict[int, GeneratedItem]
    ) -> None:
        self._mode = mode
        self._engine = engine
        self._items = items
        stops_early = bool(config.getoption("maxfail", 0))
        engine.expect(list(items), self._rules, in_order=stops_early)

    @functools.cached_property
    def recomputer(self) -> Recomputer:
        """See `Nodes.recomputer`."""
        from ..remote.engine.engine import RemoteRecomputer

        return RemoteRecomputer(self._engine)

    def row(self, item: GeneratedItem, test: PairTest) -> Row | None:
        """See `Nodes.row`. A pair that was lost has a red row that says so."""
        from ..remote.engine.engine import NotMeasured

        self._items.setdefault(test.number, item)
        try:
            row = self._engine.row(test.number)
        except NotMeasured as error:
            return test.lost_row(str(error))
        return None if row is None else replace(row, test_id=item.nodeid)

    def _rules(self, number: int) -> tuple[ThresholdRule, ...] | None:
        """The rules of a pair where they are not those of the config files alone. Raises `AccError`."""
        item, mode = self._items[number], self._mode
        with guarded(f"asking for the thresholds of {item.nodeid}"):
            rules = mode.judges.rules_of_pair(item, mode.plan.pairs[number], ignored=item.config_mark)
        return None if rules == mode.settings.rules else rules
