"""Dumps of Hugging Face's `model_addition_debugger_context`: a tree of calls, and perhaps a file per tensor.

    LlamaForCausalLM_debug_tree_FULL_TENSORS.json                    which module ran in which, on what
    LlamaForCausalLM.model.norm_outputs.safetensors                  a tensor, with the key `data`

Modules with children have no outputs. There are no types, steps or ranks: only rank 0 writes, and a second
call of the model replaces the first.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..base.reason import Reason
from ..base.texts import is_index
from ..errors import DumpError, FormatError
from ..tensors.debug_tree import is_tensor, is_tree, read_tree
from ..tensors.file_bytes import opened
from ..tensors.location import is_directory
from ..tensors.ref import TensorRef, readable
from ..topology.torch_modules import MAX_DEPTH, UNKNOWN_TYPE
from ..topology.tree import Node
from .base import DumpLayout, Listing, PlainLayout, Slot, Step
from .modules import Record, RecordedDump
from .torch_manifest import SavedTensor

_KEY = "data"
_SAMPLE = 1 << 16
"""Bytes at either end of a large tensor that tell it from others, together with its statistics."""


def dumps_at(path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump of a tree, or of each in a directory."""
    if is_tree(path.name, ()) and not is_directory(path):
        yield _layout(path, listing)
    files = listing.files(path)
    yield from (_layout(path / name, listing) for name in files if is_tree(name, files))


def _layout(tree: Path, listing: Listing) -> DumpLayout:
    return PlainLayout(
        HfDebuggerDump.kind, tree.parent, lambda _: HfDebuggerDump(tree.parent, tree.name, listing), tree
    )


class HfDebuggerDump(RecordedDump):
    """One tree and what lies beside it; one step, one rank."""

    kind = "hf-debugger"

    def __init__(self, root: Path, tree: str, listing: Listing) -> None:
        self._root = root
        self._tree = str(root / tree)
        self._printed: dict[str, tuple[str, ...]] = {}
        content = read_tree(self._tree)
        model = content["module_path"]
        files = frozenset(listing.files(root))
        modules, pruned = with_pruned(list(modules_of(self._tree, content, files)), model, files)
        # The modules without the calls whose files a later call replaced, and how many those were of each.
        owner = {tensor.file: place for place, module in enumerate(modules) for tensor in module.tensors}
        latest: list[DebugModule] = []
        for place, module in enumerate(modules):
            tensors = [tensor for tensor in module.tensors if not tensor.file or owner[tensor.file] == place]
            if tensors or not module.tensors:
                latest.append(replace(module, tensors=tensors))
        replaced = Counter(module.path for module in modules)
        replaced.subtract(module.path for module in latest)
        modules = latest
        # The outputs of the whole model, which have files though the tree does not name them.
        named = {tensor.file for module in modules for tensor in module.tensors}
        start = f"{model}_outputs"
        outputs = []
        for file in sorted(files):
            rest = file[len(start) : -len(SUFFIX)]
            if (
                file in named
                or not file.startswith(start)
                or not file.endswith(SUFFIX)
                or rest[:1] not in ("", "_")
            ):
                continue
            key = rest[1:]
            index = int(key) if is_index(key) else key
            outputs.append(DebugTensor(Slot("output", (index or 0,)), file=file))
        root_module = replace(modules[0], tensors=[*modules[0].tensors, *outputs])
        records = list(self._records([root_module, *modules[1:]], model, replaced))
        if not any(record.slots for record in records):
            raise DumpError(f"{self._tree}: names no tensor; was the model called while it was debugged?")
        notes = list(_notes(pruned, replaced.total(), records, self._tree))
        super().__init__(root, {0: {"rank0": records}}, model=model, notes=notes)

    def _records(
        self, modules: Sequence[DebugModule], model: str, replaced: Mapping[str, int]
    ) -> Iterator[Record]:
        """A record for each call; it ends before what begins outside of it."""
        ended: dict[int, int] = {}
        running: list[int] = []
        for place, module in enumerate(modules):
            while running and modules[running[-1]].depth >= module.depth:
                ended[running.pop()] = len(ended)
            running.append(place)
        for place in reversed(running):
            ended[place] = len(ended)
        for place, module in enumerate(modules):
            slots = {tensor.slot: self._ref(tensor) for tensor in module.tensors}
            kind, lost = UNKNOWN_TYPE if module.path else model, [t.lost for t in module.tensors if t.lost]
            earlier = replaced[module.path]
            yield Record(module.path, kind, slots, place, ended[place], lost=lost, replaced=earlier)

    def _ref(self, tensor: DebugTensor) -> TensorRef:
        if not tensor.file:
            return TensorRef(self._tree, tensor.member)
        path = str(self._root / tensor.file)
        self._printed[path] = tensor.printed
        return TensorRef(path, _KEY)

    def _saved(self, step: Step) -> Callable[[Node, TensorRef], SavedTensor | None]:
        """The check sum that tells a tensor from others without reading all of it."""
        return lambda node, ref: _saved_tensor(ref, self._printed.get(ref.path, ()))


def _saved_tensor(ref: TensorRef, printed: tuple[str, ...]) -> SavedTensor | None:
    """The check sum of a tensor; of a large one that of both ends and of its statistics."""
    header = readable(ref)
    if header is None:
        return None
    if header.payload != "data" or not header.nbytes:
        return SavedTensor(dtype=str(header.dtype))
    size, seed = header.nbytes, 0
    ranges = [(header.offset, size)]
    if size > 2 * _SAMPLE:
        if not printed:
            return None
        seed = zlib.crc32("\n".join(printed).encode("utf-8", "surrogatepass"))
        ranges = [(header.offset, _SAMPLE), (header.offset + size - _SAMPLE, _SAMPLE)]
    try:
        with opened(ref.path) as (file, _):
            for offset, length in ranges:
                file.seek(offset)
                seed = zlib.crc32(file.read(length), seed)
    except (FormatError, OSError):
        return None
    return SavedTensor(crc32=seed, dtype=str(header.dtype), shape=(size,))


def _notes(pruned: int, replaced: int, records: Sequence[Record], tree: str) -> Iterator[str]:
    if pruned:
        yield Reason("{} layers are not in the tree (do_prune_layers); their files are read", pruned)
    if replaced:
        yield Reason("{} calls are left out: a later call of the same module replaced their files", replaced)
    if any(ref.path == tree for record in records for ref in record.slots.values()):
        yield "tensors are prints in the tree: their statistics are compared (use_repr=False saves files)"


# The modules in a tree of Hugging Face's model debugger, and the tensors that each has on disk.
#
# What the tree leaves out and what lies there all the same: the layers between the first and the last of a
# list (`do_prune_layers`), and the outputs of the whole model. What it names and what is not there any
# more: the tensors of a call after which the same module was called again.


SUFFIX = ".safetensors"
_LAYER = re.compile(r"(?P<list>.+\.)(?P<number>\d{1,6})", re.ASCII)
_MOST_LAYERS = 10_000
_DEEPEST_VALUE = 16
_STATISTICS = ("mean", "std", "min", "max")


@dataclass(frozen=True, slots=True)
class DebugTensor:
    """A tensor of a call: `file` where it has one, `member` of the tree where it has none, and its print.
    `lost` is the file that the tree names and that is not there."""

    slot: Slot
    file: str = ""
    member: str = ""
    printed: tuple[str, ...] = ()
    lost: str = ""


@dataclass(frozen=True, slots=True)
class DebugModule:
    """One call of the module at `path` below the model, `depth` calls deep."""

    path: str
    depth: int
    tensors: Sequence[DebugTensor] = field(default_factory=list)


def modules_of(path: str, tree: Mapping[str, Any], files: Collection[str]) -> Iterator[DebugModule]:
    """Every module that ran, in the order in which they began; `files` are the files beside the tree.

    Raises `FormatError` for what is no tree.
    """
    model = tree["module_path"]
    waiting: list[tuple[Any, str, int]] = [(tree, "", 0)]
    while waiting:
        node, member, depth = waiting.pop()
        name = node.get("module_path") if isinstance(node, dict) else None
        children = (node.get("children") or []) if isinstance(node, dict) else None
        if not isinstance(name, str) or not isinstance(children, list) or depth > MAX_DEPTH:
            raise FormatError(f"{path}: {member or 'its root'} is no module; was the file edited?")
        yield DebugModule(
            name.removeprefix(model).removeprefix("."), depth, list(_tensors(node, member, files))
        )
        for number in range(len(children) - 1, -1, -1):
            waiting.append((children[number], f"{member}children/{number}/", depth + 1))


def _tensors(node: Mapping[str, Any], member: str, files: Collection[str]) -> Iterator[DebugTensor]:
    inputs = node.get("inputs")
    halves = [inputs.get("args"), inputs.get("kwargs")] if isinstance(inputs, dict) else []
    places = [f"{member}inputs/args", f"{member}inputs/kwargs"]
    entries = [
        (Slot("input", index), place, tensor)
        for half, start in zip(halves, places)
        for index, place, tensor in _values(half, start)
    ]
    for index, place, tensor in _values(node.get("outputs"), f"{member}outputs"):
        entries.append((Slot("output", index or (0,)), place, tensor))
    for slot, place, tensor in entries:
        value = tensor.get("value")
        file = value.removeprefix("./") if isinstance(value, str) else ""
        statistics = tuple(str(tensor.get(key)) for key in _STATISTICS if key in tensor)
        if file.endswith(SUFFIX) and file in files:
            yield DebugTensor(slot, file=file, printed=statistics)
        else:
            yield DebugTensor(
                slot, member=place, printed=statistics, lost=file if file.endswith(SUFFIX) else ""
            )


def _values(
    value: object, place: str, index: tuple[int | str, ...] = ()
) -> Iterator[tuple[tuple[int | str, ...], str, dict[str, Any]]]:
    """Each tensor in a value: the keys on the way to it, the same as a member of the tree, and itself."""
    if is_tensor(value):
        assert isinstance(value, dict)
        yield index, place, value
        return
    if len(index) > _DEEPEST_VALUE:
        return
    if isinstance(value, list):
        for number, inside in enumerate(value):
            yield from _values(inside, f"{place}/{number}", (*index, number))
    elif isinstance(value, dict):
        for key, inside in value.items():
            if "/" not in key:
                yield from _values(inside, f"{place}/{key}", (*index, key))


def with_pruned(
    modules: Sequence[DebugModule], model: str, files: Collection[str]
) -> tuple[list[DebugModule], int]:
    """The modules with the layers that the tree leaves out, and how many these are.

    Their files are called as those of the layers on either side, from which one learns what to look for.
    """
    completed: list[DebugModule] = []
    added = 0
    latest: dict[tuple[str, int], int] = {}
    for place, module in enumerate(modules):
        layer = _LAYER.fullmatch(module.path)
        if layer is not None:
            like, layer_number = latest.get((layer["list"], module.depth)), int(layer["number"])
            first = int(completed[like].path.rpartition(".")[2]) if like is not None else layer_number
            if like is not None and first + 1 < layer_number <= first + _MOST_LAYERS:
                sides = (_with_descendants(completed, like), _with_descendants(modules, place))
                for number in range(first + 1, layer_number):
                    pruned = _renamed(sides, f"{layer['list']}{number}", model, files)
                    added += bool(pruned)
                    completed += pruned
            latest[layer["list"], module.depth] = len(completed)
        completed.append(module)
    return completed, added


def _with_descendants(modules: Sequence[DebugModule], place: int) -> list[DebugModule]:
    end = place + 1
    while end < len(modules) and modules[end].depth > modules[place].depth:
        end += 1
    return list(modules[place:end])


def _renamed(
    sides: Sequence[Sequence[DebugModule]], path: str, model: str, files: Collection[str]
) -> list[DebugModule]:
    """The modules of a layer, as far as it has the files that one of two other layers has."""
    by_path: dict[str, DebugModule] = {}
    for side in sides:
        old = side[0].path
        for module in side:
            new = path + module.path[len(old) :]
            tensors = [
                DebugTensor(tensor.slot, file=file)
                for tensor in module.tensors
                if (file := f"{model}.{path}{tensor.file[len(model) + 1 + len(old) :]}") in files
            ]
            if tensors:
                by_path.setdefault(new, DebugModule(new, module.depth, tensors))
    return list(by_path.values())
