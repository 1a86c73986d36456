"""How much of a plan has run: what is missing in a file can only be told by a run of everything."""

from __future__ import annotations

from ..reporting.row import Row
from ..reporting.view import Run


class Extent:
    """Watches the rows of a run. `root` is the name of the plan, empty without one."""

    def __init__(self, run: Run) -> None:
        self.root = run.plan.name if run.plan is not None else ""
        self._left = set(range(len(run.plan.pairs))) if run.plan is not None else set()

    def add(self, row: Row) -> None:
        """Take one row into account."""
        if row.number is not None and row.verdict != "unmapped":
            self._left.discard(row.number)

    @property
    def whole(self) -> bool:
        """Whether every pair of the plan has a row."""
        return bool(self.root) and not self._left
