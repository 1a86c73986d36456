"""Dumps of SGLang's `dumper`: one directory of `step=0___rank=0___dump_index=7___name=attn_q___....pt`.

All ranks and steps lie side by side; only the first releases wrote a directory for each rank. Names say which
tensor is which (`sglang_names`), their order says which call (`sglang_calls`). Nothing is read but the names,
and of each name that the program chose one file: it may hold something else than a tensor.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.reason import Reason
from ..errors import AccError, DumpError, SeveralDumps
from ..tensors.ref import TensorRef
from ..tensors.torch_file import content_of
from ..tensors.torch_pickle import DeclaredTensor
from ..topology.torch_modules import UNKNOWN_TYPE
from ..topology.tree import SAVED, Node
from .base import DumpLayout, Listing, PlainLayout, Rank, Slot, Step, stable_name
from .modules import ROOT, Record, RecordedDump, is_inside, pass_labels, pass_starts
from .sglang_calls import (
    CORE,
    GRADIENT,
    MODULE,
    PARAMETER,
    SglangFile,
    calls_of,
    is_sglang_file,
    module_slot,
    sglang_file,
)

VALUE = "value"
"""The key of a tensor in its file; before 2026 a file is the tensor."""
_OWN_RANK = re.compile(r"(.+)_(\d{1,9})", re.ASCII)
_TIME = re.compile(r"_?\d{8}_\d{6}(?:_\d{1,9})?$", re.ASCII)
_LISTED = 5
_TRIED = 8


def dumps_at(path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump of the files in a directory or in those of its ranks, and that of forward passes in those of
    its ranks; of the directory of a rank its passes."""
    if any(map(is_sglang_file, listing.files(path))) or rank_folders(path, listing):
        yield PlainLayout(SglangDump.kind, path, lambda _: SglangDump(path, listing))
    if pass_folders(path, listing):
        yield PlainLayout(SglangPasses.kind, path, lambda _: SglangPasses(path, listing))
    elif path.name in pass_folders(path.parent, listing):
        root, name = path.parent, path.name
        yield PlainLayout(SglangPasses.kind, root, lambda _: SglangPasses(root, listing, name), path)


class SglangDump(RecordedDump):
    """A directory of SGLang's dumper. Releases before 2026 count forward passes from 1; here they are steps
    from 0."""

    kind = "sglang"

    def __init__(self, root: Path, listing: Listing) -> None:
        match = _OWN_RANK.fullmatch(root.name)  # a rank that the files do not give
        homes = rank_folders(root, listing) or {int(match[2]) if match is not None else 0: root}
        notes: list[str] = []
        files = [
            file for rank, home in homes.items() for file in _files(home, listing.files(home), rank, notes)
        ]
        # The member of a tensor in its file, by the name that the program chose; `None` for what is no
        # tensor. One file of each name is looked into that can be read. What cannot fails in its own test.
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
        self._member: dict[str, str | None] = {**dict.fromkeys(tried, default), **members}
        tensor_files = [file for file in files if self._member[_chosen(file)] is not None]
        if not tensor_files:
            raise DumpError(f"{root}: no file of this SGLang dump holds a tensor")
        non_tensors = Counter(file.name for file in files if self._member[_chosen(file)] is None)
        if non_tensors:
            listed = ", ".join(list(non_tensors)[:_LISTED]) + (", ..." if len(non_tensors) > _LISTED else "")
            notes.append(
                Reason("{} files hold something else than a tensor: {}", non_tensors.total(), listed)
            )
        self._weights: dict[str, dict[str, TensorRef]] = {}
        # The name without the time that the tool appends, and without the rank.
        name = stable_name(_TIME.sub("", root.name), "sglang_dump")
        super().__init__(root, self._records(tensor_files, notes), notes=notes, name=name)

    def dumped_weights(self, rank: Rank) -> Mapping[str, TensorRef]:
        """The parameters (`dump_model`), as they were in the first step that has them."""
        return self._weights.get(rank.name, {})

    def is_partial(self, step: Step, rank: Rank, node: Node, slot: Slot) -> bool:
        """Whether the program said so of a tensor that it saved by name."""
        ref = self.tensors(step, rank, node).get(slot) if node.op_type == SAVED else None
        text = _meta(ref.path).get("dims") if ref is not None else None
        return isinstance(text, str) and is_summand(text)

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


def _files(home: Path, names: Sequence[str], rank: int, notes: list[str]) -> Iterator[SglangFile]:
    odd: list[str] = []
    for place, name in enumerate(names):
        file = sglang_file(f"{home}/{name}", place, _meta, rank) if is_sglang_file(name) else None
        if file is not None:
            yield file
        elif is_sglang_file(name):
            odd.append(name)
    if odd:
        notes.append(
            Reason("{} files have names that the dumper does not give, such as {}", len(odd), odd[0][:100])
        )


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


# Annotations of dimensions in dumps of SGLang: `t (num_heads*head_dim)[tp] # ep:replicated`.
#
# Dimensions are separated by blanks; behind `#` stand declarations about the whole tensor.


_LONGEST = 1000
_WORD = r"[A-Za-z_]\w*"
_DIMENSION = re.compile(
    rf"(?P<names>1|{_WORD}|\((?:{_WORD}|1)(?:\*(?:{_WORD}|1))*\))(?:\[(?P<mods>[^\]]*)\])?", re.ASCII
)
_MOD = re.compile(rf"({_WORD})(?::([a-z]+(?:\+[a-z]+)*))?", re.ASCII)
_QUALIFIERS = frozenset({"sharded", "zigzag", "natural", "partial"})


def is_summand(text: str) -> bool:
    """Whether an annotation says that ranks have summands of the tensor; false for what is none."""
    axes: list[str] = []
    qualifiers: set[str] = set()
    dimensions, _, declarations = text.partition("#")
    for dimension in map(_DIMENSION.fullmatch, dimensions.split()):
        mods = dimension["mods"] if dimension is not None else ","
        for axis in map(_MOD.fullmatch, mods.split(",") if mods else ()):
            if axis is None:
                return False
            axes.append(axis[1])
            qualifiers.update((axis[2] or "sharded").split("+"))
    for word in declarations.split():
        group, _, meaning = word.partition(":=")
        if not (group and meaning):
            if not word.endswith(":replicated"):
                return False
            axes.append(word.removesuffix(":replicated"))
    is_sound = len(text) <= _LONGEST and qualifiers <= _QUALIFIERS and len(set(axes)) == len(axes)
    return is_sound and "partial" in qualifiers


# Dumps of SGLang's forward hooks (`--debug-tensor-dump-output-folder`): `TP0_PP0_Rank0_pid7/Pass00000.pt`.
#
# A file has the outputs of one forward pass by the name of the module: of modules without children, and of
# the whole model. What finished after the file was written stands at the head of the next one: the output
# of the model, and the logits. Here they belong to the pass that made them.


_FOLDER = re.compile(r"(?:[A-Z]+\d+_)+Rank(\d{1,9})_pid\d+", re.ASCII)
_PASS = re.compile(r"Pass(\d{1,18})\.pt", re.ASCII)
_BATCH = ".forward_batch_info."


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor, or the tensors of a list, under one key of a file."""

    key: str
    refs: tuple[TensorRef, ...]


class SglangPasses(RecordedDump):
    """Directories of forward passes, one for each rank; each pass is a step.

    `only` is the directory of one rank, empty for all.
    """

    kind = "sglang-passes"

    def __init__(self, root: Path, listing: Listing, only: str = "") -> None:
        notes: list[str] = []
        records: dict[int, dict[str, list[Record]]] = {}
        folders = pass_folders(root, listing)
        ranks = sorted((rank, name) for name, rank in folders.items() if only in ("", name))
        if len({rank for rank, _ in ranks}) < len(ranks):
            message = f"{root}: holds the passes of several runs; give the directory of one rank:"
            raise SeveralDumps(message, (str(root / name) for _, name in ranks))
        for rank, name in ranks:
            passes = _passes(root / name, listing.files(root / name), notes)
            for number, entries in _with_own_outputs(passes).items():
                records.setdefault(number, {})[f"rank{rank}"] = list(_records(entries))
        if not records:
            raise DumpError(f"{root}: no file of these forward passes can be read; {'; '.join(notes)[:500]}")
        notes.append(
            Reason("pass {}: what the model did after its layers was not written any more", max(records))
        )
        super().__init__(root, records, notes=notes, name="sglang_passes" if only else "")


def pass_folders(root: Path, listing: Listing) -> dict[str, int]:
    """The directories of forward passes in `root` with their ranks."""
    matches = ((name, _FOLDER.fullmatch(name)) for name in listing.directories(root))
    return {
        name: int(match[1])
        for name, match in matches
        if match is not None and any(_PASS.fullmatch(file) for file in listing.files(root / name))
    }


def _passes(home: Path, files: Sequence[str], notes: list[str]) -> dict[int, list[_Entry]]:
    """The entries of each pass of a rank in the order of writing; broken files are left out."""
    passes: dict[int, list[_Entry]] = {}
    for name in files:
        match = _PASS.fullmatch(name)
        if match is None:
            continue
        try:
            passes[int(match[1])] = list(_entries(str(home / name)))
        except AccError as error:
            notes.append(Reason("a pass is left out: {}", error))
    return dict(sorted(passes.items()))


def _entries(path: str) -> Iterator[_Entry]:
    value = content_of(path).value
    if not isinstance(value, dict):
        return
    for key, content in value.items():
        if isinstance(key, str) and isinstance(content, DeclaredTensor):
            yield _Entry(key, (TensorRef(path, key),))
        elif isinstance(key, str) and isinstance(content, (list, tuple)):
            places = [place for place, inside in enumerate(content) if isinstance(inside, DeclaredTensor)]
            if places:
                yield _Entry(key, tuple(TensorRef(path, f"{key}/{place}") for place in places))


def _with_own_outputs(passes: Mapping[int, list[_Entry]]) -> dict[int, list[_Entry]]:
    """Each pass with what it did last, which stands at the head of the file of the next one.

    The first pass of a run has no such head, so its keys tell what is part of one. Where that file is not
    there, the head ends where the first module inside of the model begins.
    """
    first = next(iter(passes), 0)
    inside = {entry.key for entry in passes[first]} if first == 0 and passes else None
    by_pass: dict[int, list[_Entry]] = {}
    for number, entries in passes.items():
        head = 0
        while number and head < len(entries) and _is_late(entries[head].key, inside):
            head += 1
        if head:
            by_pass.setdefault(number - 1, []).extend(entries[:head])
        by_pass.setdefault(number, []).extend(entries[head:])
    return dict(sorted(by_pass.items()))


def _is_late(key: str, inside: set[str] | None) -> bool:
    return key not in inside if inside is not None else not key.startswith("model.")


def _records(entries: Sequence[_Entry]) -> Iterator[Record]:
    """A record of each module: its outputs, and of the whole model what it was fed."""
    batch_inputs: dict[str, dict[Slot, TensorRef]] = {}
    outputs: dict[str, tuple[int, _Entry]] = {}
    for place, entry in enumerate(entries):
        module, is_batch, field = entry.key.partition(_BATCH)
        if is_batch and field:
            batch_inputs.setdefault(module, {})[Slot("input", (field,))] = entry.refs[0]
        else:
            outputs[entry.key] = place, entry
    for module in {**batch_inputs, **outputs}:
        place, output = outputs.get(module, (len(entries), _Entry(module, ())))
        slots = batch_inputs.get(module, {}) | {
            Slot("output", (i,)): ref for i, ref in enumerate(output.refs)
        }
        around = module in batch_inputs or any(name.startswith(f"{module}.") for name in outputs)
        yield Record(module, UNKNOWN_TYPE, slots, -1 if around else place, place)
