"""Rows of pairs some of whose tokens come after a tie: the others are judged, and the row says so."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..reporting.row import AFTER_TIE, TOKENS, Row
from .token_rows import TokenRows


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What ties leave of a pair: the rows of tokens that come after none. `rows` is `None` without any.

    `after` of its `tokens` come after a tie.
    """

    after: int
    tokens: int
    rows: TokenRows | None = None


def after_ties(row: Row, left: Left) -> Row:
    """The row of a pair of which nothing is left to be judged."""
    said = f"each of {left.tokens} tokens comes after a tie and is not judged"
    if left.tokens == 1:
        said = "its only token comes after a tie and is not judged"
    clean = replace(row, verdict="tie", sentence=said, reasons=(), checks=(), statistics={}, notes=())
    return _kept(clean, left)


def with_left(row: Row, left: Left) -> Row:
    """The row of those that are left, with what was left out."""
    note = f"{left.after} of {left.tokens} tokens come after a tie and are not judged"
    return _kept(replace(row, notes=(*row.notes, note)), left)


def _kept(row: Row, left: Left) -> Row:
    return replace(row, context={**row.context, AFTER_TIE: left.after, TOKENS: left.tokens})
