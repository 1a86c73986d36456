"""`AccSession`: the comparison of a session: settings, plan, which pairs were asked for."""

from __future__ import annotations

import functools
import pickle
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ..marks import hook_rules, marker_rules
from .asked import Asked
from .gates import gated

if TYPE_CHECKING:
    from ..comparison import Judge
    from ..gate.from_rows import StoredRun
    from ..ids import Naming
    from ..judging.standards import Standard
    from ..mapping.noise_run import NoisePlan
    from ..mapping.pair import Pair, Plan, Unmapped
    from ..reporting.row import Row
    from ..settings import Settings


@dataclass
class AccSession(Asked):
    """The comparison of this session.

    `chosen` are the pairs that become generated tests, with their place in the plan: all of them,
    those of the node ids on the command line, or none when only other paths were named. `alone` are
    the unmapped nodes that become tests, likewise, numbered after the pairs. `stored` is the run that is
    judged again from its rows, `None` where dumps are compared, and `others` the ids of its tests that were
    not generated from pairs. `share` are the numbers of this
    machine's pairs and unmapped nodes, `None` where the run is not shared; `asked` are the chosen pairs
    of all machines.
    """

    settings: Settings
    plan: Plan
    given: Mapping[str, Any]
    noise: NoisePlan | None = None
    chosen: tuple[tuple[int, Pair], ...] = ()
    alone: tuple[Alone, ...] = ()
    stored: StoredRun | None = None
    others: tuple[str, ...] = ()
    share: frozenset[int] | None = None
    asked: tuple[tuple[int, Pair], ...] = ()

    @functools.cached_property
    def naming(self) -> Naming:
        """How the pairs are called."""
        from ..ids import Naming

        if self.stored is not None:
            return Naming(self.plan.name, self.stored.ranks)
        return Naming.of(self.plan)

    def has_share_in(self, number: int) -> bool:
        """Whether the pair or the unmapped node of this number is this machine's."""
        return self.share is None or number in self.share

    @functools.cached_property
    def unmapped(self) -> tuple[Alone, ...]:
        """All unmapped nodes, numbered after the pairs."""
        nodes = self.plan.unmapped
        first = len(self.plan.pairs)
        return tuple(
            Alone(names, number, node)
            for number, (names, node) in enumerate(zip(self.naming.of_unmapped(nodes), nodes), start=first)
        )

    @functools.cached_property
    def custom(self) -> tuple[Any, ...]:
        """The user's metrics, imported in this process. Raises `SettingsError`."""
        if not self.settings.metrics or self.stored is not None:
            return ()
        from ..metrics.custom import load_customs

        return load_customs(self.settings.metrics)

    @property
    def standard(self) -> Standard:
        """By which standard pairs are judged."""
        from ..judging.standards import STANDARDS

        return STANDARDS[self.settings.standard]

    def judge(
        self,
        item: pytest.Item,
        pair: Pair | None = None,
        *,
        ignored: pytest.Mark | None = None,
        arguments: Mapping[str, float | None] | None = None,
    ) -> Judge:
        """The judge of one test. Weakest first: config files, markers, the hook, arguments of a call.

        `ignored` is the marker that stands for the config files. Raises `SettingsError` for a marker,
        an answer of the hook or an argument that makes no sense.
        """
        from ..comparison import Judge
        from ..judging import in_precedence, rule_from_table

        custom = self.settings.custom_metrics
        markers = marker_rules(item, custom, ignored)
        stronger = hook_rules(item, pair, custom) if pair is not None else []
        if arguments:
            stronger.append(rule_from_table(arguments, "arguments of the call", custom))
        rules = in_precedence(self.settings.rules, markers, stronger)
        return Judge(rules, self.custom, self.standard)

    def examine(
        self,
        item: pytest.Item,
        pair: Pair,
        number: int,
        *,
        ignored: pytest.Mark | None = None,
        arguments: Mapping[str, float | None] | None = None,
    ) -> Row:
        """The row of one pair, `number` its place in the plan, judged as the test `item` asks for."""
        make_judge = functools.partial(self.judge, item, pair, ignored=ignored, arguments=arguments)
        if self.stored is not None:
            from ..gate.rejudge import rejudge

            row = rejudge(self.stored.pairs[number], make_judge)
            return gated(item.config, self.levelled(row, make_judge))
        from ..comparison import compare_pair

        self.limit_threads()
        counterpart = self.noise.counterparts[number] if self.noise is not None else None
        row = compare_pair(pair, make_judge, item.nodeid, number, counterpart)
        return gated(item.config, self.levelled(row, make_judge))

    def levelled(self, row: Row, make_judge: Callable[[], Judge]) -> Row:
        """The row with its thresholds apart from its data, where a lock is in use."""
        if not self.settings.lock or not row.checks or row.fed:
            return row
        from ..gate.lock import with_nominal_bounds

        judge = make_judge()
        return with_nominal_bounds(row, judge.rules, judge.standard)

    @functools.cached_property
    def packed(self) -> bytes:
        """The session as bytes for a worker."""
        sent = (self.settings, self.plan, dict(self.given), self.noise, self.stored)
        return zlib.compress(pickle.dumps(sent), 1)


class Alone(NamedTuple):
    """An unmapped node: the names of the collectors above its test and its own, its number, the node."""

    names: tuple[str, ...]
    number: int
    node: Unmapped

    @property
    def node_id(self) -> str:
        """The whole id of its test."""
        return "::".join(self.names)


KEY = pytest.StashKey["AccSession"]()
