"""One walk over a TorchAir dump: which files are records of GE, tensors of FX and graph texts, by name alone.

No file is opened but `mapping.csv`, so that ten thousand records of one step are indexed at the price of one
directory listing. What a directory is (step, graph, rank) is read off its path by `torchair_directories`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import DumpError, FormatError
from ..tensors.kept_index import names_in
from ..tensors.stores.place import entries_at, is_file, names_at
from ..vocabulary import NOISE_PROFILE
from .torchair_directories import is_level
from .torchair_names import (
    MAPPING_FILE,
    FxFileName,
    GeFileName,
    GraphFileName,
    is_torchair,
    parse_fx_name,
    parse_ge_name,
    parse_graph_name,
    read_mapping,
)

_PROBED = 300
"""Directories looked into before it is certain that a path is no TorchAir dump; a real one needs ten."""
_PROBED_NAMES = 2000
"""Names looked at per directory on the way."""
_HASHED = 10
"""Least number of digits of a file name that may be the hash of a longer one."""


@dataclass(frozen=True, slots=True)
class TorchairLayout:
    """The place of a TorchAir dump, and its writer. `root` may be one record."""

    root: Path
    kind: Literal["ge", "fx"]
    files: TorchairFiles


@dataclass(slots=True)
class TorchairFiles:
    """The files of a dump by directory, in the order in which directories were met.

    `hashed` are names of digits that no `mapping.csv` explains; `unknown` counts other files.
    """

    ge: dict[str, list[tuple[str, GeFileName]]] = field(default_factory=dict)
    fx: dict[str, list[tuple[str, FxFileName]]] = field(default_factory=dict)
    hashed: dict[str, list[str]] = field(default_factory=dict)
    graphs: list[tuple[str, GraphFileName]] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def torchair_at(place: Path) -> TorchairLayout | None:
    """The TorchAir dump at, below or around `place`; `None` where there is none.

    Raises `DumpError` for a tree with files of both kinds, or with graph texts and no tensor.
    """
    if is_file(place):
        return _single(place)
    if not any(_probe(place)):
        return None
    files = walk(place)
    if not files.graphs:
        files.graphs = _graphs_around(place)
    if files.ge and files.fx:
        ge_home, fx_home = next(iter(files.ge)), next(iter(files.fx))
        raise DumpError(
            f"{place}: holds GE records in {ge_home} and FX tensors in {fx_home}; "
            "give one of these directories (msit_ge_dump, msit_fx_dump)"
        )
    if not files.ge and not files.fx and not files.hashed:
        if not files.graphs:
            return None
        raise DumpError(
            f"{place}: holds GE graph texts, but no GE record and no FX tensor below it; "
            "was enable_dump set, and did the steps to dump run?"
        )
    return TorchairLayout(place, "fx" if files.fx else "ge", files)


def walk(root: Path) -> TorchairFiles:
    """Classify every file below `root` by its name. Raises `DumpError` where a directory cannot be read."""
    files = TorchairFiles()
    waiting = [os.fspath(root)]
    linked = [os.path.realpath(root)]
    while waiting:
        home = waiting.pop()
        names, directories = _listed(home, linked)
        waiting += [f"{home}/{name}" for name in sorted(directories, reverse=True)]
        _classify(home, names, files)
    return files


def _listed(home: str, linked: list[str]) -> tuple[list[str], list[str]]:
    """Files and directories; a link to a directory is one, unless it leads to what is walked anyway."""
    stored = entries_at(home)
    if stored is not None:
        return stored[1], stored[0]
    files: list[str] = []
    directories: list[str] = []
    try:
        with os.scandir(home) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                elif entry.is_symlink() and entry.is_dir():
                    target = os.path.realpath(entry.path)
                    if not any(f"{target}/".startswith(f"{root}/") for root in linked):
                        linked.append(target)
                        directories.append(entry.name)
                else:
                    files.append(entry.name)
    except OSError as error:
        raise DumpError(f"{home}: cannot be listed: {error.strerror}; check its permissions") from error
    return [*files, *names_in(home)], directories


def _classify(home: str, names: list[str], files: TorchairFiles) -> None:
    long_names = _long_names(home, names, files.notes)
    ge: list[tuple[str, GeFileName]] = []
    fx: list[tuple[str, FxFileName]] = []
    hashed: list[str] = []
    for name in names:
        fields = _parsed_name(name, long_names)
        if isinstance(fields, FxFileName):
            fx.append((name, fields))
        elif isinstance(fields, GeFileName):
            ge.append((name, fields))
        elif isinstance(fields, GraphFileName):
            files.graphs.append((f"{home}/{name}", fields))
        elif name.isdecimal() and len(name) >= _HASHED:
            hashed.append(name)
        elif name not in (MAPPING_FILE, NOISE_PROFILE) and not name.endswith(".swp"):
            kind = os.path.splitext(name)[1] or "no suffix"
            files.unknown[kind] = files.unknown.get(kind, 0) + 1
    if ge:
        files.ge[home] = ge
    if fx:
        files.fx[home] = fx
    if hashed and (ge or MAPPING_FILE in names):
        files.hashed[home] = hashed


def _long_names(home: str, names: list[str], notes: list[str]) -> dict[str, str]:
    """The hashed names in `mapping.csv`; a broken one says nothing, which `notes` are told."""
    if MAPPING_FILE not in names:
        return {}
    try:
        return read_mapping(f"{home}/{MAPPING_FILE}")
    except FormatError as error:
        notes.append(str(error))
        return {}


def _parsed_name(name: str, long_names: dict[str, str]) -> FxFileName | GeFileName | GraphFileName | None:
    """The fields of the name of a file that TorchAir gave."""
    tensor = parse_fx_name(name) if name.endswith(".npy") else None
    if tensor is not None:
        return tensor
    record = parse_ge_name(name, long_names)
    if record is not None:
        return record
    return parse_graph_name(name) if name.startswith("dynamo_") else None


def _probe(place: Path) -> Iterator[bool]:
    """True as soon as any file below `place` has a name that only TorchAir gives; nothing otherwise."""
    waiting, visited = [os.fspath(place)], 0
    while waiting and visited < _PROBED:
        home = waiting.pop()
        visited += 1
        directories: list[str] = []
        listed = entries_at(home)
        stored = names_in(home) if listed is None else listed[1]
        if any(is_torchair(name) or name == MAPPING_FILE for name in stored[:_PROBED_NAMES]):
            yield True
            return
        if listed is not None:
            waiting += sorted((f"{home}/{name}" for name in listed[0]), reverse=True)
            continue
        try:
            with os.scandir(home) as entries:
                for count, entry in enumerate(entries):
                    if entry.is_dir():
                        directories.append(entry.path)
                    elif is_torchair(entry.name) or entry.name == MAPPING_FILE:
                        yield True
                        return
                    if count > _PROBED_NAMES:
                        break
        except OSError:
            continue
        waiting += sorted(directories, reverse=True)


def _single(file: Path) -> TorchairLayout | None:
    """One GE record as a dump; a single `.npy` file is a plain tensor wherever it comes from."""
    long_names: dict[str, str] = {}
    mapping = file.parent / MAPPING_FILE
    if file.name.isdecimal() and is_file(mapping):
        long_names = read_mapping(os.fspath(mapping))
    name = parse_ge_name(file.name, long_names)
    if name is None:
        return None
    files = TorchairFiles(
        ge={os.fspath(file.parent): [(file.name, name)]}, graphs=_graphs_around(file.parent)
    )
    return TorchairLayout(file, "ge", files)


def _graphs_around(start: Path) -> list[tuple[str, GraphFileName]]:
    """Graph texts lie beside the first level of a dump; `start` may be any level below."""
    place = start
    while is_level(place.name) and place.parent != place:
        place = place.parent
        try:
            names = sorted(names_at(str(place)))
        except OSError:
            return []
        texts = [
            (f"{place}/{name}", graph) for name in names if (graph := parse_graph_name(name)) is not None
        ]
        if texts:
            return texts
    return []
