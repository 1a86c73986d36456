"""The operators of a GE dump by the file of their record, with the graph that ran and what lies beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..dumps import open_dump
from ..dumps.base import Rank, Step
from ..dumps.ge import GeDump
from ..dumps.torchair_names import sanitized
from ..mapping.torchair.graph import GraphIndex, GraphIndexes
from ..mapping.torchair.operators import DumpedOperator, operators
from ..tensors.ref import TensorRef


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """One run of a graph on one rank: its operators, and the graph's text, `None` where that is missing."""

    operators: tuple[DumpedOperator, ...]
    graph: GraphIndex | None

    @cached_property
    def dumped(self) -> frozenset[str]:
        """Operators of the graph that left a record of their own or as a part."""
        return frozenset(name for operator in self.operators for name in operator.parts.names)

    @cached_property
    def by_file(self) -> Mapping[str, DumpedOperator]:
        """Operators by the path of their record."""
        return {operator.entry.path: operator for operator in self.operators}

    def named(self, name: str) -> DumpedOperator | None:
        """The operator of this name in the graph, or that computes it among others."""
        plain = sanitized(name)
        named = [op for op in self.operators if op.node.path == plain or name in op.parts.names]
        return named[0] if len(named) == 1 else None


class GeRecords:
    """The dump at `root`, opened when it is asked for the first time."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._runs: dict[tuple[str, int], RecordedRun] = {}
        self._indexes = GraphIndexes()

    def run_of(self, ref: TensorRef) -> RecordedRun | None:
        """The run that a tensor was dumped in; `None` for a tensor of another dump. Raises `AccError`."""
        place = self._places.get(ref.path)
        if place is None:
            return None
        step, rank = place
        key = (step.directory, rank.index)
        if key not in self._runs:
            graph = self._indexes.of(self._dump, step, rank)
            self._runs[key] = RecordedRun(tuple(operators(self._dump, step, rank, graph)), graph)
        return self._runs[key]

    @cached_property
    def _dump(self) -> GeDump:
        dump = open_dump(self._root)
        assert isinstance(dump, GeDump)
        return dump

    @cached_property
    def _places(self) -> Mapping[str, tuple[Step, Rank]]:
        places = {}
        for step in self._dump.steps:
            for rank in self._dump.ranks:
                for node in self._dump.nodes(step, rank):
                    entry = self._dump.entry(step, rank, node)
                    if entry is not None:
                        places[entry.path] = step, rank
        return places
