"""Generated tests: one item per pair, below collectors for the plan, step, rank and layer.

Unmapped nodes stand beside the layers of their step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from ..judging.threshold import JudgeContext
from ..marks import op_mark, threshold_mark
from ..recording import record
from .generated import GeneratedItem

if TYPE_CHECKING:
    from ..mapping.pair import Pair
    from ..reporting.row import Row
    from ..session import AccSession, Alone

Entry = tuple[tuple[str, ...], int, "Pair | Alone"]
"""The names of the collectors above a pair (or unmapped node), its number in the plan, and the pair."""


class PairCollector(pytest.Collector):
    """A level of the id above the pairs. Children are made from `entries` when pytest asks for them.

    Pairs stay in execution order, so that a layer that is left and entered again (`model` around
    `layers.0`) appears as often as it runs.
    """

    def __init__(self, *, acc: AccSession, entries: Sequence[Entry], depth: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._acc = acc
        self._entries = entries
        self._depth = depth

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The collectors of the next level, or the items."""
        acc, depth = self._acc, self._depth
        if len(self._entries[0][0]) == depth:
            for _, number, thing in self._entries:
                yield self._item(number, thing)
            return
        for name, group in itertools.groupby(self._entries, lambda entry: entry[0][depth]):
            yield PairCollector.from_parent(self, name=name, acc=acc, entries=tuple(group), depth=depth + 1)

    def _item(self, number: int, thing: Pair | Alone) -> pytest.Item:
        from ..session import Alone

        if isinstance(thing, Alone):
            from .unmapped import UnmappedItem

            fails = self._acc.settings.unmapped == "fail"
            return UnmappedItem.from_parent(self, name=thing.names[-1], alone=thing, fails=fails)
        return PairItem.from_parent(self, name=thing.id, acc=self._acc, pair=thing, number=number)


def root_collector(
    session: pytest.Session, acc: AccSession, others: Sequence[tuple[int, Pair]] = ()
) -> PairCollector:
    """The collector of all chosen pairs: steps and ranks one after the other, each in execution order.

    With `others` it is the collector of these, which run on other machines.
    """
    naming = acc.naming
    blocks: dict[tuple[str, ...], list[Entry]] = {}
    for number, pair in others or acc.chosen:
        names = naming.parents(pair)
        blocks.setdefault(names[:-1], []).append((names, number, pair))
    for alone in () if others else acc.alone:
        above = alone.names[:-1]
        blocks.setdefault(above[:-1], []).append((above, alone.number, alone))
    entries = tuple(itertools.chain.from_iterable(blocks.values()))
    root: PairCollector = PairCollector.from_parent(
        session, name=naming.root, nodeid=naming.root, acc=acc, entries=entries, depth=1
    )
    return root


class PairItem(GeneratedItem):
    """The test of one pair. `pair` is what it compares, `number` its place in the plan."""

    def __init__(self, *, acc: AccSession, pair: Pair, number: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._acc = acc
        self.pair = pair
        self.number = number
        op_type = pair.mine.op_type or pair.golden.op_type
        self.own_markers.append(op_mark(op_type, pair.level, pair.layer, pair.step, pair.policy))
        # `-k q_proj` finds what golden's module became. Its own name only: `layers.0` means mine's layer.
        self.extra_keyword_matches.update((pair.golden.node.rpartition(".")[2], pair.mine.op_type))
        rules = acc.settings.rules
        self._config_mark = threshold_mark(rules, JudgeContext.of(pair)) if rules else None
        if self._config_mark is not None:
            self.own_markers.append(self._config_mark)

    def examine(self) -> Row:
        """Compare and judge; the row has no cause yet."""
        return self._acc.examine(self, self.pair, self.number, ignored=self._config_mark)

    def runtest(self) -> None:
        """Compare, find the cause of a failure, record the row, then pass, fail or skip."""
        from .causes import CAUSES

        row = self.config.stash[CAUSES].examine(self)
        record(self, row, warns=self._acc.settings.inherited == "warn")

    @property
    def rerun(self) -> str:
        """The command that runs the test again."""
        return self._acc.rerun_command(self.nodeid)

    def reportinfo(self) -> tuple[Any, int, str]:
        """The headline of failures. (It must not be the end of the id, whose dots pytest would rewrite.)

        pytest wants a line for skip markers and warnings; the directory has only the first.
        """
        return self.path, 0, f"{self.pair.id} at {self.pair.layer} of step {self.pair.step}"
