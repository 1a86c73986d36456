"""Views that tell what is stale in a file: only a complete run of the whole plan can show that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from ..outputs import file_target
from ..reporting.row import Row
from ..reporting.view import Run, View
from .row_key import root_of

T = TypeVar("T")


class PlanView(View):
    """Watches which pairs of the plan have a row."""

    def __init__(self) -> None:
        self._plan_name = ""
        self._without_row: set[int] = set()
        self._complete = False

    def begin(self, run: Run) -> None:
        """Note the plan."""
        if run.plan is not None:
            self._plan_name = run.plan.name
            self._without_row = set(range(len(run.plan.pairs)))

    def add(self, row: Row) -> None:
        """Note that a pair has its row."""
        if row.number is not None and not row.alone:
            self._without_row.discard(row.number)

    def end(self, complete: bool) -> None:
        """Whether what was asked for has run to its end."""
        self._complete = complete

    @property
    def _plan_ran(self) -> bool:
        return self._complete and bool(self._plan_name) and not self._without_row


class KeptFileView(PlanView, Generic[T]):
    """Compares a run with a file under version control, and updates the file at the end where that is wanted.

    The file holds one value for each comparison: `_before` the values that were read, `_now` those of this
    run, both by `row_key.key_of`. `flag` is the option that names the file.
    """

    def __init__(self, path: str, flag: str, before: Mapping[str, T], *, update: bool) -> None:
        super().__init__()
        self._path = path
        self._flag = flag
        self._wants_update = update
        self._before = before
        self._now: dict[str, T] = {}

    @property
    def files(self) -> list[str]:
        """The file, where it is written."""
        return [self._path] if self._writes else []

    @property
    def place(self) -> str:
        """The file."""
        return self._path

    def begin(self, run: Run) -> None:
        """Note the plan. Raises `SettingsError` for a file that cannot be updated."""
        super().begin(run)
        if self._wants_update:
            file_target(self._path, self._flag)

    @property
    def _writes(self) -> bool:
        return self._wants_update and self._complete and bool(self._now)

    def _stale(self) -> list[str]:
        """Entries of this plan that no test met, where all of the plan has run."""
        if not self._plan_ran:
            return []
        return [key for key in self._before if root_of(key) == self._plan_name and key not in self._now]

    def _without_stale(self) -> dict[str, T]:
        """The entries that were read, without stale ones."""
        stale = set(self._stale())
        return {key: value for key, value in self._before.items() if key not in stale}
