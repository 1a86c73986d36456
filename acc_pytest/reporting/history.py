"""The history of a comparison (`--acc-history DIR`): a small file for each run, for errors over time.

The first line of a file is its `PastRun`, the others are comparisons: the id, and the error as a multiple of
the bound. docs/history.md is about its use.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from ..base.forms import WrongField, check_header, read, written
from ..base.reason import Reason
from ..errors import AccError
from ..judging.verdict import largest_excess
from ..outputs import Growing, target_of
from ..outputs.writing import SUFFIX
from ..tensors.location import shown_at
from .row import Row
from .rows_file import records
from .view import FileView, Result, Root, Run

FORMAT, VERSION = "acc-pytest history", 1
LAST = 30
"""Runs whose comparisons are read."""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run by the first line of its file, which is at `path`.

    `time` is when it began (UTC). `pairs` counts its comparisons, `failures` those that fail their test.
    `partial`: it lacks comparisons, so that it proves the absence of no root. `worst` is the comparison
    farthest beyond its bound, or else the nearest to it, and `worst_error` its error.
    """

    time: str
    verdict: str
    roots: tuple[str, ...] = ()
    failures: int = 0
    pairs: int = 0
    partial: bool = False
    worst: str = ""
    worst_error: float | None = None
    coverage: float | None = None
    golden: str = ""
    mine: str = ""
    commit: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class _PastError:
    """The error of one comparison, as a multiple of its bound."""

    id: str
    error: float | None


def since(runs: Sequence[PastRun]) -> list[Reason]:
    """For each root of the last run the first of those that have it without a gap. A partial run is none."""
    sentences = []
    for root in runs[-1].roots if runs else ():
        lacking = [place for place, run in enumerate(runs) if root not in run.roots and not run.partial]
        before = max(lacking, default=-1)
        first = next(place for place, run in enumerate(runs) if place > before and root in run.roots)
        ago = len(runs) - 1 - first
        age = (
            Reason("{} runs ago", ago) if ago > 1 else Reason("1 run ago") if ago else Reason("the last run")
        )
        start = Reason("green before") if runs[before].verdict == "pass" else Reason("not a root before")
        start = start if lacking else Reason("no run before is without it")
        sentences.append(Reason("root {}: since run {}, {}; {}", root, runs[first].time[:16], age, start))
    return sentences


class HistoryFile(FileView[Growing]):
    """The file of this run in `directory`, written whole at the end beside the `earlier` ones."""

    def __init__(self, directory: str) -> None:
        begun = datetime.now(timezone.utc)
        super().__init__(os.path.join(directory, f"{begun:%Y%m%dT%H%M%SZ}.jsonl"))
        self._time = f"{begun:%Y-%m-%d %H:%M:%S.%f}"
        self.earlier = History(directory)
        self._run = Run()
        self._commit = ""
        self._errors: dict[str, float | None] = {}
        self._failures = 0
        self._worst = False, False, -1.0, ""

    def begin(self, run: Run) -> None:
        """Check the place. Raises `SettingsError` where it cannot be written: before the first test."""
        target_of(self._path, "--acc-history")
        self._run = run
        command = ["git", "rev-parse", "--short=12", "HEAD"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            self._commit = done.stdout.strip()

    def id_of(self, row: Row) -> str:
        """The id of a comparison, equal in all runs: without the name of the dump, which may change."""
        return row.test_id if self._run.plan is None else row.test_id.removeprefix(f"{self._run.plan.name}::")

    def add(self, row: Row) -> None:
        """Take one row; of several with one id the worst counts."""
        if row.alone:
            return
        name, error = self.id_of(row), self._errors.get(self.id_of(row))
        if not row.skipped:
            excess = math.inf if row.verdict == "incomparable" else largest_excess(row.checks)[0]
            error = max(float(f"{excess:.4g}"), error or 0.0)
            # What fails is worse than what passes, and that is worse than what is accepted.
            self._worst = max(self._worst, (row.red, row.verdict == "pass", error, name))
        self._errors[name] = error
        self._failures += row.red

    def lines(self) -> list[str]:
        """A warning for each file of the directory that is no run."""
        return [Reason("history: {}", warning) for warning in self.earlier.warnings]

    def past_run(self, result: Result) -> PastRun:
        """This run, when all rows are here."""
        plan, count, (*_, error, worst) = self._run.plan, len(self._errors), self._worst
        roots = result.diagnosis.roots if result.diagnosis is not None else ()
        verdict = {0: "pass", 5: "nothing"}.get(result.exit_status, "fail")
        partial = not result.tally.complete or (plan is not None and count < len(plan.pairs))
        places = ("", "") if plan is None else (shown_at(plan.golden_root), shown_at(plan.mine_root))
        names = tuple(dict.fromkeys(map(_label, roots)))
        measured = worst, error if worst else None, result.coverage
        return PastRun(
            self._time, verdict, names, self._failures, count, partial, *measured, *places, self._commit
        )

    def finish(self, result: Result) -> None:
        """Make the file; nothing of a run that compared nothing."""
        if not self._errors:
            return
        lines = [{"format": FORMAT, "version": VERSION, **written(self.past_run(result))}]
        lines += [written(_PastError(name, error)) for name, error in self._errors.items()]
        self._file = Growing(target_of(self._path, "--acc-history"), numbered=True)
        self._file.write("".join(f"{json.dumps(line)}\n" for line in lines).encode("ascii"))


def _label(root: Root) -> str:
    name, layer = f"{root.row.fed} {root.name}".strip(), root.row.layer
    return name if layer in name else f"{name} ({layer})"


class History:
    """The runs in a directory, the oldest first; none where it is not there.

    Only first lines are read before `errors` are asked for. `warnings` name files that are damaged or no run.
    """

    def __init__(self, directory: str) -> None:
        self.runs: list[PastRun] = []
        self.warnings: list[str] = []
        paths: list[str] = []
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            paths = sorted(entry.path for entry in entries if entry.is_file())
        for path in (path for path in paths if not path.endswith(SUFFIX)):  # those of runs that go on
            try:
                _, _, record = next(records(path, "history"), (0, "", {}))
                check_header(record, FORMAT, VERSION, "; move it elsewhere")
                fields = {name: value for name, value in record.items() if name not in ("format", "version")}
                self.runs.append(replace(read(PastRun, fields, "its first line"), path=path))
            except (AccError, WrongField) as error:
                self._warn(path, error)
        self.runs.sort(key=lambda run: run.time)

    def errors(self, wanted: Callable[[str], bool]) -> list[dict[str, float | None]]:
        """The errors of the wanted comparisons by id, of each of the last runs."""
        return [dict(self._errors(run, wanted)) for run in self.runs[-LAST:]]

    def _errors(self, run: PastRun, wanted: Callable[[str], bool]) -> Iterator[tuple[str, float | None]]:
        count = -1
        try:
            for count, (_, _, record) in enumerate(records(run.path, "history")):
                if count and wanted((past := read(_PastError, record, exact=False)).id):
                    yield past.id, past.error
            if count < run.pairs:
                raise WrongField(f"holds {count} of its {run.pairs} comparisons")
        except (AccError, WrongField) as error:
            self._warn(run.path, error)

    def _warn(self, path: str, error: Exception) -> None:
        self.warnings.append(str(error) if path in str(error) else f"{path}: {error}")
