"""The operators of a GE dump by the file of their record, with the graph that ran and what lies beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..dumps import open_dump
from ..dumps.base import Rank, Step
from ..dumps.ge import GeDump
from ..dumps.torchair_names import sanitized
from ..mapping.torchair.graph import GraphIndex
from ..mapping.torchair.operators import Operator, operators
from ..tensors.ref import TensorRef


@dataclass(frozen=True, eq=False)
class Ran:
    """One run of a graph on one rank: its operators, and the graph's text, `None` where that is missing."""

    operators: tuple[Operator, ...]
    graph: GraphIndex | None

    @cached_property
    def dumped(self) -> frozenset[str]:
        """Operators of the graph that left a record of their own or as a part."""
        return frozenset(name for operator in self.operators for name in operator.parts.names)

    @cached_property
    def by_file(self) -> Mapping[str, Operator]:
        """Operators by the path of their record."""
        return {operator.entry.path: operator for operator in self.operators}

    def named(self, name: str) -> Operator | None:
        """The operator of this name in the graph, or that computes it among others."""
        plain = sanitized(name)
        found = [one for one in self.operators if one.node.path == plain or name in one.parts.names]
        return found[0] if len(found) == 1 else None


class GeRecords:
    """The dump at `root`, opened when it is asked for the first time."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._runs: dict[tuple[str, int], Ran] = {}
        self._indexes: dict[int, GraphIndex] = {}

    def run_of(self, ref: TensorRef) -> Ran | None:
        """The run that a tensor was dumped in; `None` for a tensor of another dump. Raises `AccError`."""
        place = self._places.get(ref.path)
        if place is None:
            return None
        step, rank = place
        key = (step.directory, rank.index)
        if key not in self._runs:
            graph = self._graph(step, rank)
            self._runs[key] = Ran(tuple(operators(self._dump, step, rank, graph)), graph)
        return self._runs[key]

    @cached_property
    def _dump(self) -> GeDump:
        dump = open_dump(self._root)
        assert isinstance(dump, GeDump)
        return dump

    @cached_property
    def _places(self) -> Mapping[str, tuple[Step, Rank]]:
        found = {}
        for step in self._dump.steps:
            for rank in self._dump.ranks:
                for node in self._dump.nodes(step, rank):
                    entry = self._dump.entry(step, rank, node)
                    if entry is not None:
                        found[entry.path] = step, rank
        return found

    def _graph(self, step: Step, rank: Rank) -> GraphIndex | None:
        graph = self._dump.graph(step, rank)
        if graph is None:
            return None
        if id(graph) not in self._indexes:
            self._indexes[id(graph)] = GraphIndex(graph)
        return self._indexes[id(graph)]
