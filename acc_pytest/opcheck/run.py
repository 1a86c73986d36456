"""A case in, one row an output out; and for entries, which may not even become a case.

Whatever is wrong with a case (no such operator, parameters that are no JSON, a short file, a type that the
operator does not write) becomes the sentence of its row: nothing is raised for it, and nothing left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import AccError, NoPayload
from ..metrics import measure
from ..reporting.row import Row
from ..tensors import hifloat8
from ..tensors.dtypes import by_name
from ..tensors.source import TensorSource
from .case import Case
from .entry import Entry
from .errors_of import Errors, errors_of
from .golden import Expected, Golden, check_outputs, refuse_unknown, refuse_unseen
from .prepare import prepare
from .rows import case_row, described, dtype_name, judged_row, ulp_note, unjudged
from .standards import About, Standard
from .standards.ascend import ASCEND
from .ties import settled

EXACT_UP_TO = 1 << 22
"""Elements of a case up to which the float64 values are computed even where nothing fails."""


def run_entry(
    entry: Entry,
    standard: Standard = ASCEND,
    *,
    given: str = "",
    other: str = "",
    soc: str = "",
    test_id: str = "",
    custom: Sequence[Any] = (),
) -> list[Row]:
    """`run_case` of an entry; `given` and `other` are directories to look for files in."""
    running = entry.number * 1000
    bare = Case(entry.name, entry.full_name, entry.ids, {}, (), (), source=entry.source)
    row = case_row(bare, standard.name, test_id, running)
    if entry.problem:
        return [unjudged(row, entry.problem, entry.skipped)]
    try:
        refuse_unknown(entry.name)
        case = prepare(entry, given, soc)
        second = prepare(entry, other, soc) if other else None
    except NoPayload as error:
        return [unjudged(row, str(error), skipped=True)]
    except (AccError, OSError) as error:
        return [unjudged(row, str(error))]
    return run_case(case, standard, other=second, test_id=test_id, running=running, custom=custom)


def run_case(
    case: Case,
    standard: Standard = ASCEND,
    *,
    other: Case | None = None,
    test_id: str = "",
    running: int = 0,
    custom: Sequence[Any] = (),
) -> list[Row]:
    """Compute the outputs of `case` from its inputs and judge those of the dump, one row each.

    `other` is the same case of a second device, for standards that need one.
    """
    row = case_row(case, standard.name, test_id, running)
    try:
        golden = Golden(case)
        check_outputs(golden)
        refuse_unseen(golden)
        theirs = Golden(other) if other is not None else None
        return [_row(row, golden, expected, standard, theirs, custom) for expected in golden.expected()] or [
            unjudged(row, f"{case.full_name} has no output that could be judged")
        ]
    except NoPayload as error:
        return [unjudged(row, str(error), skipped=True)]
    except (AccError, OSError) as error:
        return [unjudged(row, str(error))]


def _row(
    row: Row,
    golden: Golden,
    expected: Expected,
    standard: Standard,
    theirs: Golden | None,
    custom: Sequence[Any],
) -> Row:
    """One output judged."""
    row = described(row, expected)
    mine = expected.mine
    if mine is None:
        return unjudged(row, f"{expected.slot} has no file in the dump, although the operator writes it")
    wrong = _wrong(expected.golden, mine)
    if wrong:
        return unjudged(row, f"{expected.slot} {wrong}")
    reference = expected.golden.reshape(mine.shape)
    if golden.case.name == "SortOperation" and expected.number == 1 and golden.inputs[0][0] is not None:
        reference = settled(golden.inputs[0][0], golden.results[0], reference, mine)
    dtype = dtype_name(expected.golden, golden.param)
    about = _about(golden, dtype)
    try:
        rule = standard.rule(about)
    except AccError as error:
        return unjudged(row, str(error))
    second: Errors | None = None
    if standard.exact and about.kind == "float":
        truth = golden.exact(expected.number)
        if truth is None or theirs is None:
            return unjudged(row, f"{standard.name} needs the results of a second device: --acc-opcheck-other")
        reference_of_all = truth.reshape(mine.shape)
        errors = errors_of(reference_of_all, mine, rule, dtype)
        for one in theirs.expected():
            if one.number == expected.number and one.mine is not None:
                second = errors_of(reference_of_all, one.mine.reshape(mine.shape), rule, dtype)
        if second is None:
            return unjudged(row, f"the second device has no {expected.slot}")
    else:
        errors = errors_of(reference, mine, rule, dtype)
    judged = standard.judge(about, errors, second)
    failed = not all(check.passed for check in judged.checks)
    exact, exact_errors = None, None
    if about.kind == "float" and expected.slot.startswith("output") and mine.numel():
        if failed or golden.elements <= EXACT_UP_TO:
            exact = golden.exact(expected.number)
        if exact is not None and exact.numel() == mine.numel():
            exact_errors = errors_of(exact.reshape(mine.shape), mine, rule, dtype)
    notes = _notes(row, golden, expected, mine)
    if failed and (note := ulp_note(expected, errors, exact, dtype)):
        notes += (note,)
    shown = _shown(reference, dtype), _shown(mine, dtype)
    measurement = measure(TensorSource(shown[0]), TensorSource(shown[1]), custom=custom)
    return judged_row(row, expected, errors, judged, measurement, exact_errors, notes)


def _wrong(golden: torch.Tensor, mine: torch.Tensor) -> str:
    """Why two tensors cannot be compared element by element; empty if they can."""
    if mine.numel() != golden.numel():
        return f"has the shape {list(mine.shape)}, but the operator writes {list(golden.shape)}"
    if mine.dtype != golden.dtype:
        return f"is {mine.dtype}, but the operator writes {golden.dtype} with these parameters and inputs"
    return ""


def _notes(row: Row, golden: Golden, expected: Expected, mine: torch.Tensor) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if tuple(mine.shape) != tuple(expected.golden.shape):
        notes += (f"dumped as {list(mine.shape)}, written as {list(expected.golden.shape)}",)
    if not golden.case.clean:
        notes += ("inputs are those of after the execution: the dump has none of before",)
    if expected.number == 0 and golden.unseen and golden.outputs:
        places = ", ".join(f"input[{n}]" for n in golden.unseen)
        notes += (f"not judged: {places}, written in place and not dumped after execution",)
    return notes


def _about(golden: Golden, dtype: str) -> About:
    case = golden.case
    kind = "float" if dtype == "hifloat8" else by_name(dtype).kind
    outputs = tuple(dtype_name(one, golden.param) for one in golden.results)
    return About(case.name, golden.param, dtype, kind, _length(golden), outputs)


def _length(golden: Golden) -> int | None:
    """How many products an element of a linear operator sums, as ATB counts them; else `None`."""
    x = golden.inputs[0][0] if golden.inputs[0] else None
    if x is None or x.ndim < 2:
        return None
    if golden.case.name == "LinearOperation":
        return int(x.shape[-2] if golden.param.get("transposeA") else x.shape[-1])
    return 2 * int(x.shape[-1]) if golden.case.name == "LinearParallelOperation" else None


def _shown(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return hifloat8.decode(tensor.reshape(-1)).reshape(tensor.shape) if dtype == "hifloat8" else tensor
