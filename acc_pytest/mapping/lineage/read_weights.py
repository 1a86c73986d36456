"""Which pairs are computed from which weights: those of the module whose code made the tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ...dumps.base import Dump
from ..pair import Gap, Pair
from ..weights import POLICY, readers


def weights_read(pairs: Sequence[Pair], gaps: Mapping[int, Gap], mine: Dump) -> dict[int, tuple[int, ...]]:
    """The numbers of the weights that a pair's module has itself, of its own rank, for each that has any."""
    numbers = {
        (pair.mine.name, pair.rank): number for number, pair in enumerate(pairs) if pair.policy == POLICY
    }
    if not numbers:
        return {}
    own = readers(mine)
    weights: dict[int, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        gap = gaps.get(number)
        if pair.fed or (gap is None and pair.mine.slot.startswith("input")):
            continue
        for name in own.get(gap.module if gap is not None else pair.mine.node, ()):
            if (name, pair.rank) in numbers:
                weights[number].append(numbers[name, pair.rank])
    return {number: tuple(several) for number, several in weights.items()}
