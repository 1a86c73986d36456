"""Which chip a case is of, where neither the user nor the CSV says it.

The default chip is taken, unless its operator cannot have read and written these files (other dtypes or
shapes) and that of another chip can. Values prove nothing: an output that is wrong on the one chip may be
right on the other, so then the user is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..operators import known, operator_of
from ..reporting.row import Row
from ..vocabulary import SOCS
from .case import Case


def on_its_chip(case: Case, check: Callable[[Case], list[Row]]) -> list[Row]:
    """The rows of a case on the chip that it is of; notes say where that was not known."""
    rows = check(case)
    refused = [row for row in rows if row.verdict == "incomparable" and not row.skipped]
    failed = [row for row in rows if row.verdict == "fail"]
    if case.soc_stated or not (refused or failed) or not _differs(case):
        return rows
    for soc in SOCS:
        if soc == case.soc:
            continue
        others = check(replace(case, soc=soc))
        if refused and all(row.verdict != "incomparable" for row in others):
            note = f"computed as {soc} does, which the dump is of: on {case.soc}, {refused[0].sentence}"
            return [_noted(row, note) for row in others]
        if not refused and all(row.verdict == "pass" for row in others):
            note = (
                f"by the rules of {soc} it passes; if the dump is of that chip, say --acc-opcheck-soc {soc}"
            )
            return [_noted(row, note) if row.verdict == "fail" else row for row in rows]
    return rows


def _differs(case: Case) -> bool:
    return case.name in known() and operator_of(case.name).by_chip


def _noted(row: Row, note: str) -> Row:
    return replace(row, notes=(*row.notes, note))
