"""What one pytest session knows of the comparison: settings, plan, which pairs were asked for.

The plan is made once, on the controller (or the only process), and sent to xdist workers; a worker
opens no dump. Both the plan and its tests' ids are the same in all processes.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from . import options
from .errors import AccError, SettingsError
from .marks import hook_rules, marker_rules

if TYPE_CHECKING:
    from .comparison import Judge
    from .dumps.base import Dump
    from .gate.from_rows import StoredRun
    from .gate.gate import Gate
    from .ids import Naming
    from .judging.standards import Standard
    from .mapping.noise_run import NoisePlan
    from .mapping.pair import Pair, Plan, Unmapped
    from .reporting.row import Row
    from .settings import Settings

CHANNEL = "acc_pytest"
"""Key of our bytes in xdist's `workerinput`."""


class Asked:
    """What all kinds of generated tests share. `given` are the option values as the user gave them."""

    given: Mapping[str, Any]

    @property
    def command(self) -> list[str]:
        """The words that repeat the run."""
        return ["pytest", *options.command_line(self.given)]

    def rerun_command(self, node_id: str) -> str:
        """The command line that runs one generated test again."""
        words = options.command_line(options.of_one_test(self.given))
        return options.shell(["pytest", *words, node_id])

    def limit_threads(self) -> None:
        """Share the cores between xdist workers: torch in each would otherwise start one thread per core."""
        if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
            from .threads import share_cores

            share_cores()


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
        from .ids import Naming

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
        from .metrics.custom import load_customs

        return load_customs(self.settings.metrics)

    @property
    def standard(self) -> Standard:
        """By which standard pairs are judged."""
        from .judging.standards import STANDARDS

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
        from .comparison import Judge
        from .judging import in_precedence, rule_from_table

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
            from .gate.rejudge import rejudge

            row = rejudge(self.stored.pairs[number], make_judge)
            return gated(item.config, self.levelled(row, make_judge))
        from .comparison import compare_pair

        self.limit_threads()
        counterpart = self.noise.counterparts[number] if self.noise is not None else None
        row = compare_pair(pair, make_judge, item.nodeid, number, counterpart)
        return gated(item.config, self.levelled(row, make_judge))

    def levelled(self, row: Row, make_judge: Callable[[], Judge]) -> Row:
        """The row with its thresholds apart from its data, where a lock is in use."""
        if not self.settings.lock or not row.checks:
            return row
        from .gate.lock import with_levels

        judge = make_judge()
        return with_levels(row, judge.rules, judge.standard)

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
GATES = pytest.StashKey[tuple["Gate", ...]]()
"""In `config.stash`: what may change a verdict after the thresholds."""
GATES_CHANNEL = "acc_gates"
"""Key of the gates' bytes in xdist's `workerinput`."""


def open_gates(config: pytest.Config, settings: Settings | None) -> None:
    """Make the gates that `settings` ask for (without any: those that the options do), or receive them.

    Raises `pytest.UsageError` for everything that is the user's to mend.
    """
    if hasattr(config, "workerinput"):
        # Our own bytes from our own controller, never a file.
        config.stash[GATES] = pickle.loads(config.workerinput[GATES_CHANNEL])  # noqa: S301
        return
    try:
        if settings is None and (settings := common_settings(config)) is None:
            config.stash[GATES] = ()
            return
        from .gate.opening import gates_of

        config.stash[GATES] = gates_of(settings)
    except AccError as error:
        raise pytest.UsageError(str(error)) from None


def common_settings(config: pytest.Config) -> Settings | None:
    """The settings of what is no comparison of two dumps; `None` where no option is about it.

    Raises `AccError`.
    """
    given = {name: value for name, value in options.values(config).items() if name in options.SHARED}
    if not given:
        return None
    from .settings import Settings

    return Settings.from_values(given)


def gated(config: pytest.Config, row: Row) -> Row:
    """The row as the gates leave it."""
    for gate in config.stash[GATES]:
        row = gate.apply(row)
    return row


def open_session(config: pytest.Config) -> AccSession | None:
    """The comparison the options ask for, `None` without `--acc-golden` and `--acc-mine`.

    Takes node ids of generated tests out of `config.args`, for pytest would look for such files.
    Raises `pytest.UsageError` for everything that is the user's to mend.
    """
    try:
        session = _receive(config) if hasattr(config, "workerinput") else _open(config)
        if session is not None:
            everything = config.args_source is not pytest.Config.ArgsSource.ARGS
            session.chosen, session.alone = _choose(config, session)
            session.asked = session.chosen
            if session.stored is not None and everything:
                session.others = tuple(session.stored.others)
    except AccError as error:
        raise pytest.UsageError(str(error)) from None
    return session


def _receive(config: pytest.Config) -> AccSession | None:
    packed = getattr(config, "workerinput", {}).get(CHANNEL)
    if packed is None:
        return None
    # Our own bytes from our own controller, never a file: see `packed`.
    settings, plan, given, noise, stored = pickle.loads(zlib.decompress(packed))  # noqa: S301
    return AccSession(settings, plan, given, noise, stored=stored)


def make_noise_plan(settings: Settings, plan: Plan) -> NoisePlan | None:
    """What the noise run has of golden's tensors in `plan`; `None` where no run was given.

    Raises `SettingsError` where the standard needs one, and for a run that is none of golden.
    """
    if not settings.noise:
        if settings.standard == "three-way":
            raise SettingsError(
                "--acc-standard three-way needs --acc-noise DUMP: golden again, in lower precision or with "
                "another batch or device"
            )
        return None
    from .dumps import open_dump
    from .dumps.ranks import keep_rank
    from .mapping.noise_run import noise_plan

    with _without_collector():
        golden = open_dump(settings.golden, token_policy=settings.token_policy)
        noise = open_dump(settings.noise, token_policy=settings.token_policy, other=golden)
        if settings.rank is not None:
            keep_rank(golden, noise, settings.rank)
        return noise_plan(golden, noise, plan.pairs, tables=settings.mapping)


def _open(config: pytest.Config) -> AccSession | None:
    given = options.values(config)
    if "from_rows" in given:
        return _from_rows(given)
    sides = [side for side in ("golden", "mine") if side in given]
    if not sides:
        return None
    if sides == ["mine"]:
        raise AccError("--acc-mine needs --acc-golden as well: a comparison has two sides")
    from .settings import Settings

    settings = Settings.from_values(given)
    plan = make_plan(settings)
    session = AccSession(settings, plan, given, make_noise_plan(settings, plan))
    _ = session.custom  # a metric that cannot be loaded is a mistake to report before the first test
    return session


def _from_rows(given: Mapping[str, Any]) -> AccSession:
    """The session that judges rows again. Raises `AccError`."""
    from .gate.from_rows import stored_run
    from .reporting.rows_reading import read_rows
    from .settings import Settings

    dumps = [f"--acc-{side}" for side in ("golden", "mine", "noise") if side in given]
    if dumps:
        raise AccError(f"--acc-from-rows judges without dumps; leave {' and '.join(dumps)} out")
    with _without_collector():
        stored = stored_run([read_rows(path) for path in given["from_rows"]])
    metrics = dict.fromkeys((*stored.metrics, *given.get("metrics", ())))
    settings = Settings.from_values({**given, "metrics": metrics})
    return AccSession(settings, stored.plan, given, stored=stored)


def make_plan(settings: Settings) -> Plan:
    """Open both dumps and map them. Raises `AccError`."""
    from .mapping.planner import plan

    with _without_collector():
        golden, mine = open_dumps(settings)
        return plan(
            golden,
            mine,
            level=settings.level,
            op_mapping_file=settings.op_mapping_file,
            tables=settings.mapping,
        )


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Dumps and plans are a million small objects that all stay: looking for garbage doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def open_dumps(settings: Settings) -> tuple[Dump, Dump]:
    """Golden and mine, mine read in the light of golden (for the `auto` token policy).

    A manual dump names the files of mine itself and may stand for both. Raises `AccError`.
    """
    from .dumps import open_dump
    from .dumps.ranks import keep_rank

    golden = open_dump(settings.golden, token_policy=settings.token_policy)
    if not settings.mine:
        if golden.kind != "manual":
            raise AccError(
                "--acc-golden needs --acc-mine as well: only what dump_data wrote names both sides, "
                f"and {settings.golden} is another dump"
            )
        mine = golden
    else:
        mine = open_dump(settings.mine, token_policy=settings.token_policy, other=golden)
    if settings.rank is not None:
        keep_rank(golden, mine, settings.rank)
    return golden, mine


def _choose(
    config: pytest.Config, session: AccSession
) -> tuple[tuple[tuple[int, Pair], ...], tuple[Alone, ...]]:
    """The pairs and the unmapped nodes that become tests."""
    from .ids import is_ours, select_named

    alone = () if session.settings.unmapped == "ignore" else session.unmapped
    numbered = tuple(enumerate(session.plan.pairs))
    if session.stored is not None:
        numbered = tuple((number, session.plan.pairs[number]) for number in session.stored.pairs)
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
        return numbered, alone
    ours = [argument for argument in config.args if is_ours(argument, session.plan.name)]
    if not ours:
        return (), ()
    config.args = [argument for argument in config.args if argument not in ours]
    naming = session.naming
    known: list[tuple[tuple[str, ...], tuple[int, Pair] | Alone]] = [
        (naming.names(one[1]), one) for one in numbered
    ]
    known += [(one.names, one) for one in alone]
    found = select_named(known, naming.root, ours)
    return (
        tuple(one for one in found if not isinstance(one, Alone)),
        tuple(one for one in found if isinstance(one, Alone)),
    )
