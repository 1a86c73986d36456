"""Dumps of the Graph Engine: one record per operator and execution, and the texts of the compiled graphs.

Opening a dump reads names only. A record is opened, its header alone, when its tensors are asked for; a graph
text when the mapping asks for the graph.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.reason import Reason
from ..errors import AccError
from ..tensors.kept_dump import file_size
from ..tensors.ref import TensorRef
from ..topology.tree import Node
from .base import Rank, Slot, Step
from .torchair import StepKey, TorchairDump
from .torchair_files import (
    GeFileName,
    GraphFileName,
    TorchairDirectory,
    TorchairFiles,
    ge_directory,
    sanitized,
)

if TYPE_CHECKING:
    from ..tensors.ge_message import GeRecord
    from ..topology.ge_graph import GeGraph

_FORMS = ("statistics", "info", "record")
"""Forms of the file of an operator; where there are several, the last of these counts."""
_COPIED = "Data"
"""The type of a graph's input, which is dumped once for each of its consumers."""


@dataclass(frozen=True, slots=True)
class GeEntry:
    """The file of an operator at one step, and what its name says."""

    name: GeFileName
    path: str


class GeDump(TorchairDump[GeEntry]):
    """A GE dump. A node is an operator; `name` is its name as files have it, with `_` for `.`, `/` and `\\`.

    A slice of an FFTS+ operator is a node of its own, below the operator's name: `MatMul_1/thread0`.
    """

    kind = "ge"

    def __init__(self, root: Path, files: TorchairFiles) -> None:
        self._files = files.ge
        self._texts = files.graphs
        self._read: dict[str, GeGraph | None] = {}
        self._chosen: dict[tuple[int, str], str | None] = {}
        for home, names in files.hashed.items():
            named = [(name, _of_header(f"{home}/{name}")) for name in names]
            self._files.setdefault(home, []).extend(named)
            files.notes.append(
                Reason(
                    "{}: mapping.csv does not explain {} hashed names; their headers tell them",
                    home,
                    len(names),
                )
            )
        super().__init__(root, files, self._files)

    def record(self, entry: GeEntry) -> GeRecord | None:
        """The header of an operator's record; `None` where only numbers of it are left (info, statistics).

        Raises `FormatError` for a broken one.
        """
        if entry.name.form != "record":
            return None
        from ..tensors.ge_record import read_record

        return read_record(entry.path)

    def graph(self, step: Step, rank: Rank) -> GeGraph | None:
        """The graph that ran, `None` where its text is missing or broken; `notes` then say so."""
        key = (rank.index, step.graph)
        if key not in self._chosen:
            self._chosen[key] = self._choose_text(step, rank)
        path = self._chosen[key]
        if path is None:
            self._say(
                Reason(
                    "{}: no graph text ({}) beside the dump",
                    step.graph,
                    f"dynamo_original_{step.graph}_...txt",
                )
            )
            return None
        return self._parsed(path)

    def _parsed(self, path: str) -> GeGraph | None:
        if path not in self._read:
            from ..topology.ge_graph import read_graph

            try:
                self._read[path] = read_graph(path)
            except AccError as error:
                self._read[path] = None
                self._say(Reason("a graph text cannot be read: {}", error))
        return self._read[path]

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes += (note,)

    def _directory(self, home: str) -> TorchairDirectory:
        return ge_directory(home)

    def _content(
        self, homes: list[str], directories: Mapping[str, TorchairDirectory], group: StepKey
    ) -> dict[str, tuple[Node, GeEntry]]:
        where = Reason("{} step {}", group[1], group[2])
        if len(models := {directories[home].model_id for home in homes}) > 1:
            self._notes.append(
                Reason(
                    "{}: dumped by several loaded models ({}); "
                    "of an operator that several dumped the latest counts",
                    where,
                    ", ".join(map(str, sorted(models, key=str))),
                )
            )
        entries: dict[tuple[str, str, int], tuple[str, GeEntry]] = {}
        several: Counter[str] = Counter()
        for home in homes:
            for name, parsed in self._files[home]:
                entry = GeEntry(parsed, f"{home}/{name}")
                key = (parsed.op_type, parsed.op_name, parsed.thread)
                before = entries.get(key)
                if before is None or before[0] != home:
                    entries[key] = home, entry
                    continue
                if parsed.op_type != _COPIED and parsed.form == before[1].name.form:
                    several[parsed.op_name] += 1
                entries[key] = home, max(before[1], entry, key=_weight)
        if several:
            self._notes.append(
                Reason(
                    "{}: {} operators were dumped several times into one step "
                    "({}, ...); the largest record counts, of equal ones the last",
                    where,
                    len(several),
                    min(several),
                )
            )
        ordered = sorted((entry for _, entry in entries.values()), key=lambda entry: entry.name.time)
        content: dict[str, tuple[Node, GeEntry]] = {}
        for entry in ordered:
            path = _path(entry.name, content)
            content[path] = Node(entry.name.op_name, entry.name.op_type, path), entry
        return content

    def _slots(self, node: Node, entry: GeEntry) -> Mapping[Slot, TensorRef]:
        slots = {}
        for member in _members(entry):
            kind, _, index = member.partition("/")
            slot = Slot("input" if kind == "inputs" else "output", (int(index),))
            slots[slot] = TensorRef(entry.path, member)
        return dict(sorted(slots.items()))

    def _choose_text(self, step: Step, rank: Rank) -> str | None:
        """The text of a graph: of the rank itself where its name says so, else of any; the latest of several.

        The graph as converted is preferred to the optimized one: passes may have lost names of FX there.
        Names before PTA 7.1 say neither graph nor rank; then the operators in the text decide.
        """
        forms = ([text for text in self._texts if text[1].form == form] for form in ("original", "optimized"))
        texts = next(filter(None, forms), [])
        named = self._naming(texts, step)
        if named:
            of_rank = [text for text in named if text[1].rank == rank.index]
            if not of_rank:
                self._say(
                    Reason("{}: no graph text of rank {}; another rank's is taken", step.graph, rank.index)
                )
            return self._latest(of_rank or named, step)
        unnamed = sorted((text for text in texts if text[1].graph is None), key=lambda text: text[1].time)
        if len(unnamed) == len(self.graphs):
            order = [graph.name for graph in self.graphs].index(step.graph)
            return unnamed[order][0]
        # The text that holds most of the operators that ran; the later one of equals.
        ran = {node.name for node in self.nodes(step, rank)}
        best, best_count = None, 0
        for path, _ in unnamed:
            graph = self._parsed(path)
            count = len(ran & {sanitized(node.name) for node in graph.nodes}) if graph is not None else 0
            if count and count >= best_count:
                best, best_count = path, count
        if best is not None:
            self._say(
                Reason(
                    "{}: {} graph texts, none says of which graph; {} fits best",
                    step.graph,
                    len(unnamed),
                    best,
                )
            )
        return best

    def _naming(self, texts: list[tuple[str, GraphFileName]], step: Step) -> list[tuple[str, GraphFileName]]:
        """The texts whose names say the graph of a step; a lone graph meets texts of a lone one."""
        number = next(graph.number for graph in self.graphs if graph.name == step.graph)
        numbered = [text for text in texts if text[1].graph is not None]
        named = [text for text in numbered if text[1].graph == number]
        lone = len(self.graphs) == 1 and len({text[1].graph for text in texts}) == 1
        return named or (numbered if lone else [])

    def _latest(self, texts: list[tuple[str, GraphFileName]], step: Step) -> str:
        path, _ = max(texts, key=lambda text: text[1].time)
        if len({text[1].time for text in texts if text[1].rank == texts[0][1].rank}) > 1:
            self._say(
                Reason("{}: graph texts of several runs lie here; the latest counts ({})", step.graph, path)
            )
        return path


def _members(entry: GeEntry) -> Iterable[str]:
    """The names of an operator's tensors in its file: `inputs/0`, `outputs/0`, ..."""
    if entry.name.form == "info":
        from ..tensors.info_file import read_info

        return read_info(entry.path)
    if entry.name.form == "statistics":
        from ..tensors.statistics import statistics_in

        return statistics_in(entry.path)
    from ..tensors.ge_file import members

    return members(entry.path)


def _weight(entry: GeEntry) -> tuple[int, int, int]:
    """The rank of one of several files of an operator: the largest counts."""
    try:
        size = file_size(entry.path)
    except (AccError, OSError):
        size = 0
    return _FORMS.index(entry.name.form), size, entry.name.time


def _path(name: GeFileName, paths: Mapping[str, object]) -> str:
    path = f"{name.op_name}/thread{name.thread}" if name.thread >= 0 else name.op_name
    return path if path not in paths else f"{name.op_type}.{path}"


def _of_header(path: str) -> GeFileName:
    """The name of a record whose file name is a hash; the record does not say its type."""
    from ..tensors.ge_record import read_record

    try:
        record = read_record(path)
    except AccError:
        return GeFileName("", os.path.basename(path), 0)
    return GeFileName("", sanitized(record.op_name), record.dump_time)
