"""Why generated tests of pairs fail: each is examined together with what is above it, in whatever process.

A pair that fails is a root or inherits, and that depends on pairs that may run later, in another process, or
not at all. So what is above it is judged here by the very path its own test takes, once a process, and only
where it runs: a serial run has judged it already.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ..guard import guarded
from .generated import GeneratedItem, collectors_of, items_of
from .left_out import PLUGINS
from .replaying import lifts

if TYPE_CHECKING:
    from ..diagnosis.inheritance import Inheritance
    from ..diagnosis.pair_state import PairState
    from ..reporting.row import Cause, Row
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
        from ..diagnosis.replayed import as_accumulated, may_accumulate
        from ..diagnosis.run import with_cause

        cause: Cause | None
        with guarded(f"finding the cause of the failure of {item.nodeid}"):
            if may_accumulate(row) and (lift := self._inheritance.lift(state)) is not None:
                return as_accumulated(row, lift)
            if state.failing:
                stored = self._stored.get(state.number)
                cause = (stored and stored.cause) or self._inheritance.cause(state)
            else:
                cause = self._inheritance.cause_of_shapes(state)
        if cause is None:
            return row
        if not self._has_red_root_left_out(cause):
            return with_cause(row, cause, strict=self._mode.settings.inherited == "fail")
        # Nobody else is red for it, and an expected failure would leave pytest's cache.
        sentence = f"{cause.text}; that root is not among the tests of this run, so this one stays red"
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
        """The state of a pair, from its row and number."""
        from ..diagnosis.pair_state import PairState

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
        from ..diagnosis.pair_state import FAILING

        states = ((self._state_of(number), row) for number, row in stored.items())
        agrees = all(state is not None and state.failing is (row.verdict in FAILING) for state, row in states)
        return stored if agrees else {}

    @functools.cached_property
    def _inheritance(self) -> Inheritance:
        from ..diagnosis.inheritance import Inheritance

        nodes = self._mode.nodes
        local = self._mode.recomputer if nodes is None else nodes.recomputer
        return Inheritance(self._mode.plan, self._state_of, local, lifts(self._mode.settings))
