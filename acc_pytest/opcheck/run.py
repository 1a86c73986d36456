"""A case in, one row an output out; and for entries, which may not even become a case.

Whatever is wrong with a case (no such operator, parameters that are no JSON, a short file, a type that the
operator does not write) becomes the sentence of its row: nothing is raised for it, and nothing left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..errors import AccError, NoPayload
from ..guard import guarded
from ..judging.judges import Judge
from ..judging.standards import ASCEND, Standard, of_operators
from ..judging.threshold import ThresholdRule
from ..operators import known, operator_of
from ..reporting.row import Row
from ..vocabulary import SOCS
from .backends import Backend
from .case import Case
from .entry import Entry
from .golden import Golden, check_outputs, refuse_unknown, refuse_unseen
from .on_device import rows_on_device
from .output import OutputJudge
from .prepare import case_of, prepare
from .rows import case_row, unjudged
from .settings import OpcheckSettings

ROWS = 1000
"""Numbers of rows that each entry has for its outputs."""

AS_DUMPED = OpcheckSettings(())
"""Nothing was asked for."""

Rules = Callable[[Case], Sequence[ThresholdRule]]
"""Gives the bounds of a case that people set themselves, weakest first."""


def no_rules(case: Case) -> Sequence[ThresholdRule]:
    """Nothing beside the standard."""
    return ()


def run_entry(
    entry: Entry,
    checks: OpcheckSettings = AS_DUMPED,
    backend: Backend | None = None,
    *,
    test_id: str = "",
    custom: Sequence[Any] = (),
    rules: Rules = no_rules,
) -> list[Row]:
    """`run_case` of an entry as `checks` says.

    With a `backend` its outputs are judged instead of the dump's. What `rules` raises of ours is said in the
    row.
    """
    standard = of_operators(checks.standard)
    refused = functools.partial(refused_entry, entry, standard.name, test_id=test_id)
    if entry.problem:
        return [refused(entry.problem, skipped=entry.skipped)]
    try:
        with guarded(f"checking {entry.full_name} of {entry.source}", (OSError,)):
            refuse_unknown(entry.name)
            case = _prepared(entry, checks, checks.input)
            second = _prepared(entry, checks, checks.other) if checks.other else None
            check = functools.partial(
                run_case,
                standard=standard,
                second_case=second,
                test_id=test_id,
                custom=custom,
                rules=rules(case),
            )
            first = entry.number * ROWS
            if backend is None:
                return on_its_chip(case, functools.partial(check, running=first))
            return rows_on_device(case, backend, check, first, optimization=checks.optimization)
    except NoPayload as error:
        return [refused(str(error), skipped=True)]
    except (AccError, OSError) as error:
        return [refused(str(error))]


def _prepared(entry: Entry, checks: OpcheckSettings, directory: str) -> Case:
    return replace(prepare(entry, directory, checks.soc), precision=checks.precision)


def refused_entry(entry: Entry, standard: str, reason: str, test_id: str = "", skipped: bool = False) -> Row:
    """The row of an entry that did not become a case, and why."""
    row = case_row(case_of(entry, {}), standard, test_id, entry.number * ROWS)
    return unjudged(row, reason, skipped)


def run_case(
    case: Case,
    standard: Standard = ASCEND,
    *,
    second_case: Case | None = None,
    test_id: str = "",
    running: int = 0,
    custom: Sequence[Any] = (),
    rules: Sequence[ThresholdRule] = (),
) -> list[Row]:
    """Compute the outputs of `case` from its inputs and judge those of the dump, one row each.

    `second_case` is the same case of a second device, for standards that need one. `rules` (weakest first)
    bound further metrics, or stretch the standard's bound.
    """
    row = case_row(case, standard.name, test_id, running)
    try:
        with guarded(f"checking {case.full_name} of {case.source}", (OSError,)):
            golden = Golden(case)
            check_outputs(golden)
            refuse_unseen(golden)
            second = Golden(second_case) if second_case is not None else None
            outputs = OutputJudge(Judge(tuple(rules), tuple(custom), standard), second)
            rows = [outputs.row(row, golden, expected) for expected in golden.expected()]
        return rows or [unjudged(row, f"{case.full_name} has no output that could be judged")]
    except NoPayload as error:
        return [unjudged(row, str(error), skipped=True)]
    except (AccError, OSError) as error:
        return [unjudged(row, str(error))]


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


def _where_computed(rows: list[Row], refusal: str, chips: _OnChips) -> list[Row]:
    """The rows of the first other chip whose operator takes the files of a case that was refused."""
    for soc, chip_rows in chips:
        if all(row.verdict != "incomparable" for row in chip_rows):
            note = f"computed as {soc} does, which the dump is of: {refusal}"
            return [_noted(row, note) for row in chip_rows]
    return rows


def _with_hint(rows: list[Row], chips: _OnChips) -> list[Row]:
    """The rows of a case that fails; those that do say on which other chip it would pass."""
    for soc, chip_rows in chips:
        if all(row.verdict == "pass" for row in chip_rows):
            note = (
                f"by the rules of {soc} it passes; if the dump is of that chip, add -o acc_opcheck_soc={soc}"
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
