"""One walk over a TorchAir dump: which files are records of GE, tensors of FX and graph texts, by name alone.

No file is opened but `mapping.csv`, so that ten thousand records of one step are indexed at the price of one
directory listing. What a directory is (step, graph, rank) is read off its path by `torchair_places`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import DumpError, FormatError
from .torchair_names import (
    MAPPING_FILE,
    FxName,
    GeName,
    GraphName,
    fx_name,
    ge_name,
    graph_name,
    is_torchair,
    read_mapping,
)
from .torchair_places import is_level

_PROBED = 300
"""Directories looked into before it is certain that a path is no TorchAir dump; a real one needs ten."""
_LOOKED_AT = 2000
"""Names looked at per directory on the way."""
_HASHED = 10
"""Least number of digits of a file name that may be the hash of a longer one."""


@dataclass(frozen=True, slots=True)
class TorchairLayout:
    """Where a TorchAir dump lies and what wrote it. `root` may be one record."""

    root: Path
    kind: Literal["ge", "fx"]
    found: Found


@dataclass(slots=True)
class Found:
    """The files of a dump by directory, in the order in which directories were met.

    `hashed` are names of digits that no `mapping.csv` explains; `unknown` counts other files.
    """

    ge: dict[str, list[tuple[str, GeName]]] = field(default_factory=dict)
    fx: dict[str, list[tuple[str, FxName]]] = field(default_factory=dict)
    hashed: dict[str, list[str]] = field(default_factory=dict)
    graphs: list[tuple[str, GraphName]] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def torchair_at(given: Path) -> TorchairLayout | None:
    """The TorchAir dump at, below or around `given`; `None` where there is none.

    Raises `DumpError` for a tree with files of both kinds, or with graph texts and no tensor.
    """
    if given.is_file():
        return _single(given)
    if not any(_probe(given)):
        return None
    found = walk(given)
    if not found.graphs:
        found.graphs = _graphs_above(given)
    if found.ge and found.fx:
        one, other = next(iter(found.ge)), next(iter(found.fx))
        raise DumpError(
            f"{given}: holds GE records in {one} and FX tensors in {other}; "
            "give one of these directories (msit_ge_dump, msit_fx_dump)"
        )
    if not found.ge and not found.fx and not found.hashed:
        if not found.graphs:
            return None
        raise DumpError(
            f"{given}: holds GE graph texts, but no GE record and no FX tensor below it; "
            "was enable_dump set, and did the steps to dump run?"
        )
    return TorchairLayout(given, "fx" if found.fx else "ge", found)


def walk(root: Path) -> Found:
    """Classify every file below `root` by its name. Raises `DumpError` where a directory cannot be read."""
    found = Found()
    waiting = [os.fspath(root)]
    linked = [os.path.realpath(root)]
    while waiting:
        home = waiting.pop()
        names, below = _listed(home, linked)
        waiting += [f"{home}/{name}" for name in sorted(below, reverse=True)]
        _classify(home, names, found)
    return found


def _listed(home: str, linked: list[str]) -> tuple[list[str], list[str]]:
    """Files and directories; a link to a directory is one, unless it leads to what is walked anyway."""
    files: list[str] = []
    below: list[str] = []
    try:
        with os.scandir(home) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                elif entry.is_symlink() and entry.is_dir():
                    target = os.path.realpath(entry.path)
                    if not any(f"{target}/".startswith(f"{known}/") for known in linked):
                        linked.append(target)
                        below.append(entry.name)
                else:
                    files.append(entry.name)
    except OSError as error:
        raise DumpError(f"{home}: cannot be listed: {error.strerror}; check its permissions") from error
    return files, below


def _classify(home: str, names: list[str], found: Found) -> None:
    long_names: dict[str, str] = {}
    if MAPPING_FILE in names:
        try:
            long_names = read_mapping(f"{home}/{MAPPING_FILE}")
        except FormatError as error:
            found.notes.append(str(error))
    ge: list[tuple[str, GeName]] = []
    fx: list[tuple[str, FxName]] = []
    hashed: list[str] = []
    for name in names:
        if name.endswith(".npy") and (tensor := fx_name(name)) is not None:
            fx.append((name, tensor))
        elif (record := ge_name(name, long_names)) is not None:
            ge.append((name, record))
        elif name.startswith("dynamo_") and (graph := graph_name(name)) is not None:
            found.graphs.append((f"{home}/{name}", graph))
        elif name.isdecimal() and len(name) >= _HASHED:
            hashed.append(name)
        elif name != MAPPING_FILE and not name.endswith(".swp"):
            kind = os.path.splitext(name)[1] or "no suffix"
            found.unknown[kind] = found.unknown.get(kind, 0) + 1
    if ge:
        found.ge[home] = ge
    if fx:
        found.fx[home] = fx
    if hashed and (ge or MAPPING_FILE in names):
        found.hashed[home] = hashed


def _probe(given: Path) -> Iterator[bool]:
    """True as soon as any file below `given` has a name that only TorchAir gives; nothing otherwise."""
    waiting, seen = [os.fspath(given)], 0
    while waiting and seen < _PROBED:
        home = waiting.pop()
        seen += 1
        below: list[str] = []
        try:
            with os.scandir(home) as entries:
                for count, entry in enumerate(entries):
                    if entry.is_dir():
                        below.append(entry.path)
                    elif is_torchair(entry.name) or entry.name == MAPPING_FILE:
                        yield True
                        return
                    if count > _LOOKED_AT:
                        break
        except OSError:
            continue
        waiting += sorted(below, reverse=True)


def _single(file: Path) -> TorchairLayout | None:
    """One GE record as a dump; a single `.npy` file is a plain tensor wherever it comes from."""
    long_names: dict[str, str] = {}
    beside = file.parent / MAPPING_FILE
    if file.name.isdecimal() and beside.is_file():
        long_names = read_mapping(os.fspath(beside))
    name = ge_name(file.name, long_names)
    if name is None:
        return None
    found = Found(ge={os.fspath(file.parent): [(file.name, name)]}, graphs=_graphs_above(file.parent))
    return TorchairLayout(file, "ge", found)


def _graphs_above(given: Path) -> list[tuple[str, GraphName]]:
    """Graph texts lie beside the first level of a dump; `given` may be any level below."""
    place = given
    while is_level(place.name) and place.parent != place:
        place = place.parent
        try:
            names = sorted(os.listdir(place))
        except OSError:
            return []
        found = [(f"{place}/{name}", graph) for name in names if (graph := graph_name(name)) is not None]
        if found:
            return found
    return []
