"""The weights that pairs are computed from: those of the module whose code made the tensor."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ...dumps.base import Dump
from ..pair import Gap, Operand, Pair
from ..weights import POLICY, readers

_SUFFIXES = re.compile(r"(\.backward)?(\.call\d+)?$")
_NUMBER = re.compile(r"\.\d+$")


def weights_read(pairs: Sequence[Pair], gaps: Mapping[int, Gap], mine: Dump) -> dict[int, tuple[int, ...]]:
    """The numbers of the weights of a pair's module itself, of its own rank, for each pair that has any."""
    numbers = {
        (pair.mine.name, pair.rank): number for number, pair in enumerate(pairs) if pair.policy == POLICY
    }
    if not numbers:
        return {}
    names_of = readers(mine)
    weights: dict[int, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        gap = gaps.get(number)
        if pair.fed or (gap is None and pair.mine.slot.startswith("input")):
            continue
        for name in names_of.get(gap.module if gap is not None else _module(pair.mine), ()):
            if (name, pair.rank) in numbers:
                weights[number].append(numbers[name, pair.rank])
    return {number: tuple(weight_numbers) for number, weight_numbers in weights.items()}


def _module(operand: Operand) -> str:
    """The module whose weights an operation reads: itself, in whichever call; that of a gradient; for a
    function, which is named after its operation, the module around it."""
    node = _SUFFIXES.sub("", operand.node)
    module, _, function = _NUMBER.sub("", node).rpartition(".")
    kind = operand.op_type.partition(".")[0]
    return module if function.rstrip("_") == kind.rstrip("_") else node
