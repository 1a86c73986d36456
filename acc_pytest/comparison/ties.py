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
class _Kept:
    """What the context of a row says: how many choices differ, how many of these come after a tie, how far
    the values of the others are apart at most, and how far they may be."""

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
    kept = _kept(chosen, reached)
    values = (kept.count, kept.gap, kept.allowed)
    context = {**row.context, **dict(zip(_CONTEXT, values)), **({AFTER: kept.after} if kept.after else {})}
    return as_tie(replace(row, context=context))


def _kept(chosen: Chosen, reached: torch.Tensor | None) -> _Kept:
    own, differing = chosen.ties, chosen.differing
    after = torch.zeros_like(own)
    if reached is not None and len(reached) == len(own):
        after = chosen.excused(reached) & ~own
    judged = differing.any(-1) & ~after
    gaps, allowed = chosen.gaps[judged], chosen.allowed[judged]
    if not len(gaps):
        return _Kept(int(differing.sum()), int(differing.sum()), 0.0, float(chosen.allowed.max()))
    near = gaps <= allowed
    shown = int((gaps if bool(near.all()) else gaps.masked_fill(near, -1.0)).argmax())
    return _Kept(int(differing.sum()), int(differing[after].sum()), float(gaps[shown]), float(allowed[shown]))


def as_tie(row: Row) -> Row:
    """A failing row of choices as a tie, where its context says that it is one; else with a note."""
    kept = _of_context(row)
    if kept is None or not _only_choices_differ(row):
        return row
    many = f"{kept.count} of {row.counts.get('elements')} choices differ"
    behind = f"{kept.after} of them of tokens after a tie" if kept.after else ""
    if not kept.gap <= kept.allowed:
        apart = f"up to {kept.gap:.3g} apart" if math.isfinite(kept.gap) else "that are none, or chosen twice"
        note = f"{many}, among values {apart} (of a tie at most {kept.allowed:.3g})"
        note += f"; {behind}" if behind else ""
        return replace(row, notes=(*(other for other in row.notes if other != note), note))
    reason = "T times rms of the values chosen from: what these may be off"
    checks = (
        *(_off(check) if check.metric == COUNT else check for check in row.checks),
        Check(GAP, kept.gap, kept.allowed, False, reason, True),
    )
    return replace(row, verdict="tie", sentence=_sentence(many, behind, kept), reasons=(), checks=checks)


def _sentence(many: str, behind: str, kept: _Kept) -> str:
    if kept.after == kept.count:
        return f"{many}, each of a token after a tie"
    among = "equal values" if kept.gap == 0 else f"values at most {kept.gap:.3g} apart"
    each = f"{behind}, the others among" if behind else "each among"
    return f"{many}, {each} {among} (allowed {kept.allowed:.3g})"


def _of_context(row: Row) -> _Kept | None:
    count, gap, allowed = (row.context.get(name) for name in _CONTEXT)
    after = row.context.get(AFTER, 0)
    whole = type(count) is int and type(after) is int
    if not whole or type(gap) is not float or type(allowed) is not float:
        return None
    assert isinstance(count, int)
    assert isinstance(after, int)
    return _Kept(count, after, gap, allowed)


def _only_choices_differ(row: Row) -> bool:
    failed = [check.metric for check in row.checks if not check.passed]
    return row.verdict == "fail" and failed == [COUNT]


def _off(check: Check) -> Check:
    """The count of differing indices without a bound: that of the values takes its place."""
    return check._replace(allowed=math.inf, reason="a tie: the values chosen from decide", passed=True)
