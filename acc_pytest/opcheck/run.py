"""A case in, one row an output out; and for entries, which may not even become a case.

Whatever is wrong with a case (no such operator, parameters that are no JSON, a short file, a type that the
operator does not write) becomes the sentence of its row: nothing is raised for it, and nothing left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import AccError, Incomparable, NoPayload
from ..guard import guarded
from ..judging.threshold import ThresholdRule
from ..metrics import measure
from ..reporting.row import Row
from ..tensors import hifloat8
from ..tensors.dtypes import by_name
from ..tensors.mapped import check_mapped
from ..tensors.source import TensorSource
from .as_right import settled
from .backends import Backend
from .bounds import factor_of, further_checks, matching
from .case import Case
from .chip import on_its_chip
from .draws import is_drawn
from .entry import Entry
from .errors_of import Errors, errors_of
from .golden import Expected, Golden, check_outputs, refuse_unknown, refuse_unseen
from .on_device import rows_on_device
from .prepare import prepare
from .rows import case_row, described, dtype_name, judged_row, ulp_note, unjudged
from .standards import About, Second, Standard
from .standards.ascend import ASCEND

ROWS = 1000
"""Numbers of rows that each entry has for its outputs."""

EXACT_UP_TO = 1 << 22
"""Elements of a case up to which the float64 values are computed even where nothing fails."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How outputs are judged: the standard, the other device's case, the user's metrics and bounds."""

    standard: Standard
    theirs: Golden | None
    custom: Sequence[Any]
    rules: Sequence[ThresholdRule]


Rules = Callable[[Case], Sequence[ThresholdRule]]
"""Gives the bounds of a case that people set themselves, weakest first."""


def no_rules(case: Case) -> Sequence[ThresholdRule]:
    """Nothing beside the standard."""
    return ()


def run_entry(
    entry: Entry,
    standard: Standard = ASCEND,
    *,
    given: str = "",
    other: str = "",
    soc: str = "",
    precision: str = "keep",
    backend: Backend | None = None,
    optimization: bool = False,
    test_id: str = "",
    custom: Sequence[Any] = (),
    rules: Rules = no_rules,
) -> list[Row]:
    """`run_case` of an entry; `given` and `other` are directories to look for files in.

    With a `backend` its outputs are judged instead of the dump's, with `optimization` also those with each
    optimisation switched off. What `rules` raises of ours is said in the row.
    """
    if entry.problem:
        return [refused_entry(entry, standard, entry.problem, test_id, entry.skipped)]
    try:
        with guarded(f"checking {entry.full_name} of {entry.source}", (OSError,)):
            refuse_unknown(entry.name)
            case = replace(prepare(entry, given, soc), precision=precision)
            second = replace(prepare(entry, other, soc), precision=precision) if other else None
            bounds = rules(case)

            def check(one: Case, number: int) -> list[Row]:
                running = entry.number * ROWS + number
                return run_case(
                    one, standard, other=second, test_id=test_id, running=running, custom=custom, rules=bounds
                )

            if backend is None:
                return on_its_chip(case, lambda one: check(one, 0))
            return rows_on_device(case, backend, check, optimization=optimization)
    except NoPayload as error:
        return [refused_entry(entry, standard, str(error), test_id, skipped=True)]
    except (AccError, OSError) as error:
        return [refused_entry(entry, standard, str(error), test_id)]


def refused_entry(
    entry: Entry, standard: Standard, reason: str, test_id: str = "", skipped: bool = False
) -> Row:
    """The row of an entry that did not become a case, and why."""
    bare = Case(entry.name, entry.full_name, entry.ids, {}, (), (), source=entry.source, step=entry.step)
    row = case_row(bare, standard.name, test_id, entry.number * ROWS)
    return unjudged(row, reason, skipped)


def run_case(
    case: Case,
    standard: Standard = ASCEND,
    *,
    other: Case | None = None,
    test_id: str = "",
    running: int = 0,
    custom: Sequence[Any] = (),
    rules: Sequence[ThresholdRule] = (),
) -> list[Row]:
    """Compute the outputs of `case` from its inputs and judge those of the dump, one row each.

    `other` is the same case of a second device, for standards that need one. `rules` (weakest first)
    bound further metrics, or stretch the standard's bound.
    """
    row = case_row(case, standard.name, test_id, running)
    try:
        with guarded(f"checking {case.full_name} of {case.source}", (OSError,)):
            golden = Golden(case)
            check_outputs(golden)
            refuse_unseen(golden)
            way = _Way(standard, Golden(other) if other is not None else None, custom, rules)
            found = [_row_or_reason(row, golden, expected, way) for expected in golden.expected()]
        return found or [unjudged(row, f"{case.full_name} has no output that could be judged")]
    except NoPayload as error:
        return [unjudged(row, str(error), skipped=True)]
    except (AccError, OSError) as error:
        return [unjudged(row, str(error))]


def _row_or_reason(row: Row, golden: Golden, expected: Expected, way: _Way) -> Row:
    row = described(row, expected)
    try:
        check_mapped()
        with guarded(f"judging {expected.slot}"):
            return _row(row, golden, expected, way)
    except AccError as error:
        return unjudged(row, str(error))


def _row(row: Row, golden: Golden, expected: Expected, way: _Way) -> Row:
    """One output judged. Raises `AccError` for one that cannot be."""
    mine = _comparable(expected)
    reference = settled(golden, expected, mine)
    dtype = dtype_name(expected.golden, golden.param)
    rules = matching(way.rules, golden.case, dtype)
    about = _about(golden, dtype, factor_of(rules))
    if about.factor != 1:
        row = replace(row, case={**row.case, "factor": about.factor})
    rule = way.standard.rule(about)
    errors = errors_of(reference, mine, rule, dtype)
    against = _against_exact(golden, expected, mine, way, about)
    measurement = measure(
        TensorSource(_shown(reference, dtype)), TensorSource(_shown(mine, dtype)), custom=way.custom
    )
    judged = way.standard.judge(about, errors, against)
    given = golden.inputs[0][0] if golden.inputs[0] else None
    if way.standard.drawn and given is not None and is_drawn(golden.case.name, golden.param, expected.number):
        judged = way.standard.drawn(about, expected.number, given, reference, mine)
    judged = replace(judged, checks=judged.checks + further_checks(rules, measurement))
    failed = not all(check.passed for check in judged.checks)
    exact, exact_errors = None, None
    if about.kind == "float" and expected.slot.startswith("output") and mine.numel():
        if failed or golden.elements <= EXACT_UP_TO:
            exact = golden.exact(expected.number)
        if exact is not None and exact.numel() == mine.numel():
            exact_errors = errors_of(exact.reshape(mine.shape), mine, rule, dtype)
    notes = _notes(golden, expected, mine)
    if failed and (note := ulp_note(expected, errors, exact, dtype)):
        notes += (note,)
    return judged_row(row, expected, errors, judged, measurement, exact_errors, notes)


def _comparable(expected: Expected) -> torch.Tensor:
    """Mine's tensor. Raises `Incomparable` where the two cannot be compared element by element."""
    golden, mine, slot = expected.golden, expected.mine, expected.slot
    if mine is None:
        raise Incomparable(f"{slot} has no file in the dump, but the operator writes it")
    if mine.numel() != golden.numel():
        raise Incomparable(
            f"{slot} has the shape {list(mine.shape)}, but the operator writes {list(golden.shape)}"
        )
    if mine.dtype != golden.dtype:
        raise Incomparable(
            f"{slot} is {mine.dtype}, but the operator writes {golden.dtype} with these parameters and inputs"
        )
    return mine


def _against_exact(
    golden: Golden, expected: Expected, mine: torch.Tensor, way: _Way, about: About
) -> tuple[Errors, ...]:
    """The errors of mine and of the second golden against the exact value; empty where none is asked for.

    Raises `Incomparable` where one of them is not to be had.
    """
    whose = way.standard.second(about, way.theirs is not None)
    if whose is Second.NONE:
        return ()
    truth = golden.exact(expected.number)
    if truth is None:
        raise Incomparable(f"{expected.slot} has no exact value to judge two goldens by")
    truth = truth.reshape(mine.shape)
    if whose is Second.COMPUTED:
        second = golden.low(expected.number).reshape(mine.shape)
    else:
        second = _of_second_device(way.theirs, expected).reshape(mine.shape)
    rule = way.standard.rule(about)
    return tuple(errors_of(truth, one, rule, about.dtype) for one in (mine, second))


def _of_second_device(theirs: Golden | None, expected: Expected) -> torch.Tensor:
    """The other device's output. Raises `Incomparable` where it lacks it."""
    for one in theirs.expected() if theirs is not None else ():
        if one.number == expected.number:
            return _comparable(one)
    raise Incomparable(
        f"the second device's dump has no {expected.slot}; give a complete one with --acc-opcheck-other"
    )


def _notes(golden: Golden, expected: Expected, mine: torch.Tensor) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if tuple(mine.shape) != tuple(expected.golden.shape):
        notes += (f"dumped as {list(mine.shape)}, written as {list(expected.golden.shape)}",)
    if not golden.case.clean:
        notes += ("inputs are those of after the execution: the dump has none of before",)
    if expected.number == 0 and golden.unseen and golden.outputs:
        places = ", ".join(f"input[{n}]" for n in golden.unseen)
        notes += (f"not judged: {places}, written in place and not dumped after execution",)
    return notes


def _about(golden: Golden, dtype: str, factor: float) -> About:
    kind = "float" if dtype == "hifloat8" else by_name(dtype).kind
    return About(golden.case.name, golden.param, dtype, kind, _length(golden), factor)


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
