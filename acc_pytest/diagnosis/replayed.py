"""Outcomes of replay in rows: checks beside those against golden, and the way back.

It is kept in the row's context, so that a row can be judged again without the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from ..judging.derive import by_tolerance, is_exact, is_zero, least_tolerance
from ..judging.replay import context_of, is_stated, measurement_of
from ..judging.slices import needed_rounding
from ..judging.threshold import SET, Threshold
from ..judging.tolerance import PER_LAYER, SAFETY
from ..judging.verdict import Check
from ..reporting.row import REPLAY, TIMES_LIFTED, Row, Scalar
from .recomputation import Recomputation

ACCUMULATED = f"{REPLAY}accumulated"
"""In the context of a row that passes as accumulated rounding: the T of its bounds, 0 for a choice."""
_FOLLOW_FROM_T = frozenset({
    "relative_euclidean_distance", "cosine_similarity", "max_absolute_error", "typical_row_error",
    "worst_row_error", "worst_channel_error", "bulk_error", "bias",
})  # fmt: skip
_WORDS = ("outcome", "why", "reason", "note", "lacking", "culprit")
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_WORDS, (str,)),
    **{one.name: (float, int, type(None)) for one in fields(Recomputation) if one.name not in _WORDS},
}
_WHAT = {
    "error": "",
    "row_error": "the worst row; ",
    "typical_row_error": "rows that weigh alike; ",
    "bias": "too large or small as a whole, beside u/4 and 4 standard errors; ",
    "part_bias": "a sixteenth of the channels too large or small; ",
    "golden_error": "with golden's weights and numbers; ",
}
"""What a measure is of, before the reason for its bound."""


def with_replay(row: Row, recomputed: Recomputation) -> Row:
    """The row of a pair with what became of the operator of mine on its own inputs."""
    values = {field.name: getattr(recomputed, field.name) for field in fields(recomputed)}
    entries: dict[str, Scalar] = {
        REPLAY + name: value for name, value in values.items() if value is not None and value != ""
    }
    return as_replayed(replace(row, context={**row.context, **entries}))


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
    """The outcome of replay for the pair; `None` where the run was without, or its file is broken."""
    if row.replayed is None:
        return None
    values: dict[str, Any] = {
        name: row.context[REPLAY + name] for name in _KINDS if REPLAY + name in row.context
    }
    sound = all(isinstance(value, _KINDS[name]) for name, value in values.items())
    if not values or not sound or values.get("outcome", "") not in ("", "right", "wrong"):
        return None
    return Recomputation(**values)


def stored_replay(row: Row) -> Recomputation | None:
    """The outcome for the operator of a row of an earlier run: by replay, or from looking for its cause."""
    replay = replay_of(row)
    if replay is not None or row.cause is None or not row.cause.local:
        return replay
    return Recomputation(row.cause.local, row.cause.local_error)


def as_replayed(row: Row) -> Row:
    """A row with the checks of what its context says of replay. Wrong on its own inputs fails, whatever the
    comparison with golden says.
    """
    replay = replay_of(row)
    if replay is None:
        return row
    checks = (*(check for check in row.checks if not check.metric.startswith(REPLAY)), *_checks(replay))
    if replay.outcome != "wrong":
        note = replay.note if replay.outcome else f"not computed again: {replay.why}"
        return _noted(replace(row, checks=checks), note)
    sentence = replay.sentence
    reasons = tuple(reason for reason in row.reasons if reason != sentence)
    failing = replace(
        row, verdict="fail", skipped=False, sentence=sentence, checks=checks, reasons=(sentence, *reasons)
    )
    return _noted(failing, replay.note)


def _noted(row: Row, note: str) -> Row:
    present = not note or note in (*row.notes, *row.reasons)
    return row if present else replace(row, notes=(*row.notes, note))


def may_accumulate(row: Row) -> bool:
    """Whether a row fails by derived thresholds alone: a bound that somebody has set is meant, and what a
    gate finds (`baseline.mismatches`) is no rounding. Its shapes may differ because rounding has changed a
    choice."""
    if row.verdict == "incomparable":
        return row.shapes_differ and not row.fed
    failing = [check for check in row.checks if not check.passed]
    return row.verdict == "fail" and not any("." in check.metric or SET in check.reason for check in failing)


def needed_tolerance(row: Row) -> float:
    """The least T at which the bounds of a failing row hold; infinite where no T decides: NaN, zeros, whole
    numbers, statistics alone, metrics of the user's own."""
    if not may_accumulate(row) or is_stated(row.statistics):
        return math.inf
    failing = {check.metric for check in row.checks if not check.passed}
    try:
        measurement = measurement_of(row.statistics)
    except (KeyError, TypeError, ValueError):
        return math.inf
    if is_exact(measurement) or is_zero(measurement) or not failing <= _FOLLOW_FROM_T:
        return math.inf
    return max(least_tolerance(measurement), PER_LAYER * needed_rounding(measurement))


def as_accumulated(row: Row, t: float) -> Row:
    """A failing row whose error is rounding that has accumulated, up to T `t`: bounds that do not hold follow
    from that. A row that cannot be held against a T has other rows or numbers, which rounding chose: a tie.
    """
    context: dict[str, Scalar] = {**row.context, ACCUMULATED: t}
    if not t:
        return replace(
            row,
            verdict="tie",
            sentence=f"{row.sentence}: a choice above differs by rounding that has accumulated",
            context=context,
            checks=tuple(check if check.passed else check._replace(passed=True) for check in row.checks),
        )
    reason = (
        f"T = {t:.3g}: rounding that has accumulated, {SAFETY:g} times what the operators up to here make"
    )
    thresholds = by_tolerance(context_of(row.context), measurement_of(row.statistics), t, reason)
    lifted = {threshold.metric: threshold for threshold in thresholds}
    checks = tuple(
        check if check.passed else Check.of(_with_bound(lifted[check.metric], check), check.measured)
        for check in row.checks
    )
    times = max(check.excess for check in row.checks if not check.passed)
    sentence = f"rounding that has accumulated, {times:.3g} times the bound without it: {reason}"
    return replace(
        row,
        verdict="pass",
        sentence=sentence,
        checks=checks,
        reasons=(),
        notes=(*row.notes, sentence),
        context={**context, TIMES_LIFTED: times},
    )


def _with_bound(threshold: Threshold, check: Check) -> Threshold:
    return threshold._replace(reason=f"{threshold.reason} (else {check.bound})")


def _checks(replay: Recomputation) -> Iterator[Check]:
    measured = replay.measured
    for name, (error, allowed) in measured.items():
        yield _check(name, error, allowed, f"{_WHAT[name]}{replay.reason}")
    beyond = any(error > allowed for error, allowed in measured.values())
    if replay.outcome == "wrong" and not beyond:
        yield _check("wrong", 1.0, 0.0, replay.why or replay.reason)


def _check(name: str, measured: float, allowed: float, reason: str) -> Check:
    return Check(REPLAY + name, measured, allowed, False, reason, measured <= allowed)
