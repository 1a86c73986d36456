"""Align two sequences one-to-one and in order: the longest common subsequence under a predicate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

One = TypeVar("One")
Other = TypeVar("Other")


def align(
    golden: Sequence[One], mine: Sequence[Other], same: Callable[[One, Other], bool]
) -> list[tuple[One, Other]]:
    """The most pairs that keep both orders, every element used once.

    Dynamic programming over `len(golden) * len(mine)` cells; `same` is asked once per cell. Of several
    answers of equal length the one that pairs the earliest elements is taken, so the result is
    deterministic.
    """
    rows, columns = len(golden), len(mine)
    equal = [[same(one, other) for other in mine] for one in golden]
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            joined = best[i + 1][j + 1] + 1 if equal[i][j] else 0
            best[i][j] = max(joined, best[i + 1][j], best[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if equal[i][j] and best[i][j] == best[i + 1][j + 1] + 1:
            pairs.append((golden[i], mine[j]))
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs
