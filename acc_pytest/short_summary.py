"""pytest's short test summary: what it says of our tests fits the room that it leaves beside their ids.

pytest cuts the message of a failure at the edge of the terminal, where numbers would be, and prints
reasons of skips and expected failures whole, however long.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .reporting.failure_text import FailureText
from .reporting.wrapping import LONGEST, columns, paragraph

WORD = "FAILED "
"""What stands before an id; `XFAIL` is as good here."""
BESIDE_SKIPS = "SKIPPED [99999] .:0: "
"""What stands before the reason of a skip, whose place is no line of ours: pytest would name the plugin's."""
_BY_WAY, _AT_STEP = " by way of ", " at step "
"""What the reason of an inherited failure can do without, the first of them sooner."""
_SKIPPED = "Skipped: "


def make_fit(
    stats: Mapping[str, Sequence[Any]],
    briefs: Mapping[str, Sequence[str]],
    ours: Container[str],
    width: int,
) -> None:
    """Shorten what the reports in pytest's `stats` say of tests of ours, for a terminal of `width` columns.

    `briefs` has what may be said of a failure, the fullest first. The reports have been printed, counted and
    written by then; only the short summary comes after.
    """
    for report in stats.get("failed", ()):
        if isinstance(report.longrepr, FailureText) and (forms := briefs.get(report.nodeid)):
            report.longrepr = replace(report.longrepr, brief=_fitting(forms, _room(report, width)))
    for report in stats.get("xfailed", ()):
        if report.nodeid in ours and getattr(report, "wasxfail", None):
            report.wasxfail = _excuse(str(report.wasxfail), report, max(width, LONGEST))
    for report in stats.get("skipped", ()):
        if report.nodeid in ours and isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix(_SKIPPED)
            report.longrepr = os.getcwd(), 0, _SKIPPED + paragraph(reason, BESIDE_SKIPS, max(width, LONGEST))


def _excuse(whole: str, report: Any, width: int) -> str:
    """What fits of a reason in one line, else all of it in several."""
    for said in (whole, whole.partition(_BY_WAY)[0], whole.partition(_AT_STEP)[0]):
        if columns(said) <= _room(report, width):
            return said
    return paragraph(whole, f"{WORD}{report.nodeid} - ", width)


def _room(report: Any, width: int) -> int:
    return width - columns(f"{WORD}{report.nodeid} - ")


def _fitting(said: Iterable[str], room: int) -> str:
    """The first that fits, else the last."""
    last = ""
    for last in said:
        if columns(last) <= room:
            break
    return last
