"""A case in, one row an output out; and for entries, which may not even become a case.

Whatever is wrong with a case (no such operator, parameters that are no JSON, a short file, a type that the
operator does not write) becomes the sentence of its row: nothing is raised for it, and nothing left out.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Protocol

from ..base.reason import Reason, joined
from ..base.vocabulary import SOCS
from ..errors import AccError, NoPayload, guarded
from ..judging.judges import Judge
from ..judging.standards import ASCEND, Standard, of_operators
from ..judging.threshold import ThresholdRule
from ..operators import known, operator_of
from ..operators.registry import read
from ..reference.case import Case, Declared
from ..reference.golden import Golden, check_outputs, refuse_unknown, refuse_unseen
from ..reference.prepare import case_of, prepare
from ..reference.sources import Entry
from ..reporting.row import Row
from ..tensors.ref import TensorRef
from .backends import Backend, rerun
from .output import OutputJudge, case_row, unjudged
from .settings import OpcheckSettings

ROWS = 1000
"""Numbers of rows that each entry has for its outputs."""

AS_DUMPED = OpcheckSettings(())
"""Nothing was asked for."""

Rules = Callable[[Case], Sequence[ThresholdRule]]
"""Gives the bounds of a case that people set themselves, weakest first."""


def run_entry(
    entry: Entry,
    checks: OpcheckSettings = AS_DUMPED,
    backend: Backend | None = None,
    *,
    test_id: str = "",
    custom: Sequence[Any] = (),
    rules: Rules = lambda case: (),
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
        return rows or [unjudged(row, Reason("{} has no output that could be judged", case.full_name))]
    except NoPayload as error:
        return [unjudged(row, str(error), skipped=True)]
    except (AccError, OSError) as error:
        return [unjudged(row, str(error))]


def on_its_chip(case: Case, check: Callable[[Case], list[Row]]) -> list[Row]:
    """The rows of a case on the chip that it is of; notes say where that was not known."""
    rows = check(case)
    refused = [row for row in rows if row.verdict == "incomparable" and not row.skipped]
    failing = any(row.verdict == "fail" for row in rows)
    if not refused and not failing:
        return rows
    if case.soc_stated or case.name not in known() or not operator_of(case.name).by_chip:
        return rows
    for soc in (soc for soc in SOCS if soc != case.soc):
        chip_rows = check(replace(case, soc=soc))
        if refused and all(row.verdict != "incomparable" for row in chip_rows):
            note = Reason(
                "computed as {} does, which the dump is of: on {}, {}", soc, case.soc, refused[0].sentence
            )
            return [_noted(row, note) for row in chip_rows]
        if not refused and all(row.verdict == "pass" for row in chip_rows):
            note = Reason(
                "by the rules of {} it passes; if the dump is of that chip, add -o acc_opcheck_soc={}",
                soc,
                soc,
            )
            return [_noted(row, note) if row.verdict == "fail" else row for row in rows]
    return rows


def _noted(row: Row, note: str) -> Row:
    return replace(row, notes=(*row.notes, note))


# Rows of a case whose outputs a device computes again, also with its optimisations switched off.
#
# The dump's outputs do not count here; its inputs do. Files that the device's outputs are kept in while they
# are judged are gone afterwards.


ON_DEVICE = "judged is what the device computed from the dumped inputs"
"""The note on a row of what a device computed."""
ROWS_PER_COPY = 100
"""Numbers of rows that a case, and each copy of it with an optimisation off, has for its outputs."""


class CheckCase(Protocol):
    """Judges a case; its rows are numbered from `running`."""

    def __call__(self, case: Case, *, running: int) -> list[Row]: ...


def rows_on_device(
    case: Case, backend: Backend, check: CheckCase, running: int, *, optimization: bool = False
) -> list[Row]:
    """The rows of `case` with what `backend` computes in place of the dumped outputs.

    With `optimization`, the rows of each copy with one optimisation off follow, and the rows of the case say
    which of them has another verdict. Raises `AccError` where the device cannot compute the case.
    """
    rows = _rows(case, backend, check, running)
    if not optimization:
        return rows
    copies = [
        _copied(off, backend, check, rows[0], running + number * ROWS_PER_COPY)
        for number, off in enumerate(without_optimizations(case), start=1)
    ]
    sentence = conclusion(rows, copies)
    if sentence:
        red = _any_red(rows)
        rows = [_noted(row, sentence) if not red else row for row in rows]
        rows = [
            replace(row, sentence=joined("; ", (row.sentence, sentence)), reasons=(*row.reasons, sentence))
            if row.red
            else row
            for row in rows
        ]
    return [*rows, *(row for copy in copies for row in copy.rows)]


def _rows(case: Case, backend: Backend, check: CheckCase, running: int) -> list[Row]:
    """The rows of outputs that were computed again and are in no file any more."""
    with tempfile.TemporaryDirectory() as home:
        rows = check(rerun(case, backend, home), running=running)
    return [_noted(replace(row, mine=replace(row.mine, path="")), ON_DEVICE) for row in rows]


def _all_judged(rows: Sequence[Row]) -> bool:
    return all(row.verdict in ("pass", "fail") for row in rows)


def _any_red(rows: Sequence[Row]) -> bool:
    return any(row.red for row in rows)


@dataclass(frozen=True, slots=True)
class CopyRows:
    """The rows of one copy with an optimisation off. `judged` says that all of them could be."""

    off: OptimizationOff
    rows: tuple[Row, ...]

    @property
    def judged(self) -> bool:
        """Whether every output got a verdict."""
        return _all_judged(self.rows)

    @property
    def red(self) -> bool:
        """Whether the copy fails."""
        return _any_red(self.rows)


def _copied(off: OptimizationOff, backend: Backend, check: CheckCase, row: Row, running: int) -> CopyRows:
    """A copy checked. One that cannot be computed is nobody's mistake: it was made up here."""
    try:
        rows = _rows(off.case, backend, check, running)
    except AccError as error:
        bare = case_row(off.case, str(row.case["standard"]), row.test_id, running)
        rows = [unjudged(bare, str(error), skipped=True)]
    return CopyRows(off, tuple(_of_copy(row, off) for row in rows))


def _of_copy(row: Row, off: OptimizationOff) -> Row:
    """The row of a copy, named so that it is not taken for the case of the dump."""
    case = {**row.case, "optimization_closed": off.parameter}
    row = replace(row, case=case, mine=replace(row.mine, name=f"{row.mine.name}[{off.change}]"))
    if row.verdict == "incomparable":
        return unjudged(row, Reason("not tried with {}: {}", off.change, row.sentence), skipped=True)
    return replace(row, sentence=Reason("with {}: {}", off.change, row.sentence))


def conclusion(rows: Sequence[Row], copies: Sequence[CopyRows]) -> str:
    """A sentence on the optimisation that changes the verdict; empty where there is none."""
    judged = [copy for copy in copies if copy.judged]
    if not judged or not _all_judged(rows):
        return ""
    red = _any_red(rows)
    changing = [copy.off for copy in judged if copy.red != red]
    changes = " or ".join(off.change for off in changing)
    if red and changing:
        names = " and ".join(off.parameter for off in changing)
        return Reason("with {} the device's result passes: suspect the optimisation {}", changes, names)
    if changing:
        return Reason("passes as dumped, and not with {}", changes)
    if not red:
        return ""
    tried = ", ".join(copy.off.change for copy in judged)
    return Reason("fails with {} as well: no optimisation explains it", tried)


OFF_VALUES: Mapping[str, Mapping[str, int | bool]] = {
    "SelfAttentionOperation": {
        "maskType": 0, "batchRunStatusEnable": False, "isTriuMask": 0, "kernelType": 0, "clampType": 0,
    },
    "PagedAttentionOperation": {
        "maskType": 0, "batchRunStatusEnable": False, "quantType": 0, "hasQuantOffset": False,
        "compressType": 0, "calcType": 0,
    },
}  # fmt: skip
"""The operators that have such parameters (the old tool's table), and the value that switches each off."""


@dataclass(frozen=True, slots=True)
class OptimizationOff:
    """`case` with one parameter switched off, and without the operands that this takes away.

    `change` is what was done to the parameter: `maskType=0`.
    """

    parameter: str
    change: str
    case: Case


def without_optimizations(case: Case) -> Iterator[OptimizationOff]:
    """`case` once for each of its optimisations that is in use; none for operators that have none.

    Their ids end with `_1`, `_2`, ... as the old tool's did. Raises `OperatorError` for wrong parameters.
    """
    table = OFF_VALUES.get(case.name, {})
    operator = operator_of(case.name, case.param)
    complete = read(case.name, operator.schema, case.param)
    in_use = [(key, value) for key, value in table.items() if complete[key] != value]
    for number, (key, value) in enumerate(in_use, start=1):
        changed = _with(case, key, value)
        yield OptimizationOff(key, f"{key}={int(value)}", replace(changed, ids=f"{case.ids}_{number}"))


def _with(case: Case, key: str, value: int | bool) -> Case:
    """The case with another parameter, its operands found again by their names."""
    before = [name.rstrip("?") for name in operator_of(case.name, case.param).inputs]
    param = {**case.param, key: value}
    after = [name.rstrip("?") for name in operator_of(case.name, param).inputs]
    refs: Mapping[str, TensorRef | None] = dict(zip(before, case.inputs))
    declared: Mapping[str, Declared] = dict(zip(before, case.declared_inputs))
    return replace(
        case,
        param=param,
        inputs=tuple(refs.get(name) for name in after),
        declared_inputs=tuple(declared[name] for name in takewhile(declared.__contains__, after)),
        written=(),
    )
