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

import json
import math
import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Union

from ..base.texts import parsed
from ..base.vocabulary import CHOOSING
from ..tensors.header import until_changed
from ..tensors.kept_dump import file_size
from ..tensors.location import bytes_of
from ..tensors.whole_file import whole_file

FILE = "manifest.json"
SUFFIX = ".pth"
FORMAT = "acc_pytest torch dump"
SCHEMA = 1
_PLACE = re.compile(r"\d{1,9}", re.ASCII)
_FOLDER = re.compile(r"\w[^/]*")
_LARGEST = 1 << 28
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
    key: Key | None = None
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    crc32: int | None = None
    storage: int | None = None
    offset: int | None = None
    version: int | None = None

    @property
    def numel(self) -> int | None:
        """Number of elements, where the shape is known."""
        return None if self.shape is None else math.prod(self.shape)


def process_manifest(folder: Path) -> ProcessManifest:
    """The manifest of a process folder, an empty one where there is none."""
    return _process(folder / FILE)


@until_changed(maxsize=8)
def _process(path: str) -> ProcessManifest:
    content = read_json(Path(path), FORMAT)
    process, order, left_out = (content.get(name) for name in ("process", "order", "left_out"))
    process = process if isinstance(process, dict) else {}
    config = content.get("config")
    config = config if isinstance(config, dict) else {}
    rank = process.get("rank")
    listed = order if isinstance(order, list) else []
    kinds = {entry[0]: entry[1] for entry in listed if _is_pair(entry)}
    return ProcessManifest(
        rank if isinstance(rank, int) else None,
        _ranks(process.get("world_size"), config),
        _numbers(config.get("token_range")),
        kinds,
        {str(reason): count for reason, count in left_out.items() if isinstance(count, int)}
        if isinstance(left_out, dict)
        else {},
        frozenset(name for name, kind in kinds.items() if kind in CHOOSING)
        if config.get("mode") == ["module"]
        else frozenset(),
        natural(content.get("weights_crc32"), LARGEST_CRC32),
        *_lines(content.get("code"), content.get("calls")),
    )


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


def _lines(code: object, calls: object) -> Iterator[dict[str, str]]:
    by_class = code if isinstance(code, dict) else {}
    yield {name: line[:_LONGEST_LINE] for name, line in by_class.items() if isinstance(line, str)}
    by_line = calls if isinstance(calls, dict) else {}
    yield {name: line[:_LONGEST_LINE] for line, names in by_line.items() for name in _names(names)}


def _ranks(world: object, config: Mapping[str, Any]) -> Collection[int]:
    """The ranks of a run of so many processes that were to be dumped; none where a device was asked for, or
    an older manifest does not tell."""
    if type(world) is not int or not 1 < world <= _MOST_RANKS:
        return ()
    if "ranks" not in config or config.get("device_id") is not None:
        return ()
    chosen = _numbers(config.get("ranks"))
    return [rank for rank in range(world) if not chosen or rank in chosen]


def _numbers(listed: object) -> Collection[int]:
    """A list of whole numbers, or `{"range": [start, stop, step]}`; empty for anything else."""
    numbers = listed.get("range") if isinstance(listed, dict) else listed
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        return ()
    if numbers is listed:
        return frozenset(numbers)
    return range(*numbers) if len(numbers) == 3 and numbers[2] else ()


def _is_pair(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(element, str) for element in entry)


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


@until_changed(maxsize=8)
def _step(path: str) -> StepManifest:
    content = read_json(Path(path), FORMAT)
    tensors = content.get("tensors")
    entries: dict[str, SavedTensor] = {}
    files: dict[str, set[str]] = {}
    for entry in tensors if isinstance(tensors, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("file"), str) and entry["file"]:
            entries[entry["file"]] = _saved(entry)
            folder, _, name = entry["file"].rpartition("/")
            if _FOLDER.fullmatch(folder):
                files.setdefault(folder, set()).add(name)
    return StepManifest(
        {file: saved.key for file, saved in entries.items() if saved.key is not None},
        MappingProxyType({file: saved for file, saved in entries.items() if file.endswith(SUFFIX)}),
        _names(content.get("started")),
        _names(content.get("order")),
        {folder: frozenset(names) for folder, names in files.items()},
        bool(content) and content.get("complete") is not False,
    )


def _names(listed: object) -> tuple[str, ...]:
    return tuple(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else ()


def _saved(entry: dict[str, Any]) -> SavedTensor:
    return SavedTensor(
        text(entry.get("node")),
        text(entry.get("side")),
        key_of(entry.get("key")),
        text(entry.get("dtype")),
        shape_of(entry.get("shape")),
        sizes_of(entry.get("stride")),
        natural(entry.get("crc32"), LARGEST_CRC32),
        *(natural(entry.get(name)) for name in ("storage", "offset", "version")),
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


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """The content of a file of this package whose `format` is `kind`; empty for one that is not sound."""
    try:
        if file_size(str(path)) > _LARGEST:
            return {}
        content = parsed(bytes_of(path))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.get("format") != kind or content.get("schema") != SCHEMA:
        return {}
    return content


def write_json(path: Path, content: object) -> int:
    """Write a file as JSON; returns the CRC-32 of its bytes."""
    data = json.dumps(content, separators=(",", ":")).encode()
    with whole_file(path) as file:
        file.write(data)
    return zlib.crc32(data)


# Fields of the JSON files beside a torch dump, checked: a value that no tensor can have is `None`.


Key = tuple[Union[int, str], ...]

LARGEST_NUMBER = (1 << 63) - 1
LARGEST_CRC32 = (1 << 32) - 1
_MOST_DIMENSIONS = 64


def shape_of(value: object) -> tuple[int, ...] | None:
    """The shape of a tensor that can exist."""
    sizes = sizes_of(value)
    return None if sizes is None or math.prod(size or 1 for size in sizes) > LARGEST_NUMBER else sizes


def sizes_of(value: object) -> tuple[int, ...] | None:
    """A natural number for each dimension."""
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return None
    sizes = tuple(size for size in value if natural(size) is not None)
    return sizes if len(sizes) == len(value) else None


def natural(value: object, largest: int = LARGEST_NUMBER) -> int | None:
    """A whole number from 0 up."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest:
        return value
    return None


def number(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    is_integer = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER
    return float(value) if is_integer and isinstance(value, int) else None


def text(value: object) -> str:
    """A text, empty where it is none."""
    return value if isinstance(value, str) else ""


def key_of(value: object) -> Key | None:
    """The path of keys to a tensor in arguments or a result."""
    if isinstance(value, list) and all(
        isinstance(element, (int, str)) and not isinstance(element, bool) for element in value
    ):
        return tuple(value)
    return None
