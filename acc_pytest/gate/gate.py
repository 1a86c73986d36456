"""`Gate`: what may change the verdict of a row after its thresholds."""

from __future__ import annotations

from ..reporting.row import Row


class Gate:
    """One gate. It is pure and the same in every process: a row goes in, a row comes out."""

    def apply(self, row: Row) -> Row:
        """The row as this gate sees it."""
        return row
