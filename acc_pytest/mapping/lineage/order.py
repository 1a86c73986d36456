"""Parents by execution order, where nothing says which tensors an operator reads.

Each tensor of a decoder is downstream of all earlier ones, but for branches inside a layer. So a pair's
parents are the pairs before it in its layer, and the last pair before that layer began.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..pair import Pair

IN_A_LAYER = 24
"""Number of earlier pairs in a layer that count; pairs further up are parents of these."""


def by_order(pairs: Sequence[tuple[int, Pair]]) -> dict[int, tuple[int, ...]]:
    """The parents of numbered pairs of one step, rank and graph, in execution order; the earliest first."""
    parents: dict[int, tuple[int, ...]] = {}
    layer: str | None = None
    layer_pairs: list[int] = []
    ancestors: tuple[int, ...] = ()
    for number, pair in pairs:
        if pair.layer != layer:
            ancestors = tuple(layer_pairs[-1:])
            layer, layer_pairs = pair.layer, []
        parents[number] = (*ancestors, *layer_pairs[-IN_A_LAYER:])
        layer_pairs.append(number)
    return parents
