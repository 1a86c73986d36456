"""Tests made from stored rows that are not those of generated pairs: of operators, of people's own tests.

Their bounds were set where they ran, so their verdicts stay as they were; baseline, known differences
and lock hold for them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from ..ids import SEPARATOR
from ..marks import op_mark
from ..recording import record_all
from ..reporting.printable import escaped, quoted
from ..session import gated
from .generated import GeneratedItem

if TYPE_CHECKING:
    from ..reporting.row import Row
    from ..session import AccSession


class StoredCollector(pytest.Collector):
    """The tests of one file, or of one root."""

    def __init__(self, *, acc: AccSession, ids: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._acc = acc
        self._ids = ids

    def collect(self) -> Iterator[pytest.Item]:
        """An item for each test id."""
        for test_id in self._ids:
            # An id of a file may hold what pytest's cache and reports cannot.
            shown = escaped(test_id)
            name = shown.partition(SEPARATOR)[2] or shown
            yield StoredItem.from_parent(self, name=name, nodeid=shown, acc=self._acc, test_id=test_id)


def others_collectors(session: pytest.Session, acc: AccSession) -> list[pytest.Collector]:
    """A collector for each first part of the ids, in the order of the rows."""
    groups: dict[str, list[str]] = {}
    for test_id in acc.others:
        groups.setdefault(test_id.partition(SEPARATOR)[0], []).append(test_id)
    return [
        StoredCollector.from_parent(session, name=escaped(root), nodeid=escaped(root), acc=acc, ids=ids)
        for root, ids in groups.items()
    ]


class StoredItem(GeneratedItem):
    """The test of an id: all rows that it left."""

    def __init__(self, *, acc: AccSession, test_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._acc = acc
        self._test_id = test_id
        for row in self.rows:
            op_type = row.mine.op_type or row.golden.op_type
            if op_type:
                step = row.step if isinstance(row.step, int) else str(row.step) or "unknown"
                self.own_markers.append(op_mark(op_type, row.level, row.layer, step, row.policy))
                break

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows, as they were judged and gated when they were written."""
        return self._acc.stored.others[self._test_id] if self._acc.stored is not None else ()

    def runtest(self) -> None:
        """Record the rows, then pass, fail or skip."""
        from ..gate.rejudge import ungated

        record_all(self, [gated(self.config, ungated(row)) for row in self.rows])

    @property
    def rerun(self) -> str:
        """The command that runs the test again."""
        return f"{self._acc.rerun_command('-k')} {quoted(self.name)}"

    def reportinfo(self) -> tuple[Any, int, str]:
        """The headline of failures."""
        return self.path, 0, self.name
