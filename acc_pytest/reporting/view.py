"""`View`: what a report is to a run. One view a file; `running/run_report.py` knows which are asked for.

Views live in the process that owns the terminal and get rows in any order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from ..outputs import Growing, Staged
from .row import Row

if TYPE_CHECKING:
    from ..mapping.pair import Plan
    from .summary import Tally


@dataclass(frozen=True, slots=True)
class Run:
    """The facts before the first test.

    `plan` is `None` where no dumps are compared, and `sources` are what is checked instead. `command` are
    the words that repeat the run, `rerun` those before the id of one of its tests, `floor` is the smallest
    coverage that does, `environment` names machine and versions.
    """

    title: Literal["comparison", "opcheck"] = "comparison"
    plan: Plan | None = None
    command: tuple[str, ...] = ()
    floor: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    rerun: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The facts after the last test. `lines` are those of the terminal summary.

    `coverage` is `None` without a plan; `problems` say why the run fails beside its failing tests.
    """

    exit_status: int
    tally: Tally
    coverage: float | None
    verdict_hash: str
    lines: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None

    @property
    def verdict(self) -> str:
        """`pass`, `fail`, or `nothing` where nothing could be compared."""
        return {0: "pass", 5: "nothing"}.get(self.exit_status, "fail")


class View:
    """A view that does nothing: each overrides what it needs.

    `begin` may raise `pytest.UsageError` or `AccError` for a report that cannot be written, which ends
    the run before its first test. An `AccError` or `OSError` of `add`, `finish` and `land` is told once,
    fails the run, and harms no other view: the run goes on without this one.
    """

    @property
    def files(self) -> list[str]:
        """The reports that were written."""
        return []

    @property
    def place(self) -> str:
        """The path of the report, named in errors; empty for a view without a file."""
        return ""

    def begin(self, run: Run) -> None:
        """Before the first test."""

    def add(self, row: Row) -> None:
        """A row has arrived."""

    def end(self, complete: bool) -> None:
        """The last row has come; `complete`: every test that was asked for has run to its end."""

    def lines(self) -> list[str]:
        """The lines that the view adds to the terminal summary, asked for after the last row."""
        return []

    def problems(self) -> list[str]:
        """Why the run fails although its tests do not, asked for after the last row; one sentence each."""
        return []

    def finish(self, result: Result) -> None:
        """After the last row, when all is known: make the report, but leave the previous one in its place."""

    def land(self) -> None:
        """When all views have finished: put the report into its place."""

    def close(self) -> None:
        """At the very end, also of an interrupted run, where `finish` was not called; raises nothing."""


# The diagnosis of a run: where errors start, and what follows from each. Made by the room `diagnosis`.


@dataclass(frozen=True, slots=True)
class Root:
    """A failing pair whose inputs agree, with the same operator at other steps and on other ranks.

    `row` is that of the first of its steps; `also` are the rows of the others, which `again` says in words
    (`again at steps 1, 2`). `inherited` counts the pairs whose failure starts here. `amplification` is the
    largest excess among them over its own, `share` the part of the final output's squared error at the first
    step that it explains (0 to 1), both `None` where unknown. `sentence` is what the summary says after
    `root cause: `; `fed` is what it says of inputs of the run, and empty for operators.
    """

    number: int
    name: str
    test_id: str
    row: Row
    inherited: int
    amplification: float | None
    share: float | None
    basis: str
    sentence: str
    also: tuple[Row, ...] = ()
    again: str = ""
    fed: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All roots, the number of inherited failures, and how lineage was known.

    Roots of what the run was fed come first; else they are in execution order. `peers` are lines on what
    stands out among its peers in a run whose bounds all hold.
    """

    roots: tuple[Root, ...]
    inherited: int
    basis: str
    notes: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()


# Views that write one file: its place, its landing and its end are the same for all of them.


File = TypeVar("File", Growing, Staged)


class FileView(View, Generic[File]):
    """A view of the file at `path`. A subclass opens `_file` in `begin`, and fills it."""

    def __init__(self, path: str = "") -> None:
        self._path = os.path.abspath(path) if path else ""
        self._file: File | None = None

    @property
    def files(self) -> list[str]:
        """The file, once it has its name."""
        return [self._file.path] if self._file is not None and self._file.landed else []

    @property
    def place(self) -> str:
        """The file."""
        return self._path if self._file is None else self._file.path

    def land(self) -> None:
        """Put the file into its place."""
        if self._file is not None:
            self._file.land()

    def close(self) -> None:
        """Close the file. What has not landed is removed; of a growing file the records stay."""
        if self._file is not None:
            self._file.close()


class GrowingFileView(FileView[Growing]):
    """A view that writes its file row by row."""

    def lines(self) -> list[str]:
        """The files that killed runs left."""
        return [] if self._file is None else self._file.notes
