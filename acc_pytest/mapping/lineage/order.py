"""Parents by execution order, where nothing says which tensors an operator reads.

Everything in a decoder is downstream of what came before it, but for branches inside a layer. So a pair's
parents are the pairs before it in its layer, and the last one before that layer began.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..pair import Pair

IN_A_LAYER = 24
"""Pairs before it in its layer that count; those further up are parents of these."""


def by_order(pairs: Sequence[tuple[int, Pair]]) -> dict[int, tuple[int, ...]]:
    """The parents of numbered pairs of one step, rank and graph, in execution order; the earliest first."""
    parents: dict[int, tuple[int, ...]] = {}
    layer: str | None = None
    inside: list[int] = []
    before: tuple[int, ...] = ()
    for number, pair in pairs:
        if pair.layer != layer:
            before = tuple(inside[-1:])
            layer, inside = pair.layer, []
        parents[number] = (*before, *inside[-IN_A_LAYER:])
        inside.append(number)
    return parents
