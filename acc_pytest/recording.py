"""Record, then assert: a test's rows go into its reports before the test is allowed to fail."""

from __future__ import annotations

from typing import Any

import pytest

from .reporting.junit import properties
from .reporting.row import Row

ROWS = pytest.StashKey[list[Row]]()
ATTRIBUTE = "acc_rows"
"""Attribute of a test report that carries the rows as builtins from worker to controller."""


class ComparisonFailed(AssertionError):
    """A comparison that makes its test fail; the message is the whole failure text."""

    def __init__(self, row: Row, text: str) -> None:
        super().__init__(text)
        self.row = row


def record(item: pytest.Item, row: Row) -> None:
    """Attach `row` to the test that runs, for its report and its JUnit properties.

    Raises `ComparisonFailed` when the verdict fails the test, and skips the test when the dump holds
    no values to compare.
    """
    __tracebackhide__ = True
    rows = item.stash.setdefault(ROWS, [])
    item.user_properties.extend(properties(row, f"{len(rows) + 1}." if rows else ""))
    rows.append(row)
    if row.red:
        from .reporting.failure_text import failure_text

        raise ComparisonFailed(row, failure_text(row))
    if row.skipped:
        pytest.skip(row.sentence)


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put the rows a test recorded into its report, once."""
    rows = item.stash.get(ROWS, None)
    if rows:
        setattr(report, ATTRIBUTE, [row.to_plain() for row in rows])
        item.stash[ROWS] = []


def rows_of(report: Any) -> list[Row]:
    """The rows that arrived with a report."""
    return [Row.from_plain(plain) for plain in getattr(report, ATTRIBUTE, ())]
