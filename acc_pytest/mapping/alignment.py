"""Align two sequences one-to-one and in order: the longest common subsequence under a predicate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

One = TypeVar("One")
Other = TypeVar("Other")

PIECE = 512
"""Elements of one side of a table: a layer of a model has some tens of operators, a flat graph hundreds."""


def align(
    golden: Sequence[One], mine: Sequence[Other], same: Callable[[One, Other], bool]
) -> list[tuple[One, Other]]:
    """The most pairs that keep both orders, every element used once.

    What both begin with is paired at once; of several answers of equal length the one that pairs the earliest
    elements is taken, so the result is deterministic. The rest is a table of `len(golden) * len(mine)` cells.
    Sequences for which that is too large are aligned piece by piece: the first half of what a piece pairs
    counts, and the next piece begins behind it.
    """
    pairs: list[tuple[One, Other]] = []
    i = j = 0
    while i < len(golden) and j < len(mine):
        if same(golden[i], mine[j]):
            pairs.append((golden[i], mine[j]))
            i, j = i + 1, j + 1
            continue
        whole = (len(golden) - i) * (len(mine) - j) <= PIECE * PIECE
        places = _table(
            *((golden[i:], mine[j:]) if whole else (golden[i : i + PIECE], mine[j : j + PIECE])), same
        )
        if whole:
            return [*pairs, *((golden[i + a], mine[j + b]) for a, b in places)]
        kept = places[: (len(places) + 1) // 2]
        pairs += [(golden[i + a], mine[j + b]) for a, b in kept]
        # Without a pair in it the piece is left behind as a whole.
        a, b = kept[-1] if kept else (PIECE - 1, PIECE - 1)
        i, j = i + a + 1, j + b + 1
    return pairs


def _table(
    golden: Sequence[One], mine: Sequence[Other], same: Callable[[One, Other], bool]
) -> list[tuple[int, int]]:
    """Places of the longest common subsequence, by dynamic programming; `same` is asked once a cell."""
    rows, columns = len(golden), len(mine)
    equal = [[same(golden_item, mine_item) for mine_item in mine] for golden_item in golden]
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            joined = best[i + 1][j + 1] + 1 if equal[i][j] else 0
            best[i][j] = max(joined, best[i + 1][j], best[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if equal[i][j] and best[i][j] == best[i + 1][j + 1] + 1:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs
