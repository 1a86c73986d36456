"""`--acc-shard i/n`: the share of the tests that one of n machines runs.

Tests are dealt out by what they cost, the dearest first, each to the shard that has least so far. The cost is
the size of the files, which is known without any earlier run. Each test belongs to exactly one shard,
whatever process asks, so that the shards of a matrix together are the whole run.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..mapping.pair import Pair

PER_TEST = 2**20
"""What a comparison costs beyond its bytes, as bytes: a millisecond, in which a core compares a megabyte."""


def deal(costs: Sequence[int], shards: int) -> list[int]:
    """The shard, from 0, of each of the tests with these `costs` (from 0, any unit).

    Longest first to the least loaded, equal costs in their order, equal loads to the lower shard: no
    shard has more than the mean and one test (R. L. Graham, SIAM J. Appl. Math. 17, 1969).
    """
    loads = [(0, shard) for shard in range(shards)]
    owners = [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        load, shard = loads[0]
        owners[place] = shard
        heapq.heapreplace(loads, (load + costs[place], shard))
    return owners


class Sizes:
    """Sizes of files in bytes, each looked up once; 0 for one that cannot be (its test will say so)."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, paths: Iterable[str]) -> int:
        """The sum over different files."""
        return sum(self._one(path) for path in dict.fromkeys(paths))

    def _one(self, path: str) -> int:
        size = self._known.get(path)
        if size is None:
            try:
                size = os.stat(path).st_size
            except (OSError, ValueError):
                size = 0
            self._known[path] = size
        return size


def pair_cost(pair: Pair, sizes: Sizes) -> int:
    """What comparing a pair costs, in bytes to be read."""
    return PER_TEST + sizes.of(ref.path for side in (pair.golden, pair.mine) for ref in side.refs)
