"""Dumps of Hugging Face's `model_addition_debugger_context`: a tree of calls, and perhaps a file per tensor.

    LlamaForCausalLM_debug_tree_FULL_TENSORS.json                    which module ran in which, on what
    LlamaForCausalLM.model.norm_outputs.safetensors                  a tensor, with the key `data`

Modules with children have no outputs. There are no types, steps or ranks: only rank 0 writes, and a second
call of the model replaces the first.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import DumpError, FormatError
from ..tensors.debug_tree import read_tree
from ..tensors.file_bytes import opened
from ..tensors.ref import TensorRef, readable
from ..topology.torch_modules import UNKNOWN_TYPE
from ..topology.tree import Node
from .base import Step
from .hf_modules import DebugModule, DebugTensor, last_calls, modules_of, outputs_of_model, with_pruned
from .listing import Listing
from .recorded import Record, RecordedDump
from .torch_manifest import SavedTensor

_KEY = "data"
_SAMPLE = 1 << 16
"""Bytes at either end of a large tensor that tell it from others, together with its statistics."""


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
        modules, replaced = last_calls(modules)
        root_module = replace(
            modules[0], tensors=[*modules[0].tensors, *outputs_of_model(modules, model, files)]
        )
        records = list(self._records([root_module, *modules[1:]], model))
        if not any(record.slots for record in records):
            raise DumpError(f"{self._tree}: names no tensor; was the model called while it was debugged?")
        notes = list(_notes(pruned, replaced, records, self._tree))
        super().__init__(root, {0: {"rank0": records}}, model=model, notes=notes)

    def _records(self, modules: Sequence[DebugModule], model: str) -> Iterator[Record]:
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
            yield Record(module.path, kind, slots, place, ended[place], lost=lost)

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
        yield f"{pruned} layers are not in the tree (do_prune_layers); their files are read"
    if replaced:
        yield f"{replaced} calls are left out: a later call of the same module replaced their files"
    if any(ref.path == tree for record in records for ref in record.slots.values()):
        yield "tensors are prints in the tree: their statistics are compared (use_repr=False saves files)"
