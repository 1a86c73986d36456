"""Rows of a case whose outputs a device computes again, also with its optimisations switched off.

The dump's outputs do not count here; its inputs do. Files that the device's outputs are kept in while they
are judged are gone afterwards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol

from ..errors import AccError
from ..operators import operator_of
from ..operators.param import read
from ..reporting.row import Row
from ..tensors.ref import TensorRef
from .backends import Backend, rerun
from .case import Case, Declared
from .rows import case_row, unjudged

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
        rows = [_with_sentence(row, sentence) if row.red or not red else row for row in rows]
    return [*rows, *(row for copy in copies for row in copy.rows)]


def _rows(case: Case, backend: Backend, check: CheckCase, running: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as home:
        return [_of_device(row) for row in check(rerun(case, backend, home), running=running)]


def _of_device(row: Row) -> Row:
    """The row of an output that was computed again and is in no file any more."""
    notes = (*row.notes, "judged is what the device computed from the dumped inputs")
    return replace(row, mine=replace(row.mine, path=""), notes=notes)


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
        return unjudged(row, f"not tried with {off.change}: {row.sentence}", skipped=True)
    return replace(row, sentence=f"with {off.change}: {row.sentence}")


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
        return f"with {changes} the device's result passes: suspect the optimisation {names}"
    if changing:
        return f"passes as dumped, and not with {changes}"
    if not red:
        return ""
    tried = ", ".join(copy.off.change for copy in judged)
    return f"fails with {tried} as well: no optimisation explains it"


def _with_sentence(row: Row, sentence: str) -> Row:
    if not row.red:
        return replace(row, notes=(*row.notes, sentence))
    return replace(row, sentence=f"{row.sentence}; {sentence}", reasons=(*row.reasons, sentence))


OFF_VALUES: Mapping[str, Mapping[str, int | bool]] = {
    "SelfAttentionOperation": {
        "maskType": 0,
        "batchRunStatusEnable": False,
        "isTriuMask": 0,
        "kernelType": 0,
        "clampType": 0,
    },
    "PagedAttentionOperation": {
        "maskType": 0,
        "batchRunStatusEnable": False,
        "quantType": 0,
        "hasQuantOffset": False,
        "compressType": 0,
        "calcType": 0,
    },
}
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
