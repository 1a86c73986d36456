"""Parents of gradients. They are computed from incoming gradients, which a dump lists, and from tensors of
the forward call, which no dump lists: they inherit from that call and from its parents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ...dumps.base import StepLabel
from ...vocabulary import GRADIENTS
from ..pair import Pair


def forward_parents(pairs: Sequence[Pair], parents: Sequence[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """The numbers of the pairs of the forward call, and of their parents, for each pair of a gradient."""
    forward_of = {
        number: forward for number, pair in enumerate(pairs) if (forward := _forward(pair.mine.node))
    }
    if not forward_of:
        return {}
    forward_pairs: dict[tuple[str, StepLabel, int | None], list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        if number not in forward_of:
            forward_pairs[pair.mine.node, pair.step, pair.rank].append(number)
    inherited: dict[int, tuple[int, ...]] = {}
    for number, node in forward_of.items():
        calls = forward_pairs.get((node, pairs[number].step, pairs[number].rank), [])
        sources = dict.fromkeys([*calls, *(parent for call in calls for parent in parents[call])])
        inherited[number] = tuple(source for source in sorted(sources) if source not in parents[number])
    return inherited


def _forward(node: str) -> str:
    """The node of the forward call of a gradient: `mlp.call1` for `mlp.backward.call1`; empty for others."""
    for word in GRADIENTS:
        path, separator, call = node.rpartition(f".{word}")
        if separator and (not call or call.startswith(".call")):
            return path + call
    return ""
