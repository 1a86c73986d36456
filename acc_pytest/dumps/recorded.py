"""`RecordedDump`: a torch model as another tool recorded it, call by call.

A reader of a format makes `Record`s; what they have in common is made here: the tree, the names of nodes,
and the numbers of calls. A node is `root.{path}`, the second call of it in a step `root.{path}.call1`, as in
dumps of `register_hook`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DumpError
from ..tensors.ref import TensorRef
from ..topology.torch_modules import MAX_DEPTH, UNKNOWN_TYPE
from ..topology.tree import Node, Tree
from .base import Rank, Slot, Step
from .modules import ModuleDump
from .naming import stable_name

ROOT = "root"
SAVED = "Tensor"
"""Type of a node that is no call, but a tensor that the program saved by name."""


@dataclass(frozen=True, slots=True)
class Record:
    """One call: of the module at a dotted `path` below the model (empty for the model itself), or of a
    function below the module that called it.

    `began` and `ended` order the calls of a step; equal numbers keep the order in which the records are
    given. `called` gives a call its own number where the tool says it, else calls are counted. `inside` is
    the path of the node that it ran in, where its name does not say. What runs `apart` is in no module,
    whatever its path: gradients are computed when the model has run. `lost` are files that it names and that
    are not there.
    """

    path: str
    op_type: str
    slots: Mapping[Slot, TensorRef]
    began: int = 0
    ended: int = 0
    called: int | None = None
    apart: bool = False
    inside: str | None = None
    lost: Sequence[str] = ()


class RecordedDump(ModuleDump):
    """The records of each step and rank as a dump. Subclasses set `kind`, and read."""

    def __init__(
        self,
        root: Path,
        records: Mapping[int, Mapping[str, Sequence[Record]]],
        *,
        model: str = UNKNOWN_TYPE,
        notes: Iterable[str] = (),
        name: str = "",
    ) -> None:
        """`records` of each step, by the name of each rank in rank order; `model` is the type of the model.

        `name` overrides the one that the directory gives.
        """
        super().__init__()
        self.root = root
        self.name = name or stable_name(root.name, f"{self.kind}_dump")
        names = list(dict.fromkeys(rank for ranks in records.values() for rank in ranks))
        self.ranks = tuple(Rank(index, rank) for index, rank in enumerate(names))
        self._steps: dict[str, _RecordedStep] = {}
        steps = []
        for label in sorted(records):
            recorded = _RecordedStep(records[label], model)
            self._steps[str(label)] = recorded
            steps.append(Step(label, recorded.tree, str(label)))
        self.steps = tuple(steps)
        self.notes = tuple(notes)

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        """See `Dump.tensors`."""
        return self._steps[step.directory].slots(rank.name, node.path)

    def absent(self, step: Step, rank: Rank) -> Mapping[str, Sequence[str]]:
        """The files that the records name and that are absent."""
        return self._steps[step.directory].lost[rank.name]

    def _began(self, step: Step) -> Callable[[Node], int]:
        began = self._steps[step.directory].began
        return lambda node: began.get(node.path, len(began))

    def _ended(self, step: Step) -> Callable[[Node], int]:
        ended = self._steps[step.directory].ended
        return lambda node: ended.get(node.path, len(ended))


class _RecordedStep:
    """The tree of a step, its tensors by rank and path, and the place of each path among those that began."""

    def __init__(self, ranks: Mapping[str, Sequence[Record]], model: str) -> None:
        self._slots: dict[tuple[str, str], Mapping[Slot, TensorRef]] = {}
        self._sorted: set[tuple[str, str]] = set()
        self.lost: dict[str, dict[str, Sequence[str]]] = defaultdict(dict)
        by_path: dict[str, Record] = {}
        for rank, records in ranks.items():
            for path, record in _numbered(records):
                self._slots[rank, path] = record.slots
                by_path.setdefault(path, record)
                if record.lost:
                    self.lost[rank][path] = record.lost
        self.tree = _tree(by_path, model)
        self.began = _places(by_path, lambda record: record.began)
        self.ended = _places(by_path, lambda record: record.ended)

    def slots(self, rank: str, path: str) -> Mapping[Slot, TensorRef]:
        """The tensors of a node on a rank, sorted when they are asked for."""
        key = (rank, path)
        if key not in self._sorted and key in self._slots:
            self._sorted.add(key)
            self._slots[key] = dict(sorted(self._slots[key].items(), key=lambda item: item[0]))
        return self._slots.get(key, {})


def _places(by_path: Mapping[str, Record], time: Callable[[Record], int]) -> dict[str, int]:
    """The place of each path in the order of a time."""
    in_order = sorted(by_path, key=lambda path: time(by_path[path]))
    return {path: number for number, path in enumerate(in_order)}


def _numbered(records: Iterable[Record]) -> Iterable[tuple[str, Record]]:
    """Each record with the path of its node."""
    counts: Counter[str] = Counter()
    for record in records:
        path = f"{ROOT}.{record.path}" if record.path else ROOT
        call = counts[path] if record.called is None else record.called
        counts[path] += 1
        yield f"{path}.call{call}" if call else path, record


def _tree(by_path: Mapping[str, Record], model: str) -> Tree:
    """Nodes below the nearest module that their path starts with.

    What no record names stands in the tree where something below it ran, but for lists of modules, which
    never run.
    """
    deepest = max((path.count(".") for path in by_path), default=0)
    if deepest > MAX_DEPTH:
        raise DumpError(f"the name of a module has {deepest} dots; no model is nested so deeply")
    ended = {path: record.ended for path, record in by_path.items()}
    nodes: dict[str, Node] = {}

    def node_of(path: str) -> Node:
        if path not in nodes:
            record = by_path.get(path)
            kind = record.op_type if record is not None else UNKNOWN_TYPE if path != ROOT else model
            nodes[path] = Node(name=path, op_type=kind, path=path)
            if path != ROOT:
                apart = record is not None and record.apart
                node_of(ROOT if apart else _around(path, by_path)).add(nodes[path])
        return nodes[path]

    for path in by_path:
        node_of(path)
    root = node_of(ROOT)
    _in_order_of_ends(root, ended)
    return Tree(root, root.op_type)


def _around(path: str, by_path: Mapping[str, Record]) -> str:
    """The path of the node that one ran in."""
    inside = by_path[path].inside if path in by_path else None
    if inside is not None and inside in by_path and not f"{inside}.".startswith(f"{path}."):
        return inside
    return _parent(path, by_path)


def _parent(path: str, by_path: Mapping[str, Record]) -> str:
    """The path of the node that a path hangs below: a list of modules (`layers` of `layers.0`) is none."""
    parent, _, last = path.rpartition(".")
    if last.startswith("call") and last[4:].isdecimal() and parent in by_path:
        return _parent(parent, by_path)
    if last.isdecimal() and parent in by_path and _is_function(parent, by_path[parent]):
        return _parent(parent, by_path)  # another call of it
    in_list = last.isdecimal() and parent not in by_path
    return (parent.rpartition(".")[0] if in_list else parent) or ROOT


def _is_function(path: str, record: Record) -> bool:
    """Whether a call is that of a function, which is named after what it does."""
    return path.rpartition(".")[2].rstrip("_") == record.op_type.rstrip("_")


def _in_order_of_ends(node: Node, ended: Mapping[str, int]) -> int:
    """Sort the children of every node by when they ended; returns when the last of all ended."""
    ends = {child: _in_order_of_ends(child, ended) for child in node.children}
    node.children.sort(key=lambda child: ends[child])
    return ended.get(node.path, max(ends.values(), default=-1))
