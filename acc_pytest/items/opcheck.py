"""Generated tests of single operators: one item an entry, below a collector for each CSV or step."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from ..marks import op_mark, threshold_mark
from ..opcheck.context import POLICY, context_of, layer_of
from ..recording import record_all
from ..reporting.printable import printable
from ..session import gated
from .generated import GeneratedItem

if TYPE_CHECKING:
    from ..opcheck.entry import Entry
    from ..opcheck.listed import Named
    from .opcheck_session import OpcheckSession

HEADLINE = 90
"""Characters of the headline of a failure: names come from files."""


class OpcheckCollector(pytest.Collector):
    """A level of the id above the entries, whose items are made when pytest asks for them."""

    def __init__(self, *, acc: OpcheckSession, named: Sequence[Named], depth: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._acc = acc
        self._named = named
        self._depth = depth

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The collectors of the groups, or the items of one."""
        if self._depth == 2:
            for names, entry in self._named:
                yield OpcheckItem.from_parent(self, name=names[-1], acc=self._acc, entry=entry)
            return
        for name, group in itertools.groupby(self._named, lambda one: one[0][self._depth]):
            yield OpcheckCollector.from_parent(
                self, name=name, acc=self._acc, named=tuple(group), depth=self._depth + 1
            )


def root_collector(session: pytest.Session, acc: OpcheckSession) -> OpcheckCollector:
    """The collector of all chosen entries."""
    name = acc.chosen[0][0][0]
    root: OpcheckCollector = OpcheckCollector.from_parent(
        session, name=name, nodeid=name, acc=acc, named=acc.chosen, depth=1
    )
    return root


class OpcheckItem(GeneratedItem):
    """The test of one operator: each of its outputs against the reference computation."""

    def __init__(self, *, acc: OpcheckSession, entry: Entry, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._acc = acc
        self.entry = entry
        step = entry.step if entry.step >= 0 else "unknown"
        self.own_markers.append(op_mark(entry.name, "operation", layer_of(entry.ids), step, POLICY))
        rules = acc.common.rules
        self._config_mark = threshold_mark(rules, context_of(entry)) if rules else None
        if self._config_mark is not None:
            self.own_markers.append(self._config_mark)

    def runtest(self) -> None:
        """Compute, judge, record every output's row, then pass, fail or skip."""
        rows = self._acc.check(self.entry, self, self._config_mark)
        record_all(self, [gated(self.config, row) for row in rows])

    @property
    def rerun(self) -> str:
        """The command that runs the check again."""
        return self._acc.rerun_command(self.nodeid)

    def reportinfo(self) -> tuple[Any, int, str]:
        """The headline of failures."""
        source = self.entry.source
        if os.sep in source and self.parent is not None:
            source = self.parent.name
        return self.path, 0, printable(f"{self.entry.full_name} from {source}", HEADLINE)
