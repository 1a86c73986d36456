"""The manifests (`manifest.json`) that `register_hook` writes beside the tensors of a torch dump.

Old dumps have none, and a dump that was cut short may lack some of them: what is said here is never needed,
it only makes exact what file names leave open. A manifest that is not sound counts as none, a field of a
wrong type or size as not there.

    process_manifest(home)   of the process folder: rank, order, what was left out
    step_manifest(step)      of the folder of a step in it: what each file holds, which nodes ran
    code_of(path)            of a file of a step: the line of the program that its tensor comes from

The last few of the latter are remembered.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Union

from ..base.forms import must, sound
from ..base.vocabulary import CHOOSING
from ..tensors.header import until_changed
from ..tensors.json_file import Crc32, Natural, Shape, Sizes, sound_file

FILE = "manifest.json"
SUFFIX = ".pth"
FORMAT = "acc_pytest torch dump"
_PLACE = re.compile(r"\d{1,9}", re.ASCII)
_FOLDER = re.compile(r"\w[^/]*")
_AGAIN = re.compile(r"\.call\d+$", re.ASCII)
_LONGEST_LINE = 200
_MOST_RANKS = 1 << 10
"""Processes of the largest run that is believed."""


@dataclass(frozen=True, slots=True)
class ProcessManifest:
    """The manifest of a process folder: its rank, what ran in which order (folder, type), and what was left
    out and why. `choices` are the calls of functions among them, where nobody asked for functions.
    `weights_crc32` is that of the file `weights.json`; older manifests do not have it. `ranks` and `steps`
    are those that were to be dumped. `code` has the line of the `forward` of classes and modules by their
    names, `calls` the line that called a module first.
    """

    rank: int | None = None
    ranks: Collection[int] = ()
    steps: Collection[int] = ()
    order: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    choices: frozenset[str] = frozenset()
    weights_crc32: int | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, str] = field(default_factory=dict)


Key = tuple[Union[int, str], ...]


def _key(value: object, where: str) -> Key:
    if isinstance(value, list) and all(type(element) in (int, str) for element in value):
        return tuple(value)
    raise must(where, "a list of numbers and strings", value)


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """The entry of one file in the manifest of a step. `None`, and no dtype, where it does not say.

    `crc32` is that of the values in row-major order, whatever the strides were. Two tensors of one process
    with the same `storage`, `offset`, `shape` and `stride` (in elements) are the same tensor; with the same
    `version` too, nothing was written to it in between. Tensors of inference mode have no version: of them
    only equal bytes say so.
    The number of a storage is never given again, whatever happens to the memory.
    """

    node: str = ""
    side: str = ""
    key: Annotated[Key, _key] | None = None
    dtype: str = ""
    shape: Shape | None = None
    stride: Sizes | None = None
    crc32: Crc32 | None = None
    storage: Natural | None = None
    offset: Natural | None = None
    version: Natural | None = None

    @property
    def numel(self) -> int | None:
        """Number of elements, where the shape is known."""
        return None if self.shape is None else math.prod(self.shape)


def process_manifest(folder: Path) -> ProcessManifest:
    """The manifest of a process folder, an empty one where there is none."""
    return _process(folder / FILE)


def _name_and_kind(value: object, where: str) -> tuple[str, str]:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(element, str) for element in value):
        return value[0], value[1]
    raise must(where, "a list of two strings", value)


def _numbers(value: object, where: str) -> Collection[int]:
    """A list of whole numbers, or `{"range": [start, stop, step]}`; empty for anything else."""
    numbers = value.get("range") if isinstance(value, dict) else value
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        return ()
    if numbers is value:
        return frozenset(numbers)
    return range(*numbers) if len(numbers) == 3 and numbers[2] else ()


@dataclass(frozen=True, slots=True)
class _Process:
    """What a manifest says of the process: `world_size` is how many there were."""

    rank: Natural | None = None
    world_size: Natural | None = None


@dataclass(frozen=True, slots=True)
class _Config:
    """What was to be dumped. An older manifest has no `ranks`, one of all ranks has none in it."""

    mode: object = None
    token_range: Annotated[Collection[int], _numbers] = ()
    ranks: Annotated[Collection[int] | None, _numbers] = None
    device_id: object = None


@dataclass(frozen=True, slots=True)
class _ProcessFile:
    """`manifest.json` of a process folder."""

    process: _Process = _Process()
    config: _Config = _Config()
    order: tuple[Annotated[tuple[str, str], _name_and_kind], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    weights_crc32: Crc32 | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@until_changed(maxsize=8)
def _process(path: str) -> ProcessManifest:
    stated = sound_file(_ProcessFile, path, FORMAT) or _ProcessFile()
    kinds, config = dict(stated.order), stated.config
    return ProcessManifest(
        stated.process.rank,
        _ranks(stated.process.world_size, config),
        config.token_range,
        kinds,
        stated.left_out,
        frozenset(name for name, kind in kinds.items() if kind in CHOOSING and config.mode == ["module"]),
        stated.weights_crc32,
        {name: line[:_LONGEST_LINE] for name, line in stated.code.items()},
        {name: line[:_LONGEST_LINE] for line, names in stated.calls.items() for name in names},
    )


def _ranks(world: int | None, config: _Config) -> Collection[int]:
    """The ranks of a run of so many processes that were to be dumped; none where a device was asked for, or
    an older manifest does not tell."""
    if world is None or not 1 < world <= _MOST_RANKS or config.ranks is None or config.device_id is not None:
        return ()
    return [rank for rank in range(world) if not config.ranks or rank in config.ranks]


def code_of(path: str) -> str:
    """The line of the program that the tensor of a file comes from: of an input the first call of its module,
    else the module's `forward`, or its call where that is torch's; of a function that of its module. Empty
    where the manifest does not tell."""
    if not path.endswith((SUFFIX, ".csv")):
        return ""
    folder, file = os.path.split(path)
    step, node = os.path.split(folder)
    manifest = process_manifest(Path(os.path.dirname(step)))
    node = _AGAIN.sub("", node)
    if file.startswith("input") and node in manifest.calls:
        return manifest.calls[node]
    while node:
        line = manifest.code.get(node, manifest.code.get(manifest.order.get(node, "")))
        if line := line or manifest.calls.get(node):
            return line
        node = node.rpartition(".")[0]
    return ""


@dataclass(frozen=True, slots=True)
class StepManifest:
    """The manifest of a step's folder; all fields are empty where there is no manifest.

    `keys` says which argument or field each file holds (`root.mlp/input_x.pth`), `entries` what is known of
    each file with a tensor. `started` are the nodes (folders, also of modules that the filters left out) in
    the order in which they began, `ended` in that in which they ended. `ProcessManifest.order` is the latter
    of all steps together. `files` are the names of the files of each node, statistics too; `complete` says
    that the step ran to its end.
    """

    keys: Mapping[str, Key]
    entries: Mapping[str, SavedTensor]
    started: tuple[str, ...]
    ended: tuple[str, ...]
    files: Mapping[str, frozenset[str]]
    complete: bool


def step_manifest(folder: str) -> StepManifest:
    """The manifest of a step's folder, an empty one where there is none."""
    return _step(os.path.join(folder, FILE))


@dataclass(frozen=True, slots=True)
class _StepFile:
    """`manifest.json` of a step; each of `tensors` is a `SavedTensor` with the name of its `file`."""

    tensors: tuple[Mapping[str, Any], ...] = ()
    started: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    complete: bool = True


@until_changed(maxsize=8)
def _step(path: str) -> StepManifest:
    stated = sound_file(_StepFile, path, FORMAT) or _StepFile(complete=False)
    entries: dict[str, SavedTensor] = {}
    files: dict[str, set[str]] = {}
    for entry in stated.tensors:
        if isinstance(file := entry.get("file"), str) and file:
            entries[file] = sound(SavedTensor, entry) or SavedTensor()
            folder, _, name = file.rpartition("/")
            if _FOLDER.fullmatch(folder):
                files.setdefault(folder, set()).add(name)
    return StepManifest(
        {file: saved.key for file, saved in entries.items() if saved.key is not None},
        MappingProxyType({file: saved for file, saved in entries.items() if file.endswith(SUFFIX)}),
        stated.started,
        stated.order,
        {folder: frozenset(names) for folder, names in files.items()},
        stated.complete,
    )


def key_of_name(stem: str) -> Key:
    """The key in a file name: `1_0` is (1, 0), `past_key_values_0_key` (past_key_values, 0, key)."""
    elements: list[int | str] = []
    for segment in stem.split("_"):
        if _PLACE.fullmatch(segment):
            elements.append(int(segment))
        elif elements and isinstance(elements[-1], str):
            elements[-1] += f"_{segment}"
        else:
            elements.append(segment)
    return tuple(elements)
