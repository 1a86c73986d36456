"""Dumps of SGLang's `dumper`: one directory of `step=0___rank=0___dump_index=7___name=attn_q___....pt`.

All ranks and steps lie side by side; only the first releases wrote a directory for each rank. Names say which
tensor is which (`sglang_names`), their order says which call (`sglang_calls`). Nothing is read but the names,
and of each name that the program chose one file: it may hold something else than a tensor.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import AccError, DumpError
from ..tensors.ref import TensorRef
from ..tensors.torch_members import content_of
from ..topology.tree import Node
from .base import Rank, Slot, Step
from .listing import Listing
from .naming import stable_name
from .passes import is_inside, pass_labels, pass_starts
from .recorded import ROOT, SAVED, Record, RecordedDump
from .sglang_calls import CORE, calls_of
from .sglang_dims import Dims, parsed_dims
from .sglang_names import GRADIENT, MODULE, PARAMETER, SglangFile, is_sglang_file, module_slot, sglang_file

VALUE = "value"
"""The key of a tensor in its file; before 2026 a file is the tensor."""
_OWN_RANK = re.compile(r"(.+)_(\d{1,9})", re.ASCII)
_TIME = re.compile(r"_?\d{8}_\d{6}(?:_\d{1,9})?$", re.ASCII)
_LISTED = 5
_TRIED = 8


class SglangDump(RecordedDump):
    """A directory of SGLang's dumper. Releases before 2026 count forward passes from 1; here they are steps
    from 0."""

    kind = "sglang"

    def __init__(self, root: Path, listing: Listing) -> None:
        homes = rank_folders(root, listing) or {_number_of(root): root}
        notes: list[str] = []
        files = [
            file for rank, home in homes.items() for file in _files(home, listing.files(home), rank, notes)
        ]
        self._member = _members(files)
        tensor_files = [file for file in files if self._member[_chosen(file)] is not None]
        if not tensor_files:
            raise DumpError(f"{root}: no file of this SGLang dump holds a tensor")
        non_tensors = Counter(file.name for file in files if self._member[_chosen(file)] is None)
        if non_tensors:
            listed = ", ".join(list(non_tensors)[:_LISTED]) + (", ..." if len(non_tensors) > _LISTED else "")
            notes.append(f"{non_tensors.total()} files hold something else than a tensor: {listed}")
        self._weights: dict[str, dict[str, TensorRef]] = {}
        super().__init__(root, self._records(tensor_files, notes), notes=notes, name=_name(root))

    def dumped_weights(self, rank: Rank) -> Mapping[str, TensorRef]:
        """The parameters (`dump_model`), as they were in the first step that has them."""
        return self._weights.get(rank.name, {})

    def dims(self, step: Step, rank: Rank, node: Node, slot: Slot) -> Dims | None:
        """The program's annotation of a tensor's dimensions and of how ranks share it, or `None`.

        For a mapper: an axis that is `sharded` is put together along `dim` in the order of `rank`, `size`
        parts of it; one that is `partial` is summed; one that is `replicated` is the same on all ranks.
        `dump(name, tensor, dims=...)` is the only source: tensors that the tool took from modules by itself
        have none, and shapes and values must tell.
        """
        ref = self.tensors(step, rank, node).get(slot)
        meta = _meta(ref.path) if ref is not None else {}
        text = meta.get("dims_grad" if node.path.endswith(".backward") else "dims")
        if not isinstance(text, str):
            return None
        sizes: dict[str, Any] = {}
        for key, value in meta.items():
            if isinstance(key, str) and key.endswith("_parallel_info") and isinstance(value, dict):
                sizes |= {name: size for name, size in value.items() if isinstance(name, str)}
        return parsed_dims(text, sizes)

    def is_partial(self, step: Step, rank: Rank, node: Node, slot: Slot) -> bool:
        """Whether the program said so of a tensor that it saved by name."""
        dims = self.dims(step, rank, node, slot) if node.op_type == SAVED else None
        return dims is not None and any(axis.how == "partial" for axis in dims.axes)

    def _records(
        self, tensor_files: Iterable[SglangFile], notes: list[str]
    ) -> dict[int, dict[str, list[Record]]]:
        """The records of each rank, in rank order, by step."""
        recorded: dict[int, Ranks] = {}
        for file in sorted(tensor_files, key=lambda file: (file.rank, file.index)):
            recorded.setdefault(file.step, {}).setdefault(file.rank, []).append(file)
        steps: dict[int, dict[str, list[Record]]] = {}
        for step, ranks in by_pass(recorded, notes.append).items():
            for number, files in ranks.items():
                rank = f"rank{number}"
                weights = self._weights.setdefault(rank, {})
                for file in files:
                    if file.name.startswith(PARAMETER):
                        weights.setdefault(f"{ROOT}.{file.name.removeprefix(PARAMETER)}", self._ref(file))
                steps.setdefault(step, {})[rank] = calls_of(files, self._ref)
        return steps

    def _ref(self, file: SglangFile) -> TensorRef:
        return TensorRef(file.path, self._member[_chosen(file)] or "")


def _members(files: Iterable[SglangFile]) -> dict[str, str | None]:
    """The member of a tensor in its file, by the name that the program chose; `None` for what is no tensor.

    One file of each name is looked into that can be read. What cannot fails in its own test.
    """
    members: dict[str, str | None] = {}
    tried: Counter[str] = Counter()
    for file in files:
        chosen = _chosen(file)
        if chosen in members or tried[chosen] >= _TRIED:
            continue
        tried[chosen] += 1
        try:
            tensors = content_of(file.path).tensors
        except AccError:
            continue
        members[chosen] = next((name for name in (VALUE, "") if name in tensors), None)
    default = next((member for member in members.values() if member is not None), VALUE)
    return dict.fromkeys(tried, default) | members


def _files(home: Path, names: Sequence[str], rank: int, notes: list[str]) -> Iterator[SglangFile]:
    odd: list[str] = []
    for place, name in enumerate(names):
        file = sglang_file(f"{home}/{name}", place, _meta, rank) if is_sglang_file(name) else None
        if file is not None:
            yield file
        elif is_sglang_file(name):
            odd.append(name)
    if odd:
        notes.append(f"{len(odd)} files have names that the dumper does not give, such as {odd[0][:100]}")


def _meta(path: str) -> Mapping[Any, Any]:
    """The tags in a file; empty where it has none."""
    try:
        value = content_of(path).value
    except AccError:
        return {}
    meta = value.get("meta") if isinstance(value, dict) else None
    return meta if isinstance(meta, dict) else {}


def _chosen(file: SglangFile) -> str:
    """Names that the tool gives stand for tensors only, so one stands for all."""
    return MODULE if file.name.startswith(MODULE) else file.name


def rank_folders(root: Path, listing: Listing) -> dict[int, Path]:
    """The directories of the ranks of one run, as the first releases wrote them: `sglang_dump_{time}_{rank}`.

    Empty for a directory that holds none, or those of several runs.
    """
    by_run: dict[str, dict[int, Path]] = {}
    for name in listing.directories(root):
        match = _OWN_RANK.fullmatch(name)
        files = listing.files(root / name) if match else ()
        if match and any(is_sglang_file(file) for file in files) and not any("___rank=" in f for f in files):
            by_run.setdefault(match[1], {})[int(match[2])] = root / name
    return next(iter(by_run.values())) if len(by_run) == 1 else {}


def _name(root: Path) -> str:
    """The name without the time that the tool appends, and without the rank."""
    return stable_name(_TIME.sub("", root.name), "sglang_dump")


def _number_of(root: Path) -> int:
    """The rank that the name of a directory gives, where its files do not."""
    match = _OWN_RANK.fullmatch(root.name)
    return int(match[2]) if match is not None else 0


Ranks = dict[int, list[SglangFile]]
"""The files of a step by rank."""


def by_pass(steps: dict[int, Ranks], notify: Callable[[str], None]) -> dict[int, Ranks]:
    """Steps of one forward pass each, numbered on; `notify` hears of those that were several."""
    numbered: dict[int, Ranks] = {}
    for number in sorted(steps):
        split = {rank: passes(files) for rank, files in steps[number].items()}
        labels = pass_labels(number, numbered, map(len, split.values()), notify)
        for place, label in enumerate(labels):
            several = {rank: rank_passes[place] for rank, rank_passes in split.items()}
            numbered[label] = several if len(labels) > 1 else steps[number]
    return numbered


def passes(files: Sequence[SglangFile]) -> list[list[SglangFile]]:
    """The files of each pass, given in their order; all of them where nothing shows that there are several,
    or where gradients follow that belong to all.
    """
    if any(file.recomputed or file.name.startswith(GRADIENT) for file in files):
        return [list(files)]
    placed = [module_slot(f.name[len(MODULE) :]) if f.name.startswith(MODULE) else None for f in files]
    modules = {target[0] for target in placed if target is not None}
    calls = _outermost(placed, modules)
    starts = [calls[start][0] for start in pass_starts([path for _, path in calls], modules - {""})]
    cuts = [_batch_start(files, start) for start in starts[1:]]
    return [list(files[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(files)])]


def _outermost(placed: Iterable[tuple[str, Slot] | None], modules: Collection[str]) -> list[tuple[int, str]]:
    """The place of the first file of each call of a module that no recorded module holds, and its path."""
    calls: list[tuple[int, str]] = []
    running: dict[str, set[Slot]] = {}
    for place, target in enumerate(placed):
        if target is None or (target[0] and "" in modules) or is_inside(target[0], modules):
            continue
        path, slot = target
        slots = running.get(path)
        over = (
            slots is not None and slot.kind == "input" and any(earlier.kind == "output" for earlier in slots)
        )
        if slots is None or slot in slots or over:
            running[path] = set()
            calls.append((place, path))
        running[path].add(slot)
    return calls


def _batch_start(files: Sequence[SglangFile], start: int) -> int:
    """The begin of a pass whose first module has its first file at `start`: ids and positions come before."""
    while start and files[start - 1].name in CORE and files[start - 1].layer is None:
        start -= 1
    return start
