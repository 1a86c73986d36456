"""The files of rows of several shards as one run: its plan, all its rows, and how it would have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..guard import guarded
from ..mapping.pair import Plan
from ..reporting.row import Row
from ..reporting.rows_reading import StoredRows
from ..reporting.summary import Tally, shortfalls
from .from_rows import StoredRun, stored_run
from .one_run import FAILED, NOTHING, OK, unfinished


@dataclass(frozen=True)
class Merged:
    """One run. `rows` are in the order of the plan, others after it; `plan` is `None` of single operators.

    `without_row` counts pairs of the plan without a row in any file; `notes` are about other files in the
    same directory.
    """

    stored: StoredRun
    plan: Plan | None
    rows: tuple[Row, ...]
    command: tuple[str, ...]
    floor: float
    statuses: tuple[int, ...]
    without_row: int
    notes: tuple[str, ...] = ()

    def exit_status(self, tally: Tally) -> int:
        """The exit status of pytest for the run whose rows `tally` has counted."""
        stopped = [status for status in self.statuses if status not in (OK, FAILED, NOTHING)]
        if stopped:
            return max(stopped)
        short = bool(shortfalls(tally, self.plan, self.floor))
        red = any(row.red for row in self.rows)
        if self.stored.incomplete or short or red or FAILED in self.statuses:
            return FAILED
        if not tally.compared and (tally.tried or NOTHING in self.statuses):
            return NOTHING
        return OK


def merged(files: Sequence[StoredRows]) -> Merged:
    """One run of the files of its shards, in any order.

    Raises `AccError` for files of different runs or plans, and for two that disagree.
    """
    with guarded(f"merging {', '.join(file.path for file in files)}"):
        return _merged(files)


def _merged(files: Sequence[StoredRows]) -> Merged:
    first = files[0]
    stored = stored_run(files)
    unpaired = (row for rows in stored.unpaired.values() for row in rows)
    run = first.run
    pairs = run.plan.pairs if run.plan is not None else 0
    return Merged(
        stored=stored,
        plan=None if run.plan is None else stored.plan,
        rows=(*stored.pairs.values(), *_unmapped_rows(files), *unpaired),
        command=tuple(word for word in run.command if not word.startswith("--acc-shard=")),
        floor=run.floor,
        statuses=tuple(file.exit_status for file in files if file.exit_status is not None),
        without_row=pairs - sum(number < pairs for number in stored.pairs),
        notes=tuple(unfinished(files)),
    )


def _unmapped_rows(files: Sequence[StoredRows]) -> list[Row]:
    """One row for each node without a partner, by number: every shard may have a row of it."""
    last = {row.number or 0: row for file in files for row in file.rows if row.alone}
    return [last[number] for number in sorted(last)]
