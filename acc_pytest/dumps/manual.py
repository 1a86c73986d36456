"""Manual dumps: tensors a user saved by hand together with the files of mine they belong to.

`dump_data` of the old tool writes `golden_tensor/metadata.json`, `{data_id: {token_id: [golden, mine]}}`.
It writes a data id twice when given an int and then another token, so duplicate keys are merged here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.reason import Reason
from ..errors import FormatError
from ..tensors.kept_dump import kept_version
from ..tensors.location import is_directory, is_file, read_json
from ..tensors.ref import TensorRef
from ..topology.tree import Node, Tree
from .base import Dump, DumpLayout, Listing, PlainLayout, Rank, Slot, Step, natural

METADATA = "metadata.json"
FOLDER = "golden_tensor"

_NAMED = 5
"""Largest number of pairs that a note names."""
_STEP = re.compile(r"\d{1,9}")


class ManualLayout(PlainLayout):
    """The place of a manual dump."""

    def contents(self) -> Sequence[Path]:
        return (self.handle,)


def dumps_at(path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dumps of a `metadata.json`, or of those in a directory, in its folder, or one level below."""
    if path.name == METADATA and not is_directory(path) and is_manual(path):
        yield _layout(path.parent, path)
    for folder in (path, path / FOLDER, *(below / FOLDER for below in listing.below(path))):
        yield from _dumps_in(folder, path, listing)


def dumps_around(directory: Path, path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump whose folder has the path in it, or is in it."""
    for folder in (directory, directory / FOLDER):
        if folder.is_relative_to(path) or path.is_relative_to(folder):
            yield from _dumps_in(folder, folder.parent, listing)


def _dumps_in(folder: Path, root: Path, listing: Listing) -> Iterator[DumpLayout]:
    if METADATA in listing.files(folder) and is_manual(folder / METADATA):
        yield _layout(root, folder / METADATA)


def _layout(root: Path, metadata: Path) -> DumpLayout:
    return ManualLayout("manual", root, lambda *_: ManualDump(root, metadata), metadata.parent)


@dataclass(frozen=True, slots=True)
class ManualEntry:
    """One pair the user declared. A reference whose file is missing fails when it is opened."""

    data_id: str
    step: int
    golden: TensorRef
    mine: TensorRef


class ManualDump(Dump):
    """A `metadata.json`: pairs that need no mapping. As a dump it also has a node per data id, whose
    golden tensor is `output[0]`."""

    kind = "manual"

    def __init__(self, root: Path, metadata: Path) -> None:
        self.root = root
        self.name = "manual"
        self.ranks = (Rank(0, ""),)
        entries, lacking, relocated = [], [], 0
        for data_id, step, golden, mine in _declared(metadata):
            if not (golden and mine):
                lacking.append(f"{data_id}/{step}")
                continue
            path = _golden(golden, step, metadata)
            relocated += path != golden
            entries.append(ManualEntry(data_id, step, TensorRef(path), TensorRef(_relative(mine, metadata))))
        self.entries = tuple(entries)
        if relocated:
            self.notes += (
                Reason("{} golden files taken from beside {}, not from where it says", relocated, METADATA),
            )
        if lacking:
            self.notes += (Reason("{} names less than two files for {}; left out", METADATA, _some(lacking)),)
        tree = Node(name=self.name, op_type="Manual", path="")
        for data_id in dict.fromkeys(entry.data_id for entry in self.entries):
            tree.add(Node(name=data_id, op_type="Tensor", path=data_id))
        model = Tree(tree, self.name)
        steps = sorted({entry.step for entry in self.entries})
        self.steps = tuple(Step(step, model, str(step)) for step in steps)
        self._golden = {(entry.data_id, entry.step): entry.golden for entry in self.entries}

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        golden = self._golden.get((node.path, int(step.label)))
        return {} if golden is None else {Slot("output"): golden}


def is_manual(metadata: Path) -> bool:
    """Whether a `metadata.json` is one of ours: in a `golden_tensor` directory, or of the right form."""
    if metadata.parent.name == FOLDER:
        return True
    try:
        return any(True for _ in _declared(metadata))
    except FormatError:
        return False


def read_metadata(metadata: Path) -> dict[str, dict[str, list[str]]]:
    """The content of a `metadata.json`: data id, token id, paths.

    An object whose keys are repeated adds up. Raises `FormatError` naming file and entry.
    """
    raw = read_json(metadata, "manual mapping", pairs=_merged)
    if not isinstance(raw, dict):
        raise FormatError(f"{metadata}: must be an object of data ids")
    for data_id, steps in raw.items():
        if not isinstance(steps, dict) or not all(_STEP.fullmatch(step) for step in steps):
            raise FormatError(f"{metadata}: data id {data_id:.200} must be an object of token ids (numbers)")
        for step, files in steps.items():
            if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
                raise FormatError(
                    f"{metadata}: data id {data_id:.200}, token {step} must be a list of two paths"
                )
    return raw


def _declared(metadata: Path) -> Iterator[tuple[str, int, str, str]]:
    """Data id, step, golden and mine (empty where not named) of each pair, in this order.

    Raises `FormatError` naming file and entry.
    """
    declared = read_metadata(metadata)
    for data_id in sorted(declared, key=natural):
        for step in sorted(declared[data_id], key=int):
            golden, mine, *_ = [*declared[data_id][step], "", ""]
            yield data_id, int(step), golden, mine


def _merged(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose repeated keys add up, where the standard reader keeps the last only."""
    merged: dict[str, Any] = {}
    for key, value in pairs:
        earlier = merged.get(key)
        merged[key] = {**earlier, **value} if isinstance(earlier, dict) and isinstance(value, dict) else value
    return merged


def _golden(path: str, step: int, metadata: Path) -> str:
    """The golden file beside the metadata, where the writer put it; else where the metadata says."""
    name = path.replace("\\", "/").rpartition("/")[2]
    home = "" if metadata.parent == Path() else metadata.parent
    for relative in (f"{step}/{name}", name):
        if name and _is_file(candidate := os.path.join(home, relative)):
            return candidate
    return _relative(path, metadata)


def _relative(path: str, metadata: Path) -> str:
    """A relative path counts from the metadata where that exists, else from the working directory."""
    if os.path.isabs(path):
        return path
    sibling = str(metadata.parent / path)
    return sibling if _is_file(sibling) else path


def _is_file(path: str) -> bool:
    """Whether a file lies there, on the disk or in a kept dump; not, for what can be no path at all."""
    return is_file(path) or bool(kept_version(path))


def _some(names: list[str]) -> str:
    ellipsis = f", ... ({len(names)} altogether)" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + ellipsis
