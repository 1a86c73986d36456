"""What dumps of GE and FX share: ranks, compiled graphs and steps, from the directories of one walk.

A run compiles one graph or several (prefill and decode, say), and each counts its executions from 0. So a
step here is a graph and a number, and `Dump.steps` has one entry for each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..tensors.ref import TensorRef
from ..topology.tree import Node, Tree
from .base import Dump, Rank, Slot, Step
from .naming import stable_name
from .torchair_files import TorchairLayout
from .torchair_places import Place, is_level

Entry = TypeVar("Entry")
Group = tuple[int, str, int]
"""Rank, graph, step."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A compiled graph: its name in ids and rows, and the number that it has in every run of one script."""

    name: str
    number: int | None


class TorchairDump(Dump, Generic[Entry]):
    """A dump of GE or FX. `graphs` are in the order of their compilation.

    `ranked` says that directories name their ranks; without it there is one rank, or (GE) one per device.
    """

    graphs: tuple[Graph, ...]
    ranked: bool

    def __init__(self, layout: TorchairLayout, homes: Iterable[str]) -> None:
        self.root = layout.root
        bare = is_level(layout.root.name) or layout.root.is_file()
        self.name = f"{layout.kind}_dump" if bare else stable_name(layout.root.name, f"{layout.kind}_dump")
        self._notes = list(layout.found.notes)
        if layout.found.unknown:
            kinds = ", ".join(f"{count} ({kind})" for kind, count in sorted(layout.found.unknown.items()))
            self._notes.append(f"{layout.root}: files that belong to no {layout.kind.upper()} dump: {kinds}")
        places = {home: self._place(home) for home in homes}
        self.forced = list(places) == [str(layout.root)] and not layout.root.is_file()
        self.ranked = any(place.rank is not None for place in places.values())
        devices = {place.device for place in places.values() if place.device is not None}
        self._by_device = not self.ranked and len(devices) > 1
        self.ranks = self._ranks(places.values())
        self._graph_names = self._named(places.values())
        self.graphs = tuple(dict.fromkeys(self._graph_names.values()))
        groups: dict[Group, list[str]] = {}
        for home, place in sorted(places.items(), key=lambda item: (item[1].time, item[1].model_id or 0)):
            groups.setdefault(self._group(place), []).append(home)
        self._contents = {group: self._content(homes, places, group) for group, homes in groups.items()}
        self.steps = self._steps()
        self.notes = tuple(dict.fromkeys(self._notes))

    @abstractmethod
    def _place(self, home: str) -> Place: ...

    @abstractmethod
    def _content(
        self, homes: list[str], places: Mapping[str, Place], group: Group
    ) -> dict[str, tuple[Node, Entry]]:
        """The nodes of a rank, graph and step, in the order in which they ran, by their paths."""

    @abstractmethod
    def _slots(self, node: Node, entry: Entry) -> Mapping[Slot, TensorRef]: ...

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        """See `Dump.tensors`. A record of GE is opened for it; raises `FormatError` for a broken one."""
        found = self._contents.get(_key(step, rank), {}).get(node.path)
        return self._slots(*found) if found is not None else {}

    def entry(self, step: Step, rank: Rank, node: Node) -> Entry | None:
        """What was found on disk for a node on a rank, `None` where it did not run there."""
        found = self._contents.get(_key(step, rank), {}).get(node.path)
        return found[1] if found is not None else None

    def nodes(self, step: Step, rank: Rank) -> list[Node]:
        """The nodes dumped on one rank, in the order in which they ran there."""
        return [node for node, _ in self._contents.get(_key(step, rank), {}).values()]

    def has(self, step: Step, rank: Rank) -> bool:
        """Whether anything was dumped of a step on a rank."""
        return _key(step, rank) in self._contents

    def _ranks(self, places: Iterable[Place]) -> tuple[Rank, ...]:
        if self._by_device:
            self._notes.append(
                f"{self.root}: no directory names a rank, so each device counts as one "
                "(worldsize{W}_global_rank{R} is written since PTA 7.2)"
            )
        worlds = {self._rank_of(place): place.world for place in places}
        return tuple(
            Rank(index, f"worldsize{world}_global_rank{index}" if world is not None else "")
            for index, world in sorted(worlds.items())
        )

    def _rank_of(self, place: Place) -> int:
        if self._by_device:
            return place.device or 0
        return place.rank or 0

    def _named(self, places: Iterable[Place]) -> dict[tuple[str, int | None], Graph]:
        """Graphs by what directories say of them, in order of their number, else of what made them."""
        found: dict[tuple[str, int | None], int] = {}
        for place in places:
            key = (place.graph, place.number)
            found[key] = min(found.get(key, place.model_id or 0), place.model_id or 0)
        ordered = sorted(found, key=lambda key: (key[1] is None, key[1] or 0, found[key], key[0]))
        named: dict[tuple[str, int | None], Graph] = {}
        for order, (directory, number) in enumerate(ordered, 1):
            if directory.startswith("gm_"):
                # Named by time alone; the order of times is the order of compilation, which numbers count.
                named[directory, number] = Graph(f"graph_{order}", order)
            elif number is not None:
                named[directory, number] = Graph(f"graph_{number}", number)
            else:
                named[directory, number] = Graph(stable_name(directory, "graph"), None)
        return named

    def _group(self, place: Place) -> Group:
        return self._rank_of(place), self._graph_names[place.graph, place.number].name, place.step or 0

    def _steps(self) -> tuple[Step, ...]:
        order = {graph.name: index for index, graph in enumerate(self.graphs)}
        by_step: dict[tuple[str, int], dict[str, Node]] = {}
        for (_, graph, step), content in sorted(self._contents.items(), key=lambda item: item[0][0]):
            nodes = by_step.setdefault((graph, step), {})
            for path, (node, _) in content.items():
                nodes.setdefault(path, node)
        steps = []
        for graph, step in sorted(by_step, key=lambda key: (order[key[0]], key[1])):
            root = Node(name=graph, op_type="Graph", path="")
            for node in by_step[graph, step].values():
                root.add(node)
            steps.append(Step(step, Tree(root, graph), f"{graph}/{step}", graph))
        return tuple(steps)


def _key(step: Step, rank: Rank) -> Group:
    assert isinstance(step.label, int)
    return rank.index, step.graph, step.label
