"""Align two sequences one-to-one and in order: the longest common subsequence under a predicate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Golden = TypeVar("Golden")
Mine = TypeVar("Mine")

PIECE = 512
"""Elements of one side of a table: a layer of a model has some tens of operators, a flat graph hundreds."""


def align(
    golden: Sequence[Golden], mine: Sequence[Mine], matches: Callable[[Golden, Mine], bool]
) -> list[tuple[Golden, Mine]]:
    """The most pairs that keep both orders, every element used once.

    The common start is paired at once; of several answers of equal length the one that pairs the earliest
    elements is chosen, so the result is deterministic. The remainder is a table of `len(golden) * len(mine)`
    cells. Sequences for which that is too large are aligned piece by piece: the first half of the pairs of a
    piece counts, and the next piece begins behind it.
    """
    pairs: list[tuple[Golden, Mine]] = []
    i = j = 0
    while i < len(golden) and j < len(mine):
        if matches(golden[i], mine[j]):
            pairs.append((golden[i], mine[j]))
            i, j = i + 1, j + 1
            continue
        fits = (len(golden) - i) * (len(mine) - j) <= PIECE * PIECE
        places = _table(
            *((golden[i:], mine[j:]) if fits else (golden[i : i + PIECE], mine[j : j + PIECE])), matches
        )
        if fits:
            return [*pairs, *((golden[i + a], mine[j + b]) for a, b in places)]
        counted = places[: (len(places) + 1) // 2]
        pairs += [(golden[i + a], mine[j + b]) for a, b in counted]
        # A piece without a pair is skipped.
        a, b = counted[-1] if counted else (PIECE - 1, PIECE - 1)
        i, j = i + a + 1, j + b + 1
    return pairs


def _table(
    golden: Sequence[Golden], mine: Sequence[Mine], matches: Callable[[Golden, Mine], bool]
) -> list[tuple[int, int]]:
    """Places of the longest common subsequence, by dynamic programming; `matches` is asked once a cell."""
    rows, columns = len(golden), len(mine)
    equal = [[matches(golden_element, mine_element) for mine_element in mine] for golden_element in golden]
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
