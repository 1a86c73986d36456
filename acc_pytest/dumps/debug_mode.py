"""Logs of PyTorch's `DebugMode` as dumps: one file, of each tensor its L1 norm.

A node is an operator below the module that called it: `root.model.norm.mul`, the next is `..mul_1`.
Each run of the outermost module is a step. Where golden is such a log too, operators are named as in golden:
those of a module are aligned by operator and shape in their order, because another dtype adds operators
(`_to_copy`).
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

from ..errors import DumpError
from ..tensors.debug_log import FORMAT, LoggedCall, LoggedTensor, member, read_log
from ..tensors.file_bytes import opened
from ..tensors.formats import TensorFormat
from ..tensors.location import is_file
from ..tensors.ref import TensorRef
from ..topology.torch_modules import MAX_DEPTH, UNKNOWN_TYPE
from ..topology.tree import Node, Tree
from .base import Dump, DumpLayout, Listing, PlainLayout, Rank, Slot, Step, stable_name
from .modules import ROOT, ModuleDump
from .torch_manifest import SavedTensor

SUFFIXES = frozenset({".txt", ".log", ""})
"""Suffixes of files that are searched for a log."""
_HEAD = 4096


def dumps_at(path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump of a log, or of each in a directory."""
    for file in logs_at(path, listing, FORMAT, SUFFIXES, _HEAD):
        yield PlainLayout("DebugMode", file, functools.partial(DebugModeDump, file))


def logs_at(
    path: Path, listing: Listing, log: TensorFormat, suffixes: Collection[str], length: int
) -> Iterator[Path]:
    """The path, or the files in it, that are logs of a format by their first bytes, so many of them."""
    for file in [path / name for name in listing.files(path)] or [path]:
        if file.suffix.lower() in suffixes and is_file(file):
            with opened(str(file)) as (stream, _):
                is_log = log.matches(stream.read(length))
            if is_log:
                yield file


@dataclass(slots=True, eq=False)
class _OpenStep:
    """One step while it is read: nodes by path, lines of operators, and how often names were used."""

    root: Node
    nodes: dict[str, Node] = field(default_factory=dict)
    lines: dict[Node, int] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)

    def free_path(self, path: str) -> str:
        """The path of a module's next call: `path`, then `path.call1`, `path.call2`."""
        self.uses[path] += 1
        return path if self.uses[path] == 1 else f"{path}.call{self.uses[path] - 1}"


class DebugModeDump(ModuleDump):
    """A log. `golden` is golden: see above."""

    kind = "debug_mode"

    def __init__(self, root: Path, golden: Dump | None) -> None:
        super().__init__()
        self.root = root
        self.name = stable_name(root.stem, "debug_mode")
        self.ranks = (Rank(0, ""),)
        self._logged = read_log(str(root))
        self._lines: dict[tuple[str, str], int] = {}
        runs = list(_runs(self._logged))
        if not any(call.outputs for call in self._logged):
            raise DumpError(
                f"{root}: a log of DebugMode without norms of tensors; run the model within "
                "DebugMode.log_tensor_hashes(hash_inputs=True)"
            )
        steps = []
        for label, run in enumerate(runs):
            golden_tree = (
                golden.steps[label].tree
                if isinstance(golden, DebugModeDump) and label < len(golden.steps)
                else None
            )
            names = _aligned(golden_tree.root, run.root) if golden_tree is not None else {}
            _name(run.root, names)
            tree = Tree(run.root, run.root.op_type)
            steps.append(Step(label, tree, str(label)))
            self._lines |= {(str(label), node.path): line for node, line in run.lines.items()}
        self.steps = tuple(steps)

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        line = self._lines.get((step.directory, node.path))
        if line is None:
            return {}
        return {slot: self._ref(line, slot) for slot in sorted(_slots(self._logged[line]))}

    def _ref(self, line: int, slot: Slot) -> TensorRef:
        return TensorRef(str(self.root), member(line, slot.kind, slot.index))

    def _began(self, step: Step) -> Callable[[Node], int]:
        return lambda node: self._lines.get((step.directory, node.path), 0)

    def _ran(self, dumped: Mapping[Node, Mapping[Slot, TensorRef]]) -> Sequence[Node]:
        """Modules too, though nothing is known of their tensors: a log has all that ran."""
        return list(dumped)

    def _saved(self, step: Step) -> Callable[[Node, TensorRef], SavedTensor | None]:
        """A tensor is the one that was there before if number and norm are equal; some are written to."""
        tensors = {
            self._ref(line, slot).member: tensor
            for line in self._lines.values()
            for slot, tensor in _slots(self._logged[line]).items()
        }

        def saved(node: Node, ref: TensorRef) -> SavedTensor | None:
            tensor = tensors.get(ref.member)
            if tensor is None or tensor.number is None:
                return None
            text = f"{tensor.number} {tensor.l1norm!r}"
            return SavedTensor(dtype=tensor.dtype, shape=tensor.shape, crc32=zlib.crc32(text.encode()))

        return saved


def _slots(call: LoggedCall) -> dict[Slot, LoggedTensor]:
    return {Slot("input", index): tensor for index, tensor in call.inputs.items()} | {
        Slot("output", index): tensor for index, tensor in call.outputs.items()
    }


def _runs(calls: tuple[LoggedCall, ...]) -> Iterator[_OpenStep]:
    """The steps of a log, as trees whose operators have no name yet."""
    model = next((call.name for call in calls if call.is_module), "")
    run = _OpenStep(Node(ROOT, model or UNKNOWN_TYPE, ROOT))
    ancestors: list[tuple[int, Node]] = []
    for line, call in enumerate(calls):
        while ancestors and ancestors[-1][0] >= call.indent:
            ancestors.pop()
        if len(ancestors) > MAX_DEPTH:
            raise DumpError(f"a log of DebugMode nests calls {len(ancestors)} deep; no model does")
        if not call.name:
            continue
        parent = ancestors[-1][1] if ancestors else run.root
        if call.is_module and call.name == model and not ancestors:
            if ROOT in run.nodes:
                yield run
                run = _OpenStep(Node(ROOT, model, ROOT))
            node = run.nodes[ROOT] = run.root
        elif call.is_module:
            path = run.free_path(f"{ROOT}.{call.name.removeprefix(f'{model}.')}")
            node = run.nodes[path] = parent.add(Node(path, UNKNOWN_TYPE, path))
        else:
            shapes = " ".join("x".join(map(str, tensor.shape)) for tensor in call.outputs.values())
            node = parent.add(Node("", call.name.replace("::", "."), "", {"results": shapes}))
        run.lines[node] = line
        ancestors.append((call.indent, node))
    yield run


def _key(node: Node) -> tuple[str, str]:
    """The key by which operators are aligned; modules have their path."""
    return (node.op_type, str(node.param["results"])) if "results" in node.param else ("", node.path)


def _aligned(golden: Node, mine: Node) -> dict[Node, str]:
    """The last names of operators of mine that are operators of golden, children by children."""
    names: dict[Node, str] = {}
    golden_keys, mine_keys = ([_key(child) for child in side.children] for side in (golden, mine))
    matcher = SequenceMatcher(None, golden_keys, mine_keys, autojunk=False)
    for block in matcher.get_matching_blocks():
        for i in range(block.size):
            golden_child, mine_child = golden.children[block.a + i], mine.children[block.b + i]
            if "results" in mine_child.param:
                names[mine_child] = golden_child.path.rpartition(".")[2]
            names |= _aligned(golden_child, mine_child)
    return names


def _name(node: Node, names: Mapping[Node, str]) -> None:
    """Name the operators below a node: as `names` has them, the others by what they are and a free number."""
    used = {names[child] for child in node.children if child in names}
    for child in node.children:
        if "results" in child.param:
            name = names.get(child) or _free(child.op_type, used)
            used.add(name)
            child.path = child.name = f"{node.path}.{name}"
        _name(child, names)


def _free(op_type: str, used: set[str]) -> str:
    segments = op_type.split(".")
    plain = segments[1] if len(segments) > 1 and segments[0] != "torch" else segments[-1]
    name, count = plain, 0
    while name in used:
        count += 1
        name = f"{plain}_{count}"
    return name
