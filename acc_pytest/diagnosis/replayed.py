"""What replay found of a pair in its row: checks beside those against golden, and the way back.

It is kept in the row's context, so that a row can be judged again without the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from ..judging.verdict import Check
from ..reporting.row import REPLAY, Row, Scalar
from .recomputation import WRONG, Recomputation

ACCUMULATED = f"{REPLAY}accumulated"
"""In the context of a row whose error was found to be rounding that has accumulated."""
_KINDS: Mapping[str, tuple[type, ...]] = {
    "outcome": (str,),
    "why": (str,),
    "reason": (str,),
    **{name: (float, int, type(None)) for name in ("error", "noise", "allowed", "row_error", "row_allowed")},
}


def with_replay(row: Row, recomputed: Recomputation) -> Row:
    """The row of a pair with what became of the operator of mine on its own inputs."""
    values = {one.name: getattr(recomputed, one.name) for one in fields(recomputed)}
    kept: dict[str, Scalar] = {
        REPLAY + name: value for name, value in values.items() if value is not None and value != ""
    }
    return as_replayed(replace(row, context={**row.context, **kept}))


def judged_by_replay(row: Row, recomputed: Recomputation) -> Row:
    """The row of an operator that nothing but replay judges."""
    if not recomputed.outcome:
        why = f"not computed again: {recomputed.why}"
        row = replace(row, verdict="incomparable", sentence=why, reasons=(why,), skipped=True)
    else:
        error = "" if recomputed.error is None else f": relative L2 error {recomputed.error:.3g}"
        row = replace(row, verdict="pass", sentence=f"the operator is right on its own inputs{error}")
    return with_replay(row, recomputed)


def replay_of(row: Row) -> Recomputation | None:
    """What replay found of the pair; `None` where the run was without, or its file holds something else."""
    if row.replayed is None:
        return None
    found: dict[str, Any] = {
        name: row.context[REPLAY + name] for name in _KINDS if REPLAY + name in row.context
    }
    sound = all(isinstance(value, _KINDS[name]) for name, value in found.items())
    if not found or not sound or found.get("outcome", "") not in ("", "right", "wrong"):
        return None
    return Recomputation(**found)


def stored_replay(row: Row) -> Recomputation | None:
    """What is known of the operator of a row of an earlier run: by replay, or from looking for its cause."""
    found = replay_of(row)
    if found is not None or row.cause is None or not row.cause.local:
        return found
    return Recomputation(row.cause.local, row.cause.local_error)


def as_replayed(row: Row) -> Row:
    """A row with the checks of what its context says of replay. Wrong on its own inputs fails, whatever the
    comparison with golden says.
    """
    found = replay_of(row)
    if found is None:
        return row
    checks = (*(check for check in row.checks if not check.metric.startswith(REPLAY)), *_checks(found))
    if found.outcome != "wrong":
        note = f"not computed again: {found.why}"
        said = found.outcome or note in (*row.notes, *row.reasons)
        notes = row.notes if said else (*row.notes, note)
        return replace(row, checks=checks, notes=notes)
    said = f"{WRONG}{': ' * bool(found.said)}{found.said}"
    others = tuple(reason for reason in row.reasons if reason != said)
    return replace(row, verdict="fail", skipped=False, sentence=said, checks=checks, reasons=(said, *others))


def may_accumulate(row: Row) -> bool:
    """Whether a row fails by thresholds alone: what a gate finds (`baseline.mismatches`) is no rounding."""
    return row.verdict == "fail" and not any("." in check.metric for check in row.checks if not check.passed)


def as_accumulated(row: Row) -> Row:
    """A failing row of which every operator up to here is right: its error is rounding, however much."""
    why = "rounding that has accumulated: each operator up to here is right on its own inputs"
    checks = tuple(
        check
        if check.passed
        else replace(check, allowed=math.inf, reason=f"{why} (else {check.bound})", passed=True)
        for check in row.checks
    )
    failed = next((check for check in row.checks if not check.passed), None)
    context = {**row.context, ACCUMULATED: True}
    said = f"; {failed.metric} is not {failed.bound}" if failed is not None else ""
    return replace(
        row,
        verdict="pass",
        sentence=f"{why}{said}",
        checks=checks,
        reasons=(),
        notes=(*row.notes, why),
        context=context,
    )


def _checks(found: Recomputation) -> Iterator[Check]:
    if found.error is not None and found.allowed is not None:
        yield _check("error", found.error, found.allowed, found.reason)
    if found.row_error is not None and found.row_allowed is not None:
        yield _check("row_error", found.row_error, found.row_allowed, f"the worst row; {found.reason}")
    known = ((found.error, found.allowed), (found.row_error, found.row_allowed))
    beyond = any(error is not None and allowed is not None and error > allowed for error, allowed in known)
    if found.outcome == "wrong" and not beyond:
        yield _check("wrong", 1.0, 0.0, found.why or found.reason)


def _check(name: str, measured: float, allowed: float, reason: str) -> Check:
    return Check(REPLAY + name, measured, allowed, False, reason, measured <= allowed)
