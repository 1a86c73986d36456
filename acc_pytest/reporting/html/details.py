"""Pictures of the pairs that matter, from their files: made once, at the end of a run, in its main process.

Only roots and the worst pairs are looked into, and no more than `ELEMENTS` elements are read in all; what is
left out says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import AccError
from ..printable import printable
from ..row import Row

if TYPE_CHECKING:
    from ...mapping.pair import Plan

ELEMENTS = 200_000_000
"""Elements read of each side, of all pairs together: about ten seconds."""

_WIDTH = 1000


def details(plan: Plan | None, rows: Sequence[Row], elements: int = ELEMENTS) -> list[dict[str, Any]]:
    """For each of `rows` its pictures (`drawn`), or `{"absent": reason}`.

    Rows of a plan are opened as their tests opened them. A row of an operator check has no golden file, for
    golden was computed; one of somebody's own test, or one read back from a file, has no files at all.
    """
    pictures: list[dict[str, Any]] = []
    left = elements
    for row in rows:
        try:
            made, used = _look(plan, row, left)
        except (AccError, OSError, RuntimeError, ValueError, MemoryError) as error:
            made, used = {"absent": printable(str(error) or type(error).__name__, _WIDTH)}, 0
        left -= used
        pictures.append(made)
    return pictures


def _look(plan: Plan | None, row: Row, left: int) -> tuple[dict[str, Any], int]:
    if row.case:
        return {"absent": "golden was computed for the check and is in no file"}, 0
    if plan is None or row.number is None or row.number >= len(plan.pairs):
        return {"absent": "the tensors of this comparison are in no file of a dump that this run has open"}, 0
    from ...mapping.reconcile import open_pair
    from .pictures import pictures_of

    pair = plan.pairs[row.number]
    if not (pair.golden.refs and pair.mine.refs):
        return {"absent": "the page was made from rows, without the dumps"}, 0
    opened = open_pair(pair)
    label = row_label(row)
    comparison = next(
        (candidate for candidate in opened.comparisons if candidate.label == label), opened.comparisons[0]
    )
    count = math.prod(int(size) for size in comparison.golden.shape)
    if count > left:
        return {"absent": f"{count} elements: no more than {ELEMENTS} are read for all pictures of a page"}, 0
    made = pictures_of(comparison.golden, comparison.mine)
    return ({**made, "replica": comparison.label} if comparison.label else made), count


def row_label(row: Row) -> str:
    """Of replicas, the one that the row is of (`rank 1`): the comparison says so in a note."""
    for note in row.notes:
        label, separator, _ = note.partition(", the worst of ")
        if separator:
            return label
    return ""
