"""Rows of pairs some of whose tokens come after a tie or are padding: the row of the others says so."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..reporting.row import AFTER_TIE, PADDING, TOKENS, Row
from .token_rows import TokenRows


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """The rest of a pair after ties and padding: the `rows` of all other tokens, `None` without any.

    `after` of its `tokens` come after a tie; so many more are `padding`.
    """

    after: int
    tokens: int
    rows: TokenRows | None = None
    padding: int = 0


def after_ties(row: Row, left: Left) -> Row:
    """The row of a pair of which nothing is left to be judged."""
    sentence = f"each of {left.tokens} tokens comes after a tie and is not judged"
    if left.tokens == 1:
        sentence = "its only token comes after a tie and is not judged"
    clean = replace(row, verdict="tie", sentence=sentence, reasons=(), checks=(), statistics={}, notes=())
    return _with_counts(clean, left)


def with_left(row: Row, left: Left) -> Row:
    """The row of those that are left, with what was left out."""
    notes = [f"{left.after} of {left.tokens} tokens come after a tie and are not judged"] * bool(left.after)
    padding = f"{left.padding} of {left.tokens + left.padding} tokens are padding and not judged"
    return _with_counts(replace(row, notes=(*row.notes, *notes, *[padding] * bool(left.padding))), left)


def _with_counts(row: Row, left: Left) -> Row:
    counts = {AFTER_TIE: left.after, PADDING: left.padding, TOKENS: left.tokens}
    return replace(row, context={**row.context, **{name: count for name, count in counts.items() if count}})
