"""Whether another choice than golden's (top-k, argmax, sort) is one among equals: a tie."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import AccError
from ..judging.verdict import Check
from ..lazy_torch import torch
from ..mapping.pair import Pair
from ..reporting.row import Row
from ..tensors.source import Source
from .chosen import Chosen, chosen_of
from .token_rows import TokenRows

COUNT = "mismatches"
GAP = "choice_gap"
"""The metric in the check of a tie: the largest difference of two values that were chosen among."""
_CONTEXT = ("choices", GAP, "choice_allowed")
AFTER = "choices_after_tie"
"""What a row keeps of it in its context, so that it can be judged again: beside these, how many of the
differing choices are of tokens that come after a tie."""


@dataclass(frozen=True, slots=True)
class _Tie:
    """The numbers in the context of a row: how many choices differ, how many of these come after a tie, how
    far the values of the others are apart at most, and how far they may be."""

    count: int
    after: int
    gap: float
    allowed: float


def with_choices(
    row: Row,
    pair: Pair,
    golden: Source,
    mine: Source,
    reached: torch.Tensor | None = None,
    rows: TokenRows | None = None,
) -> Row:
    """The row of a choice that fails with what is known of the values chosen from; a tie where it is one.

    `reached` are the tokens that another tie reaches, by the rows of the choices, of which only `rows` are
    judged. Other rows as they are.
    """
    if not _only_choices_differ(row) or not (pair.golden.chosen_from and pair.mine.chosen_from):
        return row
    try:
        chosen = chosen_of(pair, golden, mine)
    except (AccError, OSError):
        return row  # of tensors that cannot be read nothing is known, and the pair fails
    if chosen is None:
        return row
    if rows is not None and math.prod(rows.leading) == len(chosen.golden):
        chosen, reached = chosen.of(rows.golden), None if reached is None else reached[rows.golden]
    tie = _tie(chosen, reached)
    values = (tie.count, tie.gap, tie.allowed)
    context = {**row.context, **dict(zip(_CONTEXT, values)), **({AFTER: tie.after} if tie.after else {})}
    return as_tie(replace(row, context=context))


def _tie(chosen: Chosen, reached: torch.Tensor | None) -> _Tie:
    ties, differing = chosen.ties, chosen.differing
    after = torch.zeros_like(ties)
    if reached is not None and len(reached) == len(ties):
        after = chosen.excused(reached) & ~ties
    judged = differing.any(-1) & ~after
    gaps, allowed = chosen.gaps[judged], chosen.allowed[judged]
    if not len(gaps):
        return _Tie(int(differing.sum()), int(differing.sum()), 0.0, float(chosen.allowed.max()))
    near = gaps <= allowed
    worst = int((gaps if bool(near.all()) else gaps.masked_fill(near, -1.0)).argmax())
    return _Tie(int(differing.sum()), int(differing[after].sum()), float(gaps[worst]), float(allowed[worst]))


def as_tie(row: Row) -> Row:
    """A failing row of choices as a tie, where its context says that it is one; else with a note."""
    tie = _of_context(row)
    if tie is None or not _only_choices_differ(row):
        return row
    many = f"{tie.count} of {row.counts.get('elements')} choices differ"
    behind = f"{tie.after} of them of tokens after a tie" if tie.after else ""
    if not tie.gap <= tie.allowed:
        apart = f"up to {tie.gap:.3g} apart" if math.isfinite(tie.gap) else "that are none, or chosen twice"
        note = f"{many}, among values {apart} (of a tie at most {tie.allowed:.3g})"
        note += f"; {behind}" if behind else ""
        return replace(row, notes=(*(present for present in row.notes if present != note), note))
    reason = "T times rms of the values chosen from: what these may be off"
    checks = (
        *(_off(check) if check.metric == COUNT else check for check in row.checks),
        Check(GAP, tie.gap, tie.allowed, False, reason, True),
    )
    return replace(row, verdict="tie", sentence=_sentence(many, behind, tie), reasons=(), checks=checks)


def _sentence(many: str, behind: str, tie: _Tie) -> str:
    if tie.after == tie.count:
        return f"{many}, each of a token after a tie"
    among = "equal values" if tie.gap == 0 else f"values at most {tie.gap:.3g} apart"
    subject = f"{behind}, the others among" if behind else "each among"
    return f"{many}, {subject} {among} (allowed {tie.allowed:.3g})"


def _of_context(row: Row) -> _Tie | None:
    count, gap, allowed = (row.context.get(name) for name in _CONTEXT)
    after = row.context.get(AFTER, 0)
    counted = type(count) is int and type(after) is int
    if not counted or type(gap) is not float or type(allowed) is not float:
        return None
    assert isinstance(count, int)
    assert isinstance(after, int)
    return _Tie(count, after, gap, allowed)


def _only_choices_differ(row: Row) -> bool:
    failed = [check.metric for check in row.checks if not check.passed]
    return row.verdict == "fail" and failed == [COUNT]


def _off(check: Check) -> Check:
    """The count of differing indices without a bound: that of the values takes its place."""
    return check._replace(allowed=math.inf, reason="a tie: the values chosen from decide", passed=True)
