"""Dumps of TorchAir: what those of GE and FX have in common, and those of FX.

Ranks, compiled graphs and steps come from the directories of one walk.

A run compiles one graph or several (prefill and decode, say), and each counts its executions from 0. So a
step here is a graph and a number, and `Dump.steps` has one entry for each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..base.reason import Reason
from ..tensors.location import is_file
from ..tensors.ref import TensorRef
from ..topology.tree import Node, Tree
from .base import Dump, Listing, Rank, Slot, Step, stable_name
from .torchair_files import FxFileName, TorchairDirectory, TorchairFiles, fx_directory, is_level

if TYPE_CHECKING:
    from ..topology.ge_graph import GeGraph

Entry = TypeVar("Entry")
StepKey = tuple[int, str, int]
"""Rank, graph, step."""


@dataclass(frozen=True, slots=True)
class TorchairGraph:
    """A compiled graph: its name in ids and rows, and the number that it has in every run of one script."""

    name: str
    number: int | None


class TorchairDump(Dump, Generic[Entry]):
    """A dump of GE or FX. `graphs` are in the order of their compilation.

    `ranked` says that directories name their ranks; without it there is one rank, or (GE) one per device.
    """

    of_graphs = True
    graphs: tuple[TorchairGraph, ...]
    ranked: bool

    def __init__(self, root: Path, files: TorchairFiles, homes: Iterable[str]) -> None:
        self.root = root
        bare = is_level(root.name) or is_file(root)
        self.name = f"{self.kind}_dump" if bare else stable_name(root.name, f"{self.kind}_dump")
        self._notes = list(files.notes)
        if files.unknown:
            kinds = ", ".join(f"{count} ({kind})" for kind, count in sorted(files.unknown.items()))
            self._notes.append(
                Reason("{}: files that belong to no {} dump: {}", root, self.kind.upper(), kinds)
            )
        directories = {home: self._directory(home) for home in homes}
        self.forced = list(directories) == [str(root)] and not is_file(root)
        self.ranked = any(directory.rank is not None for directory in directories.values())
        devices = {directory.device for directory in directories.values() if directory.device is not None}
        self._by_device = not self.ranked and len(devices) > 1
        self.ranks = self._ranks(directories.values())
        self._graph_names = self._named(directories.values())
        self.graphs = tuple(dict.fromkeys(self._graph_names.values()))
        groups: dict[StepKey, list[str]] = {}
        for home, directory in sorted(
            directories.items(), key=lambda item: (item[1].time, item[1].model_id or 0)
        ):
            graph = self._graph_names[directory.graph, directory.number]
            groups.setdefault((self._rank_of(directory), graph.name, directory.step or 0), []).append(home)
        self._contents = {group: self._content(homes, directories, group) for group, homes in groups.items()}
        self.steps = self._steps()
        self.notes = tuple(dict.fromkeys(self._notes))

    @abstractmethod
    def _directory(self, home: str) -> TorchairDirectory: ...

    @abstractmethod
    def _content(
        self, homes: list[str], directories: Mapping[str, TorchairDirectory], group: StepKey
    ) -> dict[str, tuple[Node, Entry]]:
        """The nodes of a rank, graph and step, in the order in which they ran, by their paths."""

    @abstractmethod
    def _slots(self, node: Node, entry: Entry) -> Mapping[Slot, TensorRef]: ...

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        """See `Dump.tensors`. A record of GE is opened for it; raises `FormatError` for a broken one."""
        node_and_entry = self._contents.get(_key(step, rank), {}).get(node.path)
        return self._slots(*node_and_entry) if node_and_entry is not None else {}

    def entry(self, step: Step, rank: Rank, node: Node) -> Entry | None:
        """The entry of a node on a rank, `None` where it did not run there."""
        node_and_entry = self._contents.get(_key(step, rank), {}).get(node.path)
        return node_and_entry[1] if node_and_entry is not None else None

    def nodes(self, step: Step, rank: Rank) -> list[Node]:
        """The nodes dumped on one rank, in the order in which they ran there."""
        return [node for node, _ in self._contents.get(_key(step, rank), {}).values()]

    def has(self, step: Step, rank: Rank) -> bool:
        """Whether anything was dumped of a step on a rank."""
        return _key(step, rank) in self._contents

    def graph(self, step: Step, rank: Rank) -> GeGraph | None:
        """The graph that ran, where a text of it lies beside the dump."""
        return None

    def _ranks(self, directories: Iterable[TorchairDirectory]) -> tuple[Rank, ...]:
        if self._by_device:
            self._notes.append(
                Reason(
                    "{}: no directory names a rank, so each device counts as one "
                    "({} is written since PTA 7.2)",
                    self.root,
                    "worldsize{W}_global_rank{R}",
                )
            )
        worlds = {self._rank_of(directory): directory.world for directory in directories}
        return tuple(
            Rank(index, f"worldsize{world}_global_rank{index}" if world is not None else "")
            for index, world in sorted(worlds.items())
        )

    def _rank_of(self, directory: TorchairDirectory) -> int:
        if self._by_device:
            return directory.device or 0
        return directory.rank or 0

    def _named(self, directories: Iterable[TorchairDirectory]) -> dict[tuple[str, int | None], TorchairGraph]:
        """Graphs by what directories say of them, in order of their number, else of what made them."""
        model_ids: dict[tuple[str, int | None], int] = {}
        for directory in directories:
            key, model_id = (directory.graph, directory.number), directory.model_id or 0
            model_ids[key] = min(model_ids.get(key, model_id), model_id)
        ordered = sorted(model_ids, key=lambda key: (key[1] is None, key[1] or 0, model_ids[key], key[0]))
        # The directory of one of several graphs may be given alone: those beside it were compiled before it.
        home = next((path for path in (self.root, *self.root.parents) if path.name.startswith("gm_")), None)
        names = () if home is None else Listing().directories(home.parent)
        beside = [name for name in names if name.startswith("gm_")]
        named: dict[tuple[str, int | None], TorchairGraph] = {}
        for order, (name, number) in enumerate(ordered, 1):
            if name.startswith("gm_"):
                # Named by time alone; the order of times is the order of compilation, which numbers count.
                order = beside.index(name) + 1 if name in beside else order
                named[name, number] = TorchairGraph(f"graph_{order}", order)
            elif number is not None:
                named[name, number] = TorchairGraph(f"graph_{number}", number)
            else:
                named[name, number] = TorchairGraph(stable_name(name, "graph"), None)
        return named

    def _steps(self) -> tuple[Step, ...]:
        order = {graph.name: index for index, graph in enumerate(self.graphs)}
        by_step: dict[tuple[str, int], dict[str, Node]] = {}
        for (_, graph, step), content in sorted(self._contents.items(), key=lambda item: item[0][0]):
            nodes = by_step.setdefault((graph, step), {})
            for path, (node, _) in content.items():
                nodes.setdefault(path, node)
        steps = []
        for graph, step in sorted(by_step, key=lambda key: (order[key[0]], key[1])):
            root = Node(name=graph, op_type="TorchairGraph", path="")
            for node in by_step[graph, step].values():
                root.add(node)
            steps.append(Step(step, Tree(root, graph), f"{graph}/{step}", graph))
        return tuple(steps)


AnyDump = TorchairDump[Any]


def _key(step: Step, rank: Rank) -> StepKey:
    assert isinstance(step.label, int)
    return rank.index, step.graph, step.label


# FX: the tensors of every call of an aten graph, as TorchAir and our own backend write them.
#
# Positions are arguments, so `INPUT.0.1` is `input[0][1]`; keyword arguments, which only our backend writes,
# have names. Nothing is opened here: what a file holds is for the reader to say.


FxEntry = dict[Slot, tuple[FxFileName, str]]
"""The files of one call by slot, each with what its name says."""


class FxDump(TorchairDump[FxEntry]):
    """An FX dump. A node is a call: `name` is the FX node (`add_3`), `op_type` its target."""

    kind = "fx"

    def __init__(self, root: Path, files: TorchairFiles) -> None:
        self._files = files.fx
        super().__init__(root, files, files.fx)

    def _directory(self, home: str) -> TorchairDirectory:
        return fx_directory(home)

    def _content(
        self, homes: list[str], directories: Mapping[str, TorchairDirectory], group: StepKey
    ) -> dict[str, tuple[Node, FxEntry]]:
        entries: dict[str, FxEntry] = {}
        times: dict[str, int] = {}
        again: set[str] = set()
        for home in homes:
            for name, parsed in self._files[home]:
                path = f"{parsed.node}-{parsed.target}"
                slot = Slot("input" if parsed.kind == "input" else "output", parsed.index)
                files = entries.setdefault(path, {})
                before = files.get(slot)
                if before is not None and before[0].time != parsed.time:
                    again.add(path)
                # A tensor beats the numbers that a conversion made of one, a later call an earlier one.
                if before is None or _rank(before[0]) < _rank(parsed):
                    files[slot] = parsed, f"{home}/{name}"
                times[path] = max(times.get(path, 0), parsed.time)
        if again:
            self._notes.append(
                Reason(
                    "{} step {}: {} operators were dumped several times into one step "
                    "({}, ...); the last call counts",
                    group[1],
                    group[2],
                    len(again),
                    min(again),
                )
            )
        ordered = sorted(entries, key=lambda path: times[path])
        content = {}
        for path in ordered:
            parsed = next(iter(entries[path].values()))[0]
            content[path] = Node(parsed.node, parsed.target, path), dict(sorted(entries[path].items()))
        return content

    def _slots(self, node: Node, entry: FxEntry) -> Mapping[Slot, TensorRef]:
        return {slot: TensorRef(path) for slot, (_, path) in entry.items()}


def _rank(name: FxFileName) -> tuple[bool, int]:
    return not name.info, name.time
