"""The mode that judges rows again, without any dump: `--acc-from-rows`.

Pairs are judged by the thresholds of this run. Tests that were not generated from pairs (of operators,
people's own) keep their verdicts, for their bounds were set where they ran; baseline, known differences
and lock hold for them too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from .. import options
from ..errors import AccError
from ..garbage import without_collector
from ..ids import SEPARATOR
from ..marks import op_mark
from ..reporting.printable import escaped, quoted
from .judges import Judges
from .mode import GeneratedTest, together
from .pairs import PairMode
from .run import gated

if TYPE_CHECKING:
    from ..diagnosis.recomputation import Recomputer
    from ..gate.from_rows import StoredRun
    from ..ids import Naming
    from ..judging.judges import Judge
    from ..mapping.pair import Pair
    from ..reporting.row import Row
    from ..reporting.view import Run
    from .generated import GeneratedItem


@dataclass(frozen=True, slots=True, eq=False)
class StoredTest(GeneratedTest):
    """A test that is none of a pair: all rows that it left, as they were judged when they were written."""

    mode: StoredRowsMode
    test_id: str

    @property
    def node_id(self) -> str:
        """The id may hold what pytest's cache and reports cannot."""
        return escaped(self.test_id)

    @property
    def headline(self) -> str:
        return self.names[-1]

    @property
    def marks(self) -> Sequence[pytest.Mark]:
        for row in self.mode.stored.unpaired[self.test_id]:
            if op_type := row.mine.op_type or row.golden.op_type:
                step = row.step if isinstance(row.step, int) else str(row.step) or "unknown"
                return (op_mark(op_type, row.level, row.layer, step, row.policy),)
        return ()

    @property
    def rerun(self) -> str:
        return f"{self.mode.rerun_command('-k')} {quoted(self.names[-1])}"

    def rows(self, item: GeneratedItem) -> Sequence[Row]:
        from ..gate.rejudge import ungated

        return [gated(item.config, ungated(row)) for row in self.mode.stored.unpaired[self.test_id]]


@dataclass(eq=False)
class StoredRowsMode(PairMode):
    """Judges a run again from its files of rows."""

    stored: StoredRun

    doing: ClassVar[str] = "opening the rows that are judged again"

    @classmethod
    def opened(cls, option_values: Mapping[str, Any]) -> StoredRowsMode | None:
        """Read the files of rows."""
        if "from_rows" not in option_values:
            return None
        from ..gate.from_rows import stored_run
        from ..reporting.rows_reading import read_rows
        from ..settings import Settings

        if dumps := [f"--acc-{side}" for side in ("golden", "mine", "noise") if side in option_values]:
            raise AccError(f"--acc-from-rows judges without dumps; leave {' and '.join(dumps)} out")
        with without_collector():
            stored = stored_run([read_rows(path) for path in option_values["from_rows"]])
        metrics = dict.fromkeys((*stored.metrics, *option_values.get("metrics", ())))
        values = {**options.of(option_values), "metrics": metrics}
        settings = Settings.from_values(values, standard=stored.standard)
        return cls(settings, option_values, stored, plan=stored.plan, stored_rows=stored.pairs)

    @functools.cached_property
    def judges(self) -> Judges:
        return Judges(self.settings, measures=False)

    @functools.cached_property
    def naming(self) -> Naming:
        from ..ids import Naming

        return Naming(self.plan.name, self.stored.ranks)

    @functools.cached_property
    def tests(self) -> tuple[GeneratedTest, ...]:
        """The tests of pairs, then of other rows, by the first name of their ids, in row order."""
        tests = []
        for test_id in self.stored.unpaired:
            root, _, name = escaped(test_id).partition(SEPARATOR)
            tests.append(StoredTest(self, (root, name or root), None, test_id))
        return (*super().tests, *together(tests, lambda test: test.names[0]))

    def described(self, run: Run) -> Run:
        return replace(super().described(run), title=self.stored.title)

    @property
    def lacks(self) -> Sequence[str]:
        return self.stored.incomplete

    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Judge]) -> Row:
        """Judge its stored numbers."""
        from ..gate.rejudge import rejudge

        return rejudge(self.stored.pairs[number], make_judge)

    @functools.cached_property
    def recomputer(self) -> Recomputer:
        """The results of the run that wrote the rows: there are no tensors here."""
        from ..diagnosis.recomputation import StoredRecomputer
        from ..diagnosis.replayed import stored_replay

        replays = ((number, stored_replay(row)) for number, row in self.stored.pairs.items())
        return StoredRecomputer({number: replay for number, replay in replays if replay is not None})
