"""The history of a comparison (`--acc-history DIR`): a small file for each run, for errors over time.

The first line of a file is its `PastRun`. Below it stands a line for each comparison: its id, and its error
as a multiple of the bound. A file is named by the time of its run. docs/history.md is about its use.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ..base.reason import Reason
from ..errors import AccError, FormatError
from ..judging.verdict import largest_excess
from ..outputs import Growing, Target, target_of
from ..outputs.writing import SUFFIX
from ..tensors.location import shown_at
from .row import Row
from .rows_file import records
from .rows_json import (
    FLAG,
    NUMBER_OR_NONE,
    TEXTS,
    WrongField,
    as_is,
    number_or_none,
    pack_number,
    packer,
    record_fields,
    text,
    unpacker,
    whole_number,
)
from .view import FileView, Result, Root, Run

if TYPE_CHECKING:
    from ..mapping.pair import Plan


FORMAT, VERSION = "acc-pytest history", 1
LAST = 30
"""Runs whose comparisons are read, where nobody asks for another number."""
_PATIENCE = 10.0
"""Seconds for git to name the commit."""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run by the first line of its file, which is at `path`.

    `time` is when it began (UTC). `pairs` counts its comparisons, `planned` those of the plan (0 without
    one), `failures` those that fail their test. `complete`: all tests ran that were asked for. `worst` is the
    comparison farthest beyond its bound, or else the nearest to it, and `worst_error` its error.
    """

    time: str
    verdict: str
    roots: tuple[str, ...] = ()
    failures: int = 0
    pairs: int = 0
    planned: int = 0
    complete: bool = True
    worst: str = ""
    worst_error: float | None = None
    coverage: float | None = None
    golden: str = ""
    mine: str = ""
    commit: str = ""
    path: str = ""

    @property
    def when(self) -> str:
        """The time to the minute."""
        return self.time[:16].replace("T", " ")

    @property
    def partial(self) -> bool:
        """Whether comparisons of the plan are not in it, so that it proves the absence of no root."""
        return not self.complete or self.pairs < self.planned

    @classmethod
    def of(cls, result: Result, time: str = "") -> PastRun:
        """The run of a result, without what rows say."""
        roots = () if result.diagnosis is None else result.diagnosis.roots
        verdict = {0: "pass", 5: "nothing"}.get(result.exit_status, "fail")
        names = tuple(dict.fromkeys(map(_label, roots)))
        return cls(time, verdict, names, complete=result.tally.complete, coverage=result.coverage)


_WHOLE = (as_is, whole_number)
_FIELDS = record_fields(
    PastRun,
    {
        "roots": TEXTS,
        **dict.fromkeys(("failures", "pairs", "planned"), _WHOLE),
        "complete": FLAG,
        **dict.fromkeys(("worst_error", "coverage"), NUMBER_OR_NONE),
    },
)
_pack = packer(_FIELDS)
_unpack = unpacker(PastRun, _FIELDS)


def id_of(row: Row, plan: Plan | None) -> str:
    """The id of a comparison, equal in all runs: without the name of the dump, which may change."""
    named = row.test_id if plan is None else row.test_id.removeprefix(f"{plan.name}::")
    return f"{named} {row.mine.slot}" if row.case else named


def error_of(row: Row) -> float:
    """The error as a multiple of the bound, of the worst check; infinite where nothing could be compared."""
    return math.inf if row.verdict == "incomparable" else largest_excess(row.checks)[0]


def badness(row: Row) -> tuple[bool, bool, float]:
    """The order of the rows of a run, the worst last: those that are accepted, that pass, that fail."""
    return row.red, row.verdict == "pass", error_of(row)


def _label(root: Root) -> str:
    name, layer = f"{root.row.fed} {root.name}".strip(), root.row.layer
    return name if layer in name else f"{name} ({layer})"


def since(runs: Sequence[PastRun]) -> list[Reason]:
    """A sentence for each root of the last run: the first run of those that have it without a gap.

    A partial run without the root is no gap: it need not have compared it.
    """
    sentences = []
    for root in runs[-1].roots if runs else ():
        without = [place for place, run in enumerate(runs) if root not in run.roots and not run.partial]
        before = max(without, default=-1)
        first = next(place for place, run in enumerate(runs) if place > before and root in run.roots)
        ago = len(runs) - 1 - first
        if before < 0:
            start = Reason("no run before is without it")
        else:
            start = Reason("green before") if runs[before].verdict == "pass" else Reason("not a root before")
        if ago:
            age = Reason("{} runs ago", ago) if ago > 1 else Reason("1 run ago")
            sentences.append(Reason("root {}: since run {}, {}; {}", root, runs[first].when, age, start))
        else:
            sentences.append(Reason("root {}: new; {}", root, start))
    return sentences


class HistoryFile(FileView[Growing]):
    """The file of this run in `directory`, written whole at the end. It replaces none."""

    def __init__(self, directory: str) -> None:
        self._begun = datetime.now(timezone.utc)
        super().__init__(os.path.join(directory, f"{self._begun:%Y%m%dT%H%M%SZ}.jsonl"))
        self._directory = directory
        self._run = Run()
        self._target: Target | None = None
        self._commit = ""
        self._errors: dict[str, float | None] = {}
        self._failures = 0
        self._worst = (False, False, -1.0), 0.0, ""

    def begin(self, run: Run) -> None:
        """Check the place. Raises `SettingsError` where it cannot be written: before the first test."""
        self._run, self._target = run, target_of(self._path, "--acc-history")
        command = ["git", "rev-parse", "--short=12", "HEAD"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True)
            self._commit = done.stdout.strip()

    def add(self, row: Row) -> None:
        """Take one row; of several with one id the worst counts."""
        if row.alone:
            return
        name, error = id_of(row, self._run.plan), float(f"{error_of(row):.4g}")
        self._failures += row.red
        if row.skipped:
            self._errors.setdefault(name, None)
            return
        self._errors[name] = max(error, self._errors.get(name) or 0.0)
        self._worst = max(self._worst, (badness(row), error, name))

    def lines(self) -> list[str]:
        """A warning for each file of the directory that is no run."""
        return [f"history: {warning}" for warning in History(self._directory).warnings]

    def finish(self, result: Result) -> None:
        """Make the file; nothing of a run that compared nothing."""
        if self._target is None or not self._errors:
            return
        plan, (_, worst_error, worst) = self._run.plan, self._worst
        run = replace(
            PastRun.of(result, self._begun.isoformat(timespec="milliseconds")),
            failures=self._failures,
            pairs=len(self._errors),
            planned=0 if plan is None else len(plan.pairs),
            worst=worst,
            worst_error=worst_error if worst else None,
            golden="" if plan is None else shown_at(plan.golden_root),
            mine="" if plan is None else shown_at(plan.mine_root),
            commit=self._commit,
        )
        lines = [{"format": FORMAT, "version": VERSION, **_pack(run)}]
        lines += [{"id": name, "error": pack_number(error)} for name, error in self._errors.items()]
        self._file = Growing(self._target, numbered=True)
        text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
        self._file.write(text.encode("ascii"))


class History:
    """The runs in a directory, the oldest first; none where it is not there.

    Only first lines are read before `errors` are asked for. `warnings` name files that are damaged or no run.
    """

    def __init__(self, directory: str) -> None:
        self.runs: list[PastRun] = []
        self.warnings: list[str] = []
        paths: list[str] = []
        try:
            with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
                paths = sorted(entry.path for entry in entries if entry.is_file())
        except OSError as error:
            raise AccError(f"{directory}: cannot be read: {error.strerror or error}") from error
        for path in paths:
            if not path.endswith(SUFFIX):  # that of a run that goes on
                try:
                    self.runs.append(_head(path))
                except AccError as error:
                    self.warnings.append(f"left out: {error}")
        self.runs.sort(key=lambda run: (run.time, len(run.path), run.path))

    def errors(self, wanted: Callable[[str], bool], last: int = LAST) -> list[dict[str, float | None]]:
        """The errors of the wanted comparisons by id, of each of the last runs."""
        return [self._errors(run, wanted) for run in self.runs[-last:]]

    def _errors(self, run: PastRun, wanted: Callable[[str], bool]) -> dict[str, float | None]:
        errors: dict[str, float | None] = {}
        lines = 0
        try:
            for lines, (number, _, record) in enumerate(records(run.path, "history")):
                try:
                    if lines and wanted(name := text(record.get("id"), "id")):
                        errors[name] = number_or_none(record.get("error"), "error")
                except WrongField as error:
                    raise FormatError(f"{run.path}:{number}: {error}") from None
            if lines < run.pairs:
                raise FormatError(f"{run.path}: holds {lines} of its {run.pairs} comparisons")
        except AccError as error:
            self.warnings.append(f"damaged: {error}")
        return errors


def _head(path: str) -> PastRun:
    """The first line of a file. Raises `AccError` for a file that is not as `HistoryFile` writes it."""
    _, _, record = next(records(path, "history"), (0, "", {}))
    if record.pop("format", None) != FORMAT:
        raise FormatError(f"{path}: is no file of --acc-history; move it elsewhere")
    if (version := record.pop("version", None)) != VERSION:
        raise FormatError(f"{path}: has version {version!r:.100}, but this acc-pytest reads {VERSION}")
    try:
        run: PastRun = _unpack(record, "its first line")
    except WrongField as error:
        raise FormatError(f"{path}: {error}") from None
    return replace(run, path=path)
