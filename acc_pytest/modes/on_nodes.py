"""`acc_engine = ray`: the pairs of a run are measured on the nodes of a cluster, all else stays as it is.

pytest collects, selects and runs the tests here. The test of a pair waits for its row instead of measuring
it, so that order, ids, `--lf`, `-x`, reports and exit codes are those of any run.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ..errors import SettingsError
from ..guard import guarded, shows_tracebacks
from ..own_lines import say
from ..session import door
from .causes import MAY_NOT_RUN
from .generated import GeneratedItem
from .mode import Mode
from .pairs import PairMode, PairTest

if TYPE_CHECKING:
    from ..diagnosis.recomputation import Recomputer
    from ..engine.engine import Engine
    from ..judging.threshold import ThresholdRule
    from ..reporting.row import Row

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
        items = pair_items(session.items, self._mode)
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
        from ..engine.ray_cluster import leave

        leave()


def pair_items(items: Sequence[pytest.Item], mode: PairMode) -> dict[int, GeneratedItem]:
    """The tests of pairs that run, by number, in their order."""
    return {
        item.test.number: item
        for item in items
        if isinstance(item, GeneratedItem)
        and isinstance(item.test, PairTest)
        and item.test.mode is mode
        and not any(map(item.get_closest_marker, MAY_NOT_RUN))
    }


def joined(mode: PairMode, tell: functools.partial[None]) -> tuple[Engine, str]:
    """The engine that measures the pairs of a mode, and a line that says where. Raises `AccError`."""
    import time

    from ..engine.engine import Engine
    from ..engine.fleet import Fleet
    from ..engine.patience import TaskPatience
    from ..engine.placement import Placement
    from ..engine.probing import ProbeQuestion, files_of
    from ..engine.progress import counted
    from ..engine.ray_cluster import joined as joined_cluster
    from ..engine.ray_pool import RayPool
    from ..engine.work import shipped

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
        from ..engine.recompute import RemoteRecomputer

        return RemoteRecomputer(self._engine)

    def row(self, item: GeneratedItem, test: PairTest) -> Row | None:
        """See `Nodes.row`. A pair that was lost has a red row that says so."""
        from ..engine.engine import NotMeasured

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
