"""Why generated tests of pairs fail: each is examined together with what is above it, in whatever process.

A pair that fails is a root or inherits, and that depends on pairs that may run later, in another process, or
not at all. So what is above it is judged here by the very path its own test takes, once a process, and only
where it runs: a serial run has judged it already.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ..base.imports import import_torch
from ..base.reason import joined
from ..base.vocabulary import OF_MODULES, OF_OTHERS, REPLAY_WORDS
from ..errors import SettingsError, guarded
from .mode import GeneratedItem, collectors_of, items_of

if TYPE_CHECKING:
    from ..diagnosis.evidence import PairState
    from ..diagnosis.inheritance import Inheritance
    from ..dumps.torch_model import Outline
    from ..mapping.pair import Plan
    from ..reference.recomputation import Recomputer
    from ..reporting.row import Cause, Row
    from ..settings import Settings
    from .pairs import PairMode


AHEAD = 512
"""Rows of tests that are still to run in this process which are kept for them; the oldest go first."""
MAY_NOT_RUN = ("skip", "skipif")
"""Markers of tests that may say nothing, so that nobody's failure can be left to them."""


class Causes:
    """The running pairs of a mode and how each stands.

    The tests of `session` are those left after deselection, `left_out` those that only pytest's cache
    deselected: they do not run, but are known.
    """

    def __init__(self, mode: PairMode, session: pytest.Session, left_out: Sequence[pytest.Item] = ()) -> None:
        self._mode = mode
        self._session = session
        self._local = list(session.items)
        self._left_out = self._by_number(left_out)
        self._states: dict[int, PairState] = {}
        self._ahead: dict[int, Row] = {}

    def examine(self, item: GeneratedItem) -> Row:
        """The row of the test `item`, with its cause where it fails."""
        number = item.test.number
        assert number is not None
        row = self._ahead.pop(number, None) or self._mode.examined(item)
        state = self._states[number] = self._state_in(row, number)
        return self._explained(item, row, state) if state.failing or row.shapes_differ else row

    def _explained(self, item: GeneratedItem, row: Row, state: PairState) -> Row:
        """A row that fails, or whose tensors have other shapes, with the cause of that."""
        from ..diagnosis.run import decide, with_cause

        with guarded(f"finding the cause of the failure of {item.nodeid}"):
            stored = self._stored.get(state.number) if state.failing else None
            row, cause = decide(row, state, self._inheritance, None if stored is None else stored.cause)
        if cause is None:
            return row
        if not self._has_red_root_left_out(cause):
            return with_cause(row, cause, strict=self._mode.settings.inherited == "fail")
        # Nobody else is red for it, and an expected failure would leave pytest's cache.
        sentence = joined(
            "; ", (cause.text, "that root is not among the tests of this run, so this one stays red")
        )
        return with_cause(row, replace(cause, text=sentence), strict=True)

    def _has_red_root_left_out(self, cause: Cause) -> bool:
        """Whether the cause is inherited from a root that fails, and whose test the cache left out."""
        number = cause.root
        if number is None or number not in self._left_out or cause.kind != "inherited":
            return False
        return (self._ahead.get(number) or self._mode.examined(self._left_out[number])).red

    def _state_of(self, number: int) -> PairState | None:
        """The state of a pair; `None` where its test does not run."""
        if number in self._states:
            return self._states[number]
        item = self._running.get(number)
        if item is None:
            return None
        row = self._mode.examined(item)
        if len(self._ahead) >= AHEAD:
            del self._ahead[next(iter(self._ahead))]
        self._ahead[number] = row
        state = self._states[number] = self._state_in(row, number)
        return state

    @functools.cached_property
    def _state_in(self) -> Callable[[Row, int], PairState]:
        from ..diagnosis.evidence import PairState

        return PairState.of

    @functools.cached_property
    def _running(self) -> dict[int, GeneratedItem]:
        """The tests of pairs that run, those on other machines of a shared run among them."""
        items = [*self._local, *([] if self._mode.share is None else self._remote())]
        return self._left_out | self._by_number(items)

    def _remote(self) -> list[pytest.Item]:
        """The tests of the other machines, selected and marked as they are there."""
        mode = self._mode
        tests = [test for test in mode.selected if test.compares and not mode.has_share_in(test.number)]
        items = [item for root in collectors_of(self._session, tests) for item in items_of(root)]
        config = self._session.config
        manager = config.pluginmanager
        # The cache knows this machine's tests only, and would count the others among them.
        cache = [plugin for plugin in map(manager.get_plugin, PLUGINS) if plugin is not None]
        select = manager.subset_hook_caller("pytest_collection_modifyitems", cache)
        select(session=self._session, config=config, items=items)
        return items

    def _by_number(self, items: Iterable[pytest.Item]) -> dict[int, GeneratedItem]:
        """The tests of pairs that may say something, by the numbers of the pairs."""
        return {
            number: item
            for item in items
            if isinstance(item, GeneratedItem)
            and item.test.mode is self._mode
            and item.test.compares
            and (number := item.test.number) is not None
            and not any(map(item.get_closest_marker, MAY_NOT_RUN))
        }

    @functools.cached_property
    def _stored(self) -> Mapping[int, Row]:
        """The rows that are judged again, where just those pairs fail that failed then; else none.

        With the tensors that run could compute more again than this one, which has none.
        """
        stored = self._mode.stored_rows
        if not stored or self._running.keys() != stored.keys():
            return {}
        from ..diagnosis.evidence import FAILING

        states = ((self._state_of(number), row) for number, row in stored.items())
        agrees = all(state is not None and state.failing is (row.verdict in FAILING) for state, row in states)
        return stored if agrees else {}

    @functools.cached_property
    def _inheritance(self) -> Inheritance:
        from ..diagnosis.inheritance import Inheritance

        nodes = self._mode.nodes
        local = self._mode.recomputer if nodes is None else nodes.recomputer
        return Inheritance(
            self._mode.plan, self._state_of, local, lifts(self._mode.settings, self._mode.plan)
        )


# The tests that pytest's cache leaves out of a run (`--lf`, `--sw`): they do not run, but are known.
#
# Whether a failure is a root depends on what is above it. `-k`, `-m` and `--deselect` are people's word that
# nothing else is to be looked at. With `--lf` and `--sw` the question is the one of the run before, so what
# the cache leaves out is judged where a failing pair needs it; else a root would become inherited, or what
# inherits a root, by the mere choice of tests.


PLUGINS = ("lfplugin", "stepwiseplugin")
"""Names of pytest's plugins that deselect by its cache."""
LEFT_OUT = "acc_left_out"
"""Name of ours."""


def left_out_of(config: pytest.Config) -> LeftOut | None:
    """A plugin that notes the tests that the cache leaves out of this run, if it may leave out any."""
    failed, stepwise = (bool(config.getoption(option, False)) for option in ("lf", "stepwise"))
    return LeftOut(stepwise) if failed or stepwise else None


class LeftOut:
    """A plugin that keeps the tests which the cache has deselected, in `items`.

    `--lf` deselects around all other hooks, so after people's own selection; `--sw` (`stepwise`) before it,
    all tests up to one, of which people may have deselected some as well.
    """

    def __init__(self, stepwise: bool) -> None:
        self.items: list[pytest.Item] = []
        self._stepwise = stepwise
        self._open: list[pytest.Item] = []
        self._chosen = False

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Note when people's own selection is done."""
        self._open, self._chosen = list(items), False
        yield
        self._chosen = True

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Keep what the cache has deselected."""
        gone = set(items)
        if self._chosen or (self._stepwise and self._open[: len(items)] == list(items)):
            self.items += items
        self._open = [item for item in self._open if item not in gone]


# The recomputers of replay, whether mine is compared with golden or stands alone.


UNASKED_OF_ATB = 1 << 18
"""The limit for operators of ATB: those up to there take less than half of the time of a comparison
(`benchmarks/replay.py`)."""


def lifts(settings: Settings, plan: Plan) -> bool:
    """Whether pairs may pass as accumulated rounding: not where nothing is computed again, nor, unless it was
    asked for, by the standards of others and in dumps of other tools."""
    by_default = settings.replay is None and plan.mine_kind in ("torch", "atb")
    return bool(settings.replay) or (by_default and settings.standard not in OF_OTHERS)


def asks_for_replay(option_values: Mapping[str, Any]) -> bool:
    """Whether these option values ask for replay by themselves."""
    return option_values.get("replay") not in (None, *REPLAY_WORDS)


def outlines_for(settings: Settings, plan: Plan) -> tuple[Outline, ...]:
    """The outlines of its model in golden's dump, one a rank; nothing where tensors of several ranks are put
    together in each pair, and where mine has no use for it: a torch dump that a golden model was asked for or
    whose standard is another's (it says itself what passes), dumps of other tools.
    """
    by_default = settings.replay is None and settings.standard not in OF_OTHERS
    used = by_default if plan.mine_kind == "torch" else settings.replay != 0
    if not used or plan.golden_kind != "torch" or plan.mine_kind not in ("torch", "atb"):
        return ()
    from ..dumps import open_dump

    dump = open_dump(plan.golden_root)
    if all(len(pair.golden.refs) > 1 for pair in plan.pairs):
        return ()
    return tuple(filter(None, map(dump.outline, dump.ranks)))


def unasked_of_atb(settings: Settings, plan: Plan, outlines: Sequence[Outline]) -> Recomputer | None:
    """The recomputer of small ATB operators where nothing else was asked for; `None` for other dumps."""
    if not is_unasked_of_atb(settings, plan):
        return None
    import_torch()
    from ..reference.recomputation import RecomputeBudget
    from ..reference.recomputers import recomputer_of

    return recomputer_of(plan, RecomputeBudget(UNASKED_OF_ATB, measured=True), outlines=outlines)


def is_unasked_of_atb(settings: Settings, plan: Plan) -> bool:
    """Whether small operators of ATB are computed again, though nobody asked for it."""
    return settings.replay is None and settings.standard not in OF_OTHERS and plan.mine_kind == "atb"


def check_replay(settings: Settings, plan: Plan) -> None:
    """Raises `SettingsError` where what replay needs was not given, or something that it has no use for."""
    if not settings.replay:
        if settings.model:
            raise SettingsError("--acc-model is for computing operators again; leave out --acc-replay=off")
        return
    from ..reference.recomputers import BY_THEMSELVES

    if settings.model and plan.mine_kind not in OF_MODULES:
        raise SettingsError(
            f"--acc-model is for dumps of torch models ({', '.join(sorted(OF_MODULES))}), and mine is one of "
            f"{plan.mine_kind}; leave it out"
        )
    if not settings.model and plan.mine_kind in OF_MODULES - BY_THEMSELVES:
        raise SettingsError(
            f"--acc-replay of a dump of {plan.mine_kind} needs --acc-model: a directory of Hugging Face with "
            "golden's weights, or FILE.py:FUNCTION that returns the golden model"
        )


def recomputer_for(
    settings: Settings, plan: Plan, outlines: Sequence[Outline] = (), small: Recomputer | None = None
) -> Recomputer:
    """The recomputer of mine's operators, by golden's `outlines` where there are any; `small` is the one of
    `unasked_of_atb`.

    Raises `AccError` where the golden model cannot be made.
    """
    import_torch()
    from ..reference.recomputation import LOOKING, RecomputeBudget
    from ..reference.recomputers import recomputer_of

    budget = RecomputeBudget(settings.replay, measured=True) if settings.replay else LOOKING
    return recomputer_of(plan, budget, settings.model if settings.replay else "", outlines, small)


def with_values(recomputer: Recomputer, plan: Plan) -> Recomputer:
    """The recomputer, and what values of golden and mine show of modules that it knows nothing of."""
    if plan.mine_kind not in OF_MODULES:
        return recomputer
    from ..reference.known_by_values import KnownByValues
    from ..reference.recomputers import UNASKED

    return KnownByValues(recomputer, plan, UNASKED)
