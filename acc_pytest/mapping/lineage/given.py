"""Inputs of a compiled graph at a step: results of the step before, or inputs that stay.

A weight is one tensor at every step, whichever graph reads it. A cache is the one that the step before wrote,
and a prompt may be a result of that step.
"""

from __future__ import annotations

from ..pair import Pair
from .steps import Block, place_of

_STORED = "cache"


class EarlierSteps:
    """The steps that ran so far, on all ranks and of all graphs."""

    def __init__(self) -> None:
        self._by_key: dict[object, int] = {}
        self._stored: dict[int | None, list[int]] = {}
        self._results: dict[int | None, list[int]] = {}

    def sources(self, block: Block) -> dict[int, list[int]]:
        """The numbers of the sources of each pair that stands for an input of the graph."""
        sources: dict[int, list[int]] = {}
        for number, pair in zip(block.numbers, block.pairs):
            if pair.fed:
                earlier = self._stored if pair.fed == _STORED else self._results
                repeated = {self._by_key[key] for key in _keys(pair) if key in self._by_key}
                sources[number] = sorted(repeated | set(() if _lasts(pair) else earlier.get(pair.rank, ())))
        self._note(block)
        return {number: numbers for number, numbers in sources.items() if numbers}

    def _note(self, block: Block) -> None:
        ranks = {pair.rank for pair in block.pairs}
        for latest, places in ((self._stored, block.flow.stored), (self._results, block.flow.results)):
            for rank in ranks:
                latest[rank] = [
                    number
                    for number, pair in zip(block.numbers, block.pairs)
                    if pair.rank == rank and place_of(pair) in places
                ]
        for number, pair in zip(block.numbers, block.pairs):
            if pair.fed:
                self._by_key.update(dict.fromkeys(_keys(pair), number))


def _keys(pair: Pair) -> tuple[object, ...]:
    """The keys of an input: over steps its name, over graphs the call that reads it."""
    reader = pair.golden.node, pair.golden.slot, pair.fed
    return (pair.rank, pair.graph, pair.id), (pair.rank, *reader)


def _lasts(pair: Pair) -> bool:
    return pair.fed in ("weight", "buffer")
