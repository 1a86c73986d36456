"""Edges of the graph that dumped inputs are, where GE dumped fewer inputs than there are edges.

Absent, unknown and null inputs are not dumped, so numbers alone say nothing; what is left keeps its order. An
input is known when every way to leave inputs out gives it the same edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

AnyEdge = TypeVar("AnyEdge")


def edges_of_inputs(
    edges: Sequence[AnyEdge], fits: Callable[[AnyEdge], Sequence[bool]], count: int, certainty: str
) -> list[AnyEdge | None]:
    """The edge of each of `count` dumped inputs, `None` where that is not known.

    `fits` says of an edge which inputs it may be; `certainty` is that of `Parts.inputs`.
    """
    if certainty == "sure" and len(edges) == count:
        return list(edges)
    if certainty == "sure" or (certainty == "likely" and len(edges) == count):
        return arrivals(edges, [fits(edge) for edge in edges], count)
    return [None] * count


def arrivals(edges: Sequence[AnyEdge], fits: Sequence[Sequence[bool]], count: int) -> list[AnyEdge | None]:
    """The edge of each of `count` dumped inputs, `None` where there is a choice or no way at all.

    `fits[e][i]` says that edge `e` may be input `i` as far as type and shape tell.
    """
    before = _reachable(fits, len(edges), count)
    turned = [list(reversed(row)) for row in reversed(fits)]
    after = _reachable(turned, len(edges), count)
    arriving: list[AnyEdge | None] = []
    for place in range(count):
        possible = {
            edges[number]
            for number in range(len(edges))
            if fits[number][place]
            and before[number][place]
            and after[len(edges) - number - 1][count - place - 1]
        }
        arriving.append(possible.pop() if len(possible) == 1 else None)
    return arriving


def _reachable(fits: Sequence[Sequence[bool]], edges: int, count: int) -> list[list[bool]]:
    """`[e][i]`: whether the first `i` inputs can be found, in order, among the first `e` edges."""
    table = [[place == 0 for place in range(count + 1)]]
    for number in range(edges):
        last = table[-1]
        table.append(
            [True]
            + [last[place] or (last[place - 1] and fits[number][place - 1]) for place in range(1, count + 1)]
        )
    return table
