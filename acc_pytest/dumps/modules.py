"""`ModuleDump`: a dump whose nodes are the modules of a torch model, and perhaps the functions they call.

What is common to torch dumps of ours and to those of other tools: which calls ran inside which, and which
slots held the same tensor (`calls`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..base.reason import Reason
from ..errors import DumpError
from ..tensors.ref import TensorRef, readable
from ..tensors.torch_file import stored_crc
from ..topology.torch_modules import MAX_DEPTH, UNKNOWN_TYPE
from ..topology.tree import Node, Tree
from .base import Dump, NodeSlot, Rank, Slot, Step, stable_name
from .torch_manifest import SavedTensor


class ModuleDump(Dump):
    """A dump of a torch model. A call of a module is a node; the second one is `{module}.call1`."""

    of_a_model = has_modules = True

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], Calls] = {}

    def calls(self, step: Step) -> Calls:
        key = step.directory, self.ranks[0].name
        if key not in self._calls:
            self._calls[key] = self._traced(step)
        return self._calls[key]

    def _traced(self, step: Step) -> Calls:
        dumped = {node: self.tensors(step, self.ranks[0], node) for node in step.tree.walk()}
        as_listed = {node: number for number, node in enumerate(dumped)}
        began, ended, saved = self._began(step), self._ended(step), self._saved(step)
        events: list[CallEvent] = []
        running: list[NodeCall] = []
        # A call that began after another and ended before it ran inside it.
        for node in sorted(self._ran(dumped), key=lambda node: (began(node), as_listed[node])):
            while running and ended(running[-1].node) < ended(node):
                events.append(CallEvent(running.pop(), True))
            call = NodeCall(
                node,
                running[-1] if running else None,
                tuple(slot for slot in dumped[node] if slot.kind == "input"),
                tuple(slot for slot in dumped[node] if slot.kind == "output"),
            )
            running.append(call)
            events.append(CallEvent(call, False))
        events += [CallEvent(call, True) for call in reversed(running)]

        origins = _Origins()
        dtypes: dict[NodeSlot, str] = {}
        for call, ends in events:
            for slot in call.outputs if ends else call.inputs:
                place, tensor = NodeSlot(call.node.path, slot), saved(call.node, dumped[call.node][slot])
                dtypes[place] = tensor.dtype if tensor is not None else ""
                if tensor is not None:
                    origins.add(place, tensor)
        replaced = self._replaced(step)
        return Calls(tuple(events), dtypes, origins.origins, origins.overwritten, replaced)

    def _ran(self, dumped: Mapping[Node, Mapping[Slot, TensorRef]]) -> Sequence[Node]:
        """The nodes that ran, of all nodes of a step with their tensors: those that have any."""
        return [node for node, tensors in dumped.items() if tensors]

    def _began(self, step: Step) -> Callable[[Node], int]:
        """The place of each node in the order in which they began; the same for all where it is not known."""
        return lambda node: 0

    def _ended(self, step: Step) -> Callable[[Node], int]:
        """The place of each node in the order in which they ended."""
        return lambda node: node.order

    def _replaced(self, step: Step) -> Mapping[str, int]:
        """The number of earlier calls whose tensors that of a node replaced, by its path; few have any."""
        return {}

    def _saved(self, step: Step) -> Callable[[Node, TensorRef], SavedTensor | None]:
        """The facts on each tensor of the first rank that need no reading of it."""
        return lambda node, ref: stored_tensor(ref)


def stored_tensor(ref: TensorRef) -> SavedTensor | None:
    """The facts at the end of a file of one tensor, and its dtype; `None` for files without."""
    crc_and_size = stored_crc(ref.path, ref.member)
    if crc_and_size is None:
        return None
    header = readable(ref)
    dtype = str(header.dtype) if header is not None else ""
    return SavedTensor(crc32=crc_and_size[0], dtype=dtype, shape=(crc_and_size[1],))


# The calls of a run as its dump shows them: which ran inside which, and which slots held the same tensor.
#
# A call is a module, a function or an operator that ran. Its inputs existed when it began, its outputs when
# it ended. Two slots held the same tensor where their bytes are equal, or where one is a view of the
# storage of the other that nothing wrote to in between. Both are evidence of the dump: no tensor is read
# for it.


@dataclass(frozen=True, eq=False, slots=True)
class NodeCall:
    """A node that ran, the call that it ran in (`None` for the outermost), and its slots that were dumped."""

    node: Node
    inside: NodeCall | None
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


class CallEvent(NamedTuple):
    """A call begins, or ends."""

    call: NodeCall
    ends: bool


class Origin(NamedTuple):
    """The first place that held a tensor, and how the later one lies in it (empty: the very same bytes)."""

    place: NodeSlot
    view: tuple[object, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Calls:
    """The calls of one step on one rank in the order of time.

    `dtypes` has every place that was dumped (empty where its dtype is not known), `origins` those whose
    tensor was dumped before: where it was seen first. `overwritten` are inputs in memory that was written to
    since another module was handed it, with the path of that module. `replaced` has the nodes that ran more
    often than the dump holds: how many earlier calls each has replaced.
    """

    events: tuple[CallEvent, ...]
    dtypes: Mapping[NodeSlot, str]
    origins: Mapping[NodeSlot, Origin]
    overwritten: Mapping[NodeSlot, str] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)

    def inputs(self) -> dict[str, frozenset[Slot]]:
        """The inputs of each call that were dumped, by the path of its node."""
        return {event.call.node.path: frozenset(event.call.inputs) for event in self.events}


class _Origins:
    """The tensors that were met, by their bytes and by their storage."""

    def __init__(self) -> None:
        self.origins: dict[NodeSlot, Origin] = {}
        self.overwritten: dict[NodeSlot, str] = {}
        self._latest: dict[tuple[int, int | None], tuple[int, NodeSlot]] = {}
        self._by_bytes: dict[tuple[int, str, int], NodeSlot] = {}
        self._by_storage: dict[tuple[int, int, str], list[tuple[NodeSlot, _Stretch]]] = {}

    def add(self, place: NodeSlot, tensor: SavedTensor) -> None:
        """The next tensor in the order of time."""
        if tensor.storage is not None and tensor.version is not None:
            memory = tensor.storage, tensor.offset
            version, before = self._latest.get(memory, (tensor.version, place))
            if version < tensor.version and before.slot.kind == place.slot.kind == "input":
                self.overwritten[place] = before.path
            self._latest[memory] = tensor.version, place
        if tensor.crc32 is not None and tensor.numel is not None:
            first = self._by_bytes.setdefault((tensor.crc32, tensor.dtype, tensor.numel), place)
            if first != place:
                self.origins[place] = Origin(first)
                return
        stretch = _Stretch.of(tensor)
        if stretch is None or tensor.storage is None or tensor.version is None:
            return
        stored = self._by_storage.setdefault((tensor.storage, tensor.version, tensor.dtype), [])
        for first, container in stored:
            if container.holds(stretch):
                self.origins[place] = Origin(
                    first, (stretch.offset - container.offset, stretch.shape, stretch.stride)
                )
                return
        stored.append((place, stretch))


class _Stretch(NamedTuple):
    """The place of a tensor in its storage, in elements."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    end: int

    @classmethod
    def of(cls, tensor: SavedTensor) -> _Stretch | None:
        offset, shape, stride = tensor.offset, tensor.shape, tensor.stride
        if offset is None or shape is None or stride is None or len(shape) != len(stride):
            return None
        span = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride))
        return cls(offset, shape, stride, offset + span)

    def holds(self, stretch: _Stretch) -> bool:
        """Whether every element of `stretch` is one of this tensor's, seen in another way.

        Seen in the same way it would have the same bytes, unless somebody wrote to it.
        """
        is_dense = self.end - self.offset == math.prod(self.shape)
        inside = self.offset <= stretch.offset and stretch.end <= self.end
        return is_dense and inside and self[:3] != stretch[:3]


# `RecordedDump`: a torch model as another tool recorded it, call by call.
#
# A reader of a format makes `Record`s; what they have in common is made here: the tree, the names of nodes,
# and the numbers of calls. A node is `root.{path}`, the second call of it in a step `root.{path}.call1`, as
# in dumps of `register_hook`.


ROOT = "root"


@dataclass(frozen=True, slots=True)
class Record:
    """One call: of the module at a dotted `path` below the model (empty for the model itself), or of a
    function below the module that called it.

    `began` and `ended` order the calls of a step; equal numbers keep the order in which the records are
    given. `called` gives a call its own number where the tool says it, else calls are counted. `inside` is
    the path of the node that it ran in, where its name does not say. What runs `apart` is in no module,
    whatever its path: gradients are computed when the model has run. `lost` are files that it names and that
    are not there, `replaced` the number of earlier calls whose files this one's replaced.
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
    replaced: int = 0


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
        return self._steps[step.directory].slots(rank.name, node.path)

    def absent(self, step: Step, rank: Rank) -> Mapping[str, Sequence[str]]:
        """The files that the records name and that are absent."""
        return self._steps[step.directory].lost[rank.name]

    def _replaced(self, step: Step) -> Mapping[str, int]:
        return self._steps[step.directory].replaced

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
        self.replaced = {path: record.replaced for path, record in by_path.items() if record.replaced}
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


# The passes of a model: tools that do not see the model itself record the modules that it calls.


def pass_starts(paths: Sequence[str], modules: Iterable[str]) -> list[int]:
    """The places where passes begin among the calls of outermost modules: at a module that this pass has
    called already.

    Later passes call the same modules. The first may call others before these (an encoder of images). What
    a model calls several times in one pass (a shared layer, dropout) leaves passes that differ, and then all
    is one pass; so is what one module does that calls no other, of all `modules`.
    """
    inside = f"{paths[0]}." if paths and paths[0] else ""
    if len(set(paths)) == 1 and not any(module.startswith(inside) for module in modules):
        return [0]
    # The first place, and each at a path that came before since the last of them.
    starts = [0] if paths else []
    called: set[str] = set()
    for place, path in enumerate(paths):
        if path in called:
            starts.append(place)
            called = set()
        called.add(path)
    first, *later = [list(paths[begin:end]) for begin, end in zip(starts, [*starts[1:], len(paths)])] or [[]]
    is_uniform = all(run == later[0] for run in later)
    if not later or not is_uniform or first[-len(later[0]) :] != later[0]:
        return starts[:1]
    return starts if len(first) == len(later[0]) or len(later[0]) > 1 else starts[:1]


def pass_labels(
    step: int, used: Collection[int], counts: Iterable[int], notify: Callable[[str], None]
) -> range:
    """The labels of the passes of a step, numbered on behind those that are `used`.

    `counts` are the passes on each rank: where ranks do not agree, all is one pass. `notify` gets a sentence
    about several.
    """
    different = set(counts)
    label = max(step, max(used, default=-1) + 1)
    labels = range(label, label + (different.pop() if len(different) == 1 else 1))
    if len(labels) > 1:
        notify(
            Reason(
                "step {} has {} calls of the model: steps {} to {}", step, len(labels), labels[0], labels[-1]
            )
        )
    return labels


def is_inside(path: str, modules: Collection[str]) -> bool:
    """Whether one of the modules holds the module at a path."""
    names = path.split(".")
    return any(".".join(names[:depth]) in modules for depth in range(1, len(names)))
