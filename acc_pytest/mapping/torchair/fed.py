"""Inputs of a GE graph - weights, prompts, caches - and the one pair that stands for each.

A text says `arg5_1` and no more. The arguments of the calls that read it tell what it is. A pair that stands
for it comes before all others: where it fails, what the run was fed differs, and every other reading inherits
from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from ...topology.ge_graph import Edge, FxName, GeDesc, GeNode
from .graph import GraphIndex
from .lowering import Argument, Arguments, arguments, fed_word, target_of, type_of
from .outcome import Matched
from .reach import given_to, reached

_STRONGEST = ("cache", "token ids", "mask", "input", "positions", "buffer", "weight")
"""Kinds of one tensor by several calls: the first of these counts."""
FED_FIRST = -1
"""The first place, of matches that stand for inputs of the run."""


class FedKinds:
    """The kinds of the inputs of one graph."""

    def __init__(self, graph: GraphIndex) -> None:
        self.graph = graph
        self._kinds: dict[str, str] = {}

    @cached_property
    def arguments(self) -> Arguments:
        """The arguments of calls that outputs of the graph are."""
        return arguments(self.graph)

    def of(self, node: GeNode) -> str:
        """`weight`, `input`, ... for an input of the graph."""
        if node.name not in self._kinds:
            kinds = {
                word
                for argument in self._readings(Edge(node.name, 0))
                if (word := self._word(node, argument))
            }
            self._kinds[node.name] = strongest(kinds) or "input"
        return self._kinds[node.name]

    def _readings(self, edge: Edge) -> Iterator[Argument]:
        for reach in reached(self.graph, edge):
            for argument in self.arguments.get(reach.edge, ()):
                if target_of(argument.call.target) == "aten.expand":
                    yield from self._readings(Edge(argument.reader, 0))
                yield argument

    def _word(self, node: GeNode, argument: Argument) -> str:
        target = argument.call.target
        desc = node.output_descs[0] if node.output_descs else GeDesc()
        if target_of(target) == "aten.add" and self._is_masking(argument):
            return "mask"
        dimensions = None if desc.shape is None else len(desc.shape)
        word = fed_word(target, argument.number[0], dimensions, "INT" in desc.dtype)
        return "input" if word == "token ids" and argument.call.node != self._vocabulary else word

    def _is_masking(self, argument: Argument) -> bool:
        """Whether a sum is that of scores and a mask: a softmax reads it."""
        return any(
            type_of(reader) == "Softmax"
            for reach in reached(self.graph, Edge(argument.reader, 0))
            for reader in self.graph.graph.consumers.get(reach.edge, ())
        )

    @cached_property
    def _vocabulary(self) -> str:
        """The FX node that looks up the largest table: tokens, where others look up positions or types."""
        rows: dict[str, int] = {}
        for edge, several in self.arguments.items():
            node = given_to(self.graph, edge)
            shape = node.output_descs[0].shape if node is not None and node.output_descs else None
            for argument in several:
                if shape and argument.number == (0,) and _looks_up(argument.call):
                    rows[argument.call.node] = shape[0]
        return max(rows, key=rows.__getitem__, default="")


def marked(matched: Sequence[Matched], kinds: FedKinds) -> list[Matched]:
    """The matches in their order, first those that stand for inputs of the graph: for each the first read."""
    ordered: list[Matched] = []
    names: set[str] = set()
    for match in sorted(matched, key=lambda match: match.place):
        node = kinds.graph.node(match.source) if match.source not in names and not match.self_check else None
        if node is not None:
            names.add(node.name)
            match = replace(match, place=(FED_FIRST, kinds.graph.position[node.name]), fed=kinds.of(node))
        ordered.append(match)
    return sorted(ordered, key=lambda match: match.place)


def strongest(kinds: Collection[str]) -> str:
    """The kind that counts where calls give several; empty without any."""
    return next((word for word in _STRONGEST if word in kinds), "")


def _looks_up(call: FxName) -> bool:
    return target_of(call.target) == "aten.embedding"
