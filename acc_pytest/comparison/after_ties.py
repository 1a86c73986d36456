"""Rows of pairs some of whose tokens are not judged, as they come after a tie or are padding; they say so."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..reporting.row import AFTER_TIE, PADDING, TOKENS, Row
from .token_rows import TokenRows


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What is to be judged of a pair: the `rows` of all tokens but those that come after a tie or are padding;
    `None` without any.

    `after` of its `tokens` come after a tie, and `padding` of them are padding.
    """

    after: int
    tokens: int
    rows: TokenRows | None = None
    padding: int = 0


def after_ties(row: Row, left: Left) -> Row:
    """The row of a pair of which nothing is left to be judged."""
    said = f"each of {left.tokens} tokens comes after a tie and is not judged"
    if left.tokens == 1:
        said = "its only token comes after a tie and is not judged"
    clean = replace(row, verdict="tie", sentence=said, reasons=(), checks=(), statistics={}, notes=())
    return _kept(clean, left)


def with_left(row: Row, left: Left) -> Row:
    """The row of those that are left, with what was left out."""
    causes = ((left.after, "come after a tie and are"), (left.padding, "are padding and"))
    notes = [f"{count} of {left.tokens} tokens {why} not judged" for count, why in causes if count]
    return _kept(replace(row, notes=(*row.notes, *notes)), left)


def _kept(row: Row, left: Left) -> Row:
    counts = {AFTER_TIE: left.after, PADDING: left.padding, TOKENS: left.tokens}
    return replace(row, context={**row.context, **{name: count for name, count in counts.items() if count}})
