"""Several places that are one dump: each host wrote the ranks that ran on it.

    places -> JoinedPlace (layout, processes) -> a number for each process -> one table of files -> a mirror

The directory of a process is called after its rank in the joined dump, whatever it is called where it lies:
two hosts count their devices alike, and may give out one process id.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DumpError, SettingsError
from ..tensors.header_rows import HeaderRow, columns_of, headers_of
from ..tensors.stores.address import without_secrets
from ..tensors.stores.filesystem import StoredFile, version_number
from ..tensors.stores.mirror import home_of, install, mirror_at
from ..tensors.stores.place import is_file
from ..tensors.stores.table import FileSource, FileTable, TableMaker, doubles, dropped
from .discovery import Layout, locate
from .extent import Extent, extent_of
from .listing import Listing
from .naming import stable_name
from .processes import RankProcess, processes_of
from .roots import Cache, DumpRoot
from .single import SUFFIXES


@dataclass(slots=True)
class JoinedPlace:
    """One place: what lies there."""

    root: DumpRoot
    kind: str
    extent: Extent
    processes: list[RankProcess]

    @property
    def address(self) -> str:
        return without_secrets(self.root.place)

    @property
    def top(self) -> str:
        return str(self.extent.top)

    @property
    def believed(self) -> bool:
        """Whether the files were not listed in this run."""
        mirror = mirror_at(self.top)
        return mirror is not None and mirror.believed

    @property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        """Directories of the joined dump, and what they are called here."""
        return tuple(
            (pattern.format(process.number, process.pid), directory)
            for process in self.processes
            for directory, pattern in process.directories
        )


def joined(roots: Sequence[DumpRoot], cache: Cache) -> str:
    """The path that stands for all places together. Raises `DumpError` where they are not one dump."""
    places = [_place(root, cache) for root in roots]
    for place in places[1:]:
        if place.kind != places[0].kind:
            raise DumpError(
                f"{places[0].address} holds a dump of {places[0].kind}, {place.address} one of {place.kind}; "
                "places of one dump hold one kind"
            )
    _number(places)
    maker, sources = TableMaker(), []
    for number, place in enumerate(places):
        source, files = _files_of(place)
        sources.append(source)
        for file in files:
            maker.add(file, number, _joined_name(file.name, place.renamed))
    table = _without_doubles(maker.table(sources), places)
    headers = (header for place in places for header in _indexed_headers(place, table))
    table.more |= columns_of(headers, table.digest)
    text = "\n".join(f"{root.place} {root.ranks}" for root in roots)
    believed = any(place.believed for place in places)
    return install(home_of(cache.path, text), f"_/{_name(places)}", table, believed=believed).path


def _name(places: Sequence[JoinedPlace]) -> str:
    """The name of the directories of all places; of `host0` and `host1`, the beginning of both."""
    names = [place.extent.top.name for place in places]
    if len({stable_name(name, "") for name in names}) == 1:
        return names[0]
    alike = itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*names))
    return "".join(letters[0] for letters in alike).rstrip("0123456789_.- ") or "dump"


def _place(root: DumpRoot, cache: Cache) -> JoinedPlace:
    listing = Listing()
    layout = locate(root.path(cache), listing)
    extent = extent_of(layout)
    processes = processes_of(layout, Path(extent.top), listing)
    return JoinedPlace(root, _kind(layout), extent, processes)


def _kind(layout: Layout) -> str:
    return str(getattr(layout, "kind", "")) or type(layout).__name__.removesuffix("Layout").lower()


def _number(places: Sequence[JoinedPlace]) -> None:
    """Give each process its rank: as listed, else as its files say, else as its device is numbered."""
    is_ranked = all(process.rank is not None for place in places for process in place.processes)
    owners: dict[int, JoinedPlace] = {}
    for place in places:
        _check_count(place)
        for index, process in enumerate(place.processes):
            number = process.rank if is_ranked and process.rank is not None else process.device
            if place.root.ranks is not None:
                number = place.root.ranks[index]
                if process.rank not in (None, number):
                    raise DumpError(
                        f"{place.address}: its files say that it is rank {process.rank}, and the list says "
                        f"{number}; correct the list"
                    )
            if number in owners or number < 0:
                where = f"{owners[number].address} and {place.address}" if number in owners else place.address
                what = (
                    f"rank {number} lies in both" if number in owners else "nothing says which rank lies in"
                )
                raise DumpError(
                    f"{what} {where}; leave one out, or list the places with the ranks of each in a TOML file"
                )
            owners[number], process.number = place, number
    _separate_process_ids([process for place in places for process in place.processes])


def _check_count(place: JoinedPlace) -> None:
    if place.root.ranks is None:
        return
    if not place.processes:
        raise SettingsError(
            f"{place.address}: ranks cannot be given for a dump of {place.kind}, whose files say their ranks "
            "themselves; leave them out"
        )
    if len(place.processes) != len(place.root.ranks):
        raise SettingsError(
            f"{place.address}: holds {len(place.processes)} processes, but {len(place.root.ranks)} "
            "ranks are listed"
        )


def _separate_process_ids(processes: Sequence[RankProcess]) -> None:
    """Two hosts may give out one process id: the second of them gets another."""
    used: set[int] = set()
    free = max((process.pid for process in processes), default=0) + 1
    for process in processes:
        if process.pid in used:
            process.pid, free = free, free + 1
        used.add(process.pid)


def _files_of(place: JoinedPlace) -> tuple[FileSource, Iterator[StoredFile]]:
    """The source of the files of a place, and these by their names below its top."""
    mirror = mirror_at(place.top)
    if mirror is None:
        return FileSource(place.top, place.renamed), _on_disk(place.extent)
    source = mirror.table.sources[0]
    prefix = mirror.name_of(place.top) or ""
    root = f"{source.root}/{prefix}" if prefix else source.root
    return FileSource(root, place.renamed), mirror.table.files(prefix)


def _indexed_headers(place: JoinedPlace, table: FileTable) -> Iterator[HeaderRow]:
    """The headers in the index of a place, by the rows of the table of all places."""
    mirror = mirror_at(place.top)
    if mirror is None:
        return
    prefix = mirror.name_of(place.top) or ""
    for header in headers_of(mirror.table):
        if header.row >= len(mirror.table):  # a damaged index; the files say it all
            return
        name = mirror.table.name(header.row)
        if not prefix or name.startswith(f"{prefix}/"):
            row = table.row(_joined_name(name[len(prefix) :].lstrip("/"), place.renamed))
            if row is not None:
                yield header._replace(row=row.number)


def _on_disk(extent: Extent) -> Iterator[StoredFile]:
    for path in extent.paths:
        if is_file(path):
            yield _stored(str(path), extent)
        for home, _, names in os.walk(path, followlinks=True):
            for name in names:
                yield _stored(f"{home}/{name}", extent)


def _stored(path: str, extent: Extent) -> StoredFile:
    try:
        status = os.stat(path)
    except OSError:  # a link to nowhere, which says what it is when it is read
        status = os.lstat(path)
    name = os.path.relpath(path, extent.top)
    return StoredFile(
        name, status.st_size, version_number(str(status.st_mtime_ns), status.st_size), status.st_mtime_ns
    )


def _joined_name(name: str, renamed: Sequence[tuple[str, str]]) -> str:
    for joined_directory, directory in renamed:
        if not directory or name.startswith(f"{directory}/"):
            return f"{joined_directory}/{name[len(directory) :].lstrip('/')}"
    return name


def _without_doubles(table: FileTable, places: Sequence[JoinedPlace]) -> FileTable:
    """The table with each name once. Raises `DumpError` where two places hold different files of one name.

    What lies at the top (a configuration, a profile) may have been copied to each host.
    """
    rows = doubles(table)
    for row in rows:
        name = table.name(row)
        first, second = (places[int(table.columns["source"][number])].address for number in (row - 1, row))
        is_of_process = "/" in name or name.endswith(SUFFIXES)
        if is_of_process or table.columns["size"][row - 1] != table.columns["size"][row]:
            raise DumpError(
                f"{first} and {second} both hold {name!r:.200}; leave one out, or list the places with the "
                "ranks of each in a TOML file"
            )
    return dropped(table, rows)
