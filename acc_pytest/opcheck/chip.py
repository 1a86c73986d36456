"""Which chip a case is of, where neither the user nor the CSV says it.

The default chip is taken, unless its operator cannot have read and written these files (other dtypes or
shapes) and that of another chip can. Values prove nothing: an output that is wrong on the one chip may be
right on the other, so then the user is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..operators import known, operator_of
from ..reporting.row import Row
from ..vocabulary import SOCS
from .case import Case

_OnChips = Iterator[tuple[str, list[Row]]]


def on_its_chip(case: Case, check: Callable[[Case], list[Row]]) -> list[Row]:
    """The rows of a case on the chip that it is of; notes say where that was not known."""
    rows = check(case)
    refused = [row for row in rows if row.verdict == "incomparable" and not row.skipped]
    if refused:
        refusal = f"on {case.soc}, {refused[0].sentence}"
        return _where_computed(rows, refusal, _on_other_chips(case, check))
    if any(row.verdict == "fail" for row in rows):
        return _with_hint(rows, _on_other_chips(case, check))
    return rows


def _where_computed(rows: list[Row], refusal: str, others: _OnChips) -> list[Row]:
    """The rows of the first other chip whose operator takes the files of a case that was refused."""
    for soc, rows_there in others:
        if all(row.verdict != "incomparable" for row in rows_there):
            note = f"computed as {soc} does, which the dump is of: {refusal}"
            return [_noted(row, note) for row in rows_there]
    return rows


def _with_hint(rows: list[Row], others: _OnChips) -> list[Row]:
    """The rows of a case that fails; those that do say on which other chip it would pass."""
    for soc, rows_there in others:
        if all(row.verdict == "pass" for row in rows_there):
            note = (
                f"by the rules of {soc} it passes; if the dump is of that chip, say --acc-opcheck-soc {soc}"
            )
            return [_noted(row, note) if row.verdict == "fail" else row for row in rows]
    return rows


def _on_other_chips(case: Case, check: Callable[[Case], list[Row]]) -> _OnChips:
    """Each other chip with the rows there; none where the chip is stated or all chips compute alike."""
    if case.soc_stated or case.name not in known() or not operator_of(case.name).by_chip:
        return
    for soc in SOCS:
        if soc != case.soc:
            yield soc, check(replace(case, soc=soc))


def _noted(row: Row, note: str) -> Row:
    return replace(row, notes=(*row.notes, note))
