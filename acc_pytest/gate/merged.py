"""The files of rows of several shards as one run: its plan, all its rows, and how it would have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import AccError
from ..guard import guarded
from ..mapping.pair import Plan
from ..reporting.row import Row
from ..reporting.rows_file import PLAN_COUNTS
from ..reporting.rows_reading import StoredRows
from ..reporting.summary import Tally, shortfalls
from .from_rows import StoredRun, stored_run, unfinished

OK, FAILED, NOTHING = 0, 1, 5
"""pytest's exit codes for a run that ended by itself."""


@dataclass(frozen=True)
class Merged:
    """One run. `rows` are in the order of the plan, others after it; `plan` is `None` of single operators.

    `without_row` counts pairs of the plan without a row in any file; `incomplete` has a sentence for each
    missing part of the run; `notes` are about other files in the same directory.
    """

    stored: StoredRun
    plan: Plan | None
    rows: tuple[Row, ...]
    command: tuple[str, ...]
    floor: float
    statuses: tuple[int, ...]
    without_row: int
    incomplete: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def exit_status(self, tally: Tally) -> int:
        """How pytest would have ended the run whose rows `tally` has counted."""
        stopped = [status for status in self.statuses if status not in (OK, FAILED, NOTHING)]
        if stopped:
            return max(stopped)
        below = bool(shortfalls(tally, self.plan, self.floor))
        red = any(row.red for row in self.rows)
        if self.incomplete or below or red or FAILED in self.statuses:
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
    for other in files[1:]:
        _check_same_plan(first, other)
    missing = _missing(files)
    stored = stored_run(files)
    others = (row for rows in stored.others.values() for row in rows)
    run = first.run
    pairs = run.plan.pairs if run.plan is not None else 0
    return Merged(
        stored=stored,
        plan=None if run.plan is None else stored.plan,
        rows=(*stored.pairs.values(), *_unmapped(files), *others),
        command=tuple(word for word in run.command if not word.startswith("--acc-shard=")),
        floor=run.floor,
        statuses=tuple(file.exit_status for file in files if file.exit_status is not None),
        without_row=pairs - sum(number < pairs for number in stored.pairs),
        incomplete=(*missing, *stored.incomplete),
        notes=tuple(unfinished(files)),
    )


def _unmapped(files: Sequence[StoredRows]) -> list[Row]:
    """One row for each node without a partner, by number: every shard may have a row of it."""
    last = {row.number or 0: row for file in files for row in file.rows if row.alone}
    return [last[number] for number in sorted(last)]


def _check_same_plan(first: StoredRows, other: StoredRows) -> None:
    expected, plan = first.run.plan, other.run.plan
    if expected is None or plan is None:
        return  # `stored_run` compares what else there is
    for name in ("pairs", *PLAN_COUNTS, "golden_kind", "mine_kind", "digest"):
        if getattr(plan, name) != getattr(expected, name):
            raise AccError(
                f"{other.path}: comes from another plan than {first.path} ({name.replace('_', ' ')}: "
                f"{getattr(plan, name)}, not {getattr(expected, name)}); give shards of one run"
            )


def _missing(files: Sequence[StoredRows]) -> list[str]:
    """A sentence where not all shards are there. Raises `AccError` for shards of different divisions."""
    shards = [(_shard(file), file.path) for file in files]
    counts = {count for (_, count), _ in shards}
    if len(counts) > 1:
        said = ", ".join(f"{path} is {number}/{count}" for (number, count), path in shards)
        raise AccError(f"the files are not shards of one run: {said}")
    (count,) = counts
    absent = sorted(set(range(1, count + 1)) - {number for (number, _), _ in shards})
    if not absent:
        return []
    names = ", ".join(f"{number}/{count}" for number in absent[:20])
    return [f"incomplete: no file is of shard {names}{', ...' if len(absent) > 20 else ''}"]


def _shard(file: StoredRows) -> tuple[int, int]:
    """Number and count of the shard that a file is of; 1 of 1 for a whole run."""
    said = file.run.settings.get("shard")
    if type(said) is list and len(said) == 2 and all(type(part) is int for part in said):
        number, count = said
        if 1 <= number <= count < 10**6:
            return number, count
    if said is not None:
        raise AccError(f"{file.path}: settings.shard must be two numbers, got {said!r:.100}")
    return 1, 1
