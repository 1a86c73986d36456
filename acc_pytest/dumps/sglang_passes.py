"""Dumps of SGLang's forward hooks (`--debug-tensor-dump-output-folder`): `TP0_PP0_Rank0_pid7/Pass00000.pt`.

A file has the outputs of one forward pass by the name of the module: of modules without children, and of the
whole model. What finished after the file was written stands at the head of the next one: the output of the
model, and the logits. Here they belong to the pass that made them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import AccError, DumpError, SeveralDumps
from ..tensors.ref import TensorRef
from ..tensors.torch_members import content_of
from ..tensors.torch_pickle import DeclaredTensor
from ..topology.torch_modules import UNKNOWN_TYPE
from .base import Slot
from .listing import Listing
from .recorded import Record, RecordedDump

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
        for rank, name in _ranks(root, listing, only):
            passes = _passes(root / name, listing.files(root / name), notes)
            for number, entries in _with_own_outputs(passes).items():
                records.setdefault(number, {})[f"rank{rank}"] = list(_records(entries))
        if not records:
            raise DumpError(f"{root}: no file of these forward passes can be read; {'; '.join(notes)[:500]}")
        notes.append(f"pass {max(records)}: what the model did after its layers was not written any more")
        super().__init__(root, records, notes=notes, name="sglang_passes" if only else "")


def pass_folders(root: Path, listing: Listing) -> dict[str, int]:
    """The directories of forward passes in `root` with their ranks."""
    matches = ((name, _FOLDER.fullmatch(name)) for name in listing.directories(root))
    return {
        name: int(match[1])
        for name, match in matches
        if match is not None and any(_PASS.fullmatch(file) for file in listing.files(root / name))
    }


def _ranks(root: Path, listing: Listing, only: str) -> list[tuple[int, str]]:
    """Ranks with their directories, in order. Raises `DumpError` where several runs wrote to one place."""
    folders = pass_folders(root, listing)
    ranks = sorted((rank, name) for name, rank in folders.items() if only in ("", name))
    if len({rank for rank, _ in ranks}) < len(ranks):
        message = f"{root}: holds the passes of several runs; give the directory of one rank:"
        raise SeveralDumps(message, (str(root / name) for _, name in ranks))
    return ranks


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
            notes.append(f"a pass is left out: {error}")
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
