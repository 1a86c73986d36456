"""Record, then assert: a row is on its way to the reports before its test is allowed to fail.

Where the tests run in the process that writes the reports, rows go there at once. An xdist worker
sends them inside the report of the test's call (`worker_reports`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from .modes.run import RUN
from .onlookers import want_properties
from .reporting.junit import properties
from .reporting.printable import printable
from .reporting.row import Row

SINK = pytest.StashKey[Callable[[Row], None]]()
"""In `config.stash`: what takes the rows of this process."""

ROWS = pytest.StashKey[int]()
"""In `item.stash`: how many rows the test has as properties."""

BESIDE = len("E       ")
"""The columns that pytest puts before each line of an assertion of people's own tests."""
REASON = 2000
"""Characters of why a test is skipped or may fail: names in it come from files."""

LAST = "acc_last"
"""Attribute of the report of a call: true where no other is made of the test, whose teardown has passed."""


class ComparisonFailed(AssertionError):
    """A comparison that makes its test fail; `text` is the failure text, the message the same wrapped."""

    # As pytest does with its own: the short summary of people's tests has no room for the path of a module.
    __module__ = "builtins"

    def __init__(self, text: str) -> None:
        from .reporting.failure_text import terminal_lines
        from .reporting.wrapping import terminal_width

        width = terminal_width() - BESIDE
        super().__init__("\n".join(row for line in text.split("\n") for row in terminal_lines(line, width)))
        self.text = text


class InheritedFailure(pytest.PytestWarning):
    """A pair that fails because what it computes from does, under `acc_inherited = warn`."""


def record(item: pytest.Item, rows: Sequence[Row], *, warns: bool = False) -> None:
    """Hand the rows of a test to the reports and put them into its JUnit properties, then pass, fail or skip.

    With `warns` an inherited failure is a warning, and the test passes; else `_end` says how it ends.
    """
    __tracebackhide__ = True
    for row in rows:
        _hand_over(item, row)
    warned = [row for row in rows if warns and row.verdict == "inherited" and not row.strict]
    for row in warned:
        item.warn(InheritedFailure(printable(row.excuse, REASON)))
    if rows and not warned:
        _end(rows)


def _end(rows: Sequence[Row]) -> None:
    """Pass, fail or skip the test of these rows.

    Raises `ComparisonFailed` when a verdict fails the test; a failure that is inherited or known is an
    expected one (xfail). Skips the test when nothing could be judged and no row fails.
    """
    __tracebackhide__ = True
    red = [row for row in rows if row.red]
    excused = [row for row in rows if row.excused]
    if excused and not red:
        pytest.xfail(printable(excused[0].excuse, REASON))
    # With --runxfail pytest.xfail does nothing, and what was excused fails after all.
    if failing := red or excused:
        from .reporting.failure_text import failure_text_of_all

        raise ComparisonFailed(failure_text_of_all(failing))
    if all(row.skipped for row in rows):
        pytest.skip(printable(rows[0].sentence, REASON))


def _hand_over(item: pytest.Item, row: Row) -> None:
    settings = item.config.stash[RUN].settings
    if (settings is None or settings.junit_properties == "all") and want_properties(item.config):
        earlier = item.stash.get(ROWS, 0)
        item.stash[ROWS] = earlier + 1
        item.user_properties.extend(properties(row, f"{earlier + 1}." if earlier else ""))
    item.config.stash[SINK](row)
