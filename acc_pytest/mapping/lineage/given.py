"""What a compiled graph is given at a step: from the step before, or the same again.

A weight is one tensor at every step, whichever graph reads it. A cache is what the step before wrote there,
and a prompt may be what came out of that.
"""

from __future__ import annotations

from ..pair import Pair
from .steps import Block, place_of

_STORED = "cache"


class GivenBefore:
    """The steps that ran so far, on all ranks and of all graphs."""

    def __init__(self) -> None:
        self._same: dict[object, int] = {}
        self._stored: dict[int | None, list[int]] = {}
        self._results: dict[int | None, list[int]] = {}

    def taken(self, block: Block) -> dict[int, list[int]]:
        """For each pair that stands for an input of the graph the numbers of those it comes from."""
        sources: dict[int, list[int]] = {}
        for number, pair in zip(block.numbers, block.pairs):
            if pair.fed:
                before = self._stored if pair.fed == _STORED else self._results
                again = {self._same[key] for key in _keys(pair) if key in self._same}
                sources[number] = sorted(again | set(() if _lasts(pair) else before.get(pair.rank, ())))
        self._note(block)
        return {number: numbers for number, numbers in sources.items() if numbers}

    def _note(self, block: Block) -> None:
        ranks = {pair.rank for pair in block.pairs}
        for known, places in ((self._stored, block.flow.stored), (self._results, block.flow.results)):
            for rank in ranks:
                known[rank] = [
                    number
                    for number, pair in zip(block.numbers, block.pairs)
                    if pair.rank == rank and place_of(pair) in places
                ]
        for number, pair in zip(block.numbers, block.pairs):
            if pair.fed:
                self._same.update(dict.fromkeys(_keys(pair), number))


def _keys(pair: Pair) -> tuple[object, ...]:
    """What one input has in common over steps (its name) and over graphs (the call that reads it)."""
    there = pair.golden.node, pair.golden.slot, pair.fed
    return (pair.rank, pair.graph, pair.id), (pair.rank, *there)


def _lasts(pair: Pair) -> bool:
    return pair.fed in ("weight", "buffer")
