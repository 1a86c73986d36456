"""`View`: what a report is to a run. One view a file; `views.py` knows which are asked for.

Views live in the process that owns the terminal and get rows in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .row import Row

if TYPE_CHECKING:
    from ..mapping.pair import Plan
    from .diagnosis import Diagnosis
    from .summary import Tally


@dataclass(frozen=True, slots=True)
class Run:
    """The facts before the first test.

    `plan` is `None` where no dumps are compared, and `sources` are what is checked instead. `command` are
    the words that repeat the run, `floor` is the smallest coverage that does, `environment` names machine
    and versions.
    """

    title: Literal["comparison", "opcheck"] = "comparison"
    plan: Plan | None = None
    command: tuple[str, ...] = ()
    floor: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()


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
