"""Gradients are computed of what arrives, which a dump lists, and of what the forward call held, which none
lists: they inherit from it and from what it was computed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ...dumps.base import StepLabel
from ...vocabulary import GRADIENTS
from ..pair import Pair


def forward_held(pairs: Sequence[Pair], parents: Sequence[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """For each pair of a gradient the numbers of the pairs of its forward call, and of their parents."""
    wanted = {number: forward for number, pair in enumerate(pairs) if (forward := _forward(pair.mine.node))}
    if not wanted:
        return {}
    forward_pairs: dict[tuple[str, StepLabel, int | None], list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        if number not in wanted:
            forward_pairs[pair.mine.node, pair.step, pair.rank].append(number)
    held: dict[int, tuple[int, ...]] = {}
    for number, node in wanted.items():
        own = forward_pairs.get((node, pairs[number].step, pairs[number].rank), [])
        found = dict.fromkeys([*own, *(parent for one in own for parent in parents[one])])
        held[number] = tuple(other for other in sorted(found) if other not in parents[number])
    return held


def _forward(node: str) -> str:
    """The node of the forward call of a gradient: `mlp.call1` for `mlp.backward.call1`; empty for others."""
    for word in GRADIENTS:
        path, found, call = node.rpartition(f".{word}")
        if found and (not call or call.startswith(".call")):
            return path + call
    return ""
