"""The place of a TorchAir dump: what tells it from other directories, and which files around it are its."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import DumpError
from ..tensors.ge_record import MAPPING_FILE
from ..tensors.location import is_file, names_at
from .base import Dump, DumpLayout, Listing
from .torchair_files import (
    GraphFileName,
    TorchairFiles,
    is_level,
    is_torchair,
    parse_ge_name,
    parse_graph_name,
    read_mapping,
    walk,
)

_PROBED = 300
"""Directories looked into before it is certain that a path is no TorchAir dump; a real one needs ten."""
_PROBED_NAMES = 2000
"""Names looked at per directory on the way."""


@dataclass(frozen=True, slots=True)
class TorchairLayout(DumpLayout):
    """The place of a TorchAir dump; `name` is its writer. `root` may be one record."""

    root: Path
    name: str
    files: TorchairFiles

    def open(self, listing: Listing, token_policy: str, golden: Dump | None) -> Dump:
        from .ge import GeDump
        from .torchair import FxDump

        return (FxDump if self.name == "FX" else GeDump)(self.root, self.files)

    @property
    def top(self) -> Path:
        """The directory above all levels that the path has."""
        place = self.root.parent if is_file(self.root) else self.root
        return [place, *_above(place)][-1]

    def contents(self) -> Sequence[Path]:
        """The user's path, and the texts of the graphs, which lie beside the first level."""
        mapping = [self.root.parent / MAPPING_FILE] if is_file(self.root) else []
        return [self.root, *(Path(text) for text, _ in self.files.graphs), *mapping]


def dumps_at(path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump at, below or around `path`.

    Raises `DumpError` for a tree with files of both kinds, or with graph texts and no tensor.
    """
    if is_file(path):
        yield from _of_record(path)
        return
    if not _is_probable(path, listing):
        return
    files = walk(path, listing)
    if not files.graphs:
        files.graphs = _graphs_around(path)
    if files.ge and files.fx:
        ge_home, fx_home = next(iter(files.ge)), next(iter(files.fx))
        raise DumpError(
            f"{path}: holds GE records in {ge_home} and FX tensors in {fx_home}; "
            "give one of these directories (msit_ge_dump, msit_fx_dump)"
        )
    if files.ge or files.fx or files.hashed:
        yield TorchairLayout(path, "FX" if files.fx else "GE", files)
    elif files.graphs:
        raise DumpError(
            f"{path}: holds GE graph texts, but no GE record and no FX tensor below it; "
            "was enable_dump set, and did the steps to dump run?"
        )


def _of_record(file: Path) -> Iterator[DumpLayout]:
    """One GE record as a dump; a single `.npy` file is a plain tensor wherever it comes from."""
    long_names: dict[str, str] = {}
    mapping = file.parent / MAPPING_FILE
    if file.name.isdecimal() and is_file(mapping):
        long_names = read_mapping(os.fspath(mapping))
    name = parse_ge_name(file.name, long_names)
    if name is not None:
        records = {os.fspath(file.parent): [(file.name, name)]}
        yield TorchairLayout(file, "GE", TorchairFiles(ge=records, graphs=_graphs_around(file.parent)))


def _is_probable(place: Path, listing: Listing) -> bool:
    """Whether any file below has a name that only TorchAir gives; not all directories are looked into."""
    waiting = [place]
    for _ in range(_PROBED):
        if not waiting:
            return False
        home = waiting.pop()
        with suppress(DumpError):
            if any(is_torchair(name) or name == MAPPING_FILE for name in listing.files(home)[:_PROBED_NAMES]):
                return True
            waiting += [home / name for name in reversed(listing.directories(home))]
    return False


def _graphs_around(start: Path) -> list[tuple[str, GraphFileName]]:
    """Graph texts lie beside the first level of a dump; `start` may be any level below."""
    for place in _above(start):
        try:
            names = sorted(names_at(str(place)))
        except OSError:
            return []
        if texts := [(f"{place}/{name}", graph) for name in names if (graph := parse_graph_name(name))]:
            return texts
    return []


def _above(place: Path) -> Iterator[Path]:
    """The directories above, the nearest first, as long as what is below may be a level of a dump."""
    while is_level(place.name) and place.parent != place:
        place = place.parent
        yield place
