"""Several places that are one dump: each host wrote the ranks that ran on it.

    places -> JoinedPart (layout, processes) -> a number for each process -> one table of files -> a mirror

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
class JoinedPart:
    """One place: what lies there."""

    root: DumpRoot
    kind: str
    extent: Extent
    processes: list[RankProcess]

    @property
    def shown(self) -> str:
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
            (pattern.format(process.number, process.pid), there)
            for process in self.processes
            for there, pattern in process.directories
        )


def joined(roots: Sequence[DumpRoot], cache: Cache) -> str:
    """The path that stands for all places together. Raises `DumpError` where they are not one dump."""
    parts = [_part(root, cache) for root in roots]
    for part in parts[1:]:
        if part.kind != parts[0].kind:
            raise DumpError(
                f"{parts[0].shown} holds a dump of {parts[0].kind}, {part.shown} one of {part.kind}; "
                "places of one dump hold one kind"
            )
    _number(parts)
    maker, sources = TableMaker(), []
    for number, part in enumerate(parts):
        source, files = _files_of(part)
        sources.append(source)
        for file in files:
            maker.add(file, number, _name_here(file.name, part.renamed))
    table = _without_doubles(maker.table(sources), parts)
    headers = (header for part in parts for header in _known_headers(part, table))
    table.more |= columns_of(headers, table.digest)
    text = "\n".join(f"{root.place} {root.ranks}" for root in roots)
    believed = any(part.believed for part in parts)
    return install(home_of(cache.path, text), f"_/{_name(parts)}", table, believed=believed).path


def _name(parts: Sequence[JoinedPart]) -> str:
    """What the directories of all places are called; of `host0` and `host1`, what both begin with."""
    names = [part.extent.top.name for part in parts]
    if len({stable_name(name, "") for name in names}) == 1:
        return names[0]
    alike = itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*names))
    return "".join(letters[0] for letters in alike).rstrip("0123456789_.- ") or "dump"


def _part(root: DumpRoot, cache: Cache) -> JoinedPart:
    listing = Listing()
    layout = locate(root.path(cache), listing)
    extent = extent_of(layout)
    processes = processes_of(layout, Path(extent.top), listing)
    return JoinedPart(root, _kind(layout), extent, processes)


def _kind(layout: Layout) -> str:
    return str(getattr(layout, "kind", "")) or type(layout).__name__.removesuffix("Layout").lower()


def _number(parts: Sequence[JoinedPart]) -> None:
    """Give each process its rank: as listed, else as its files say, else as its device is numbered."""
    said = all(process.rank is not None for part in parts for process in part.processes)
    taken: dict[int, JoinedPart] = {}
    for part in parts:
        _check_count(part)
        for place, process in enumerate(part.processes):
            number = process.rank if said and process.rank is not None else process.device
            if part.root.ranks is not None:
                number = part.root.ranks[place]
                if process.rank not in (None, number):
                    raise DumpError(
                        f"{part.shown}: its files say that it is rank {process.rank}, and the list says "
                        f"{number}; correct the list"
                    )
            if number in taken or number < 0:
                where = f"{taken[number].shown} and {part.shown}" if number in taken else part.shown
                what = f"rank {number} lies in both" if number in taken else "nothing says which rank lies in"
                raise DumpError(
                    f"{what} {where}; leave one out, or list the places with the ranks of each in a TOML file"
                )
            taken[number], process.number = part, number
    _part_process_ids([process for part in parts for process in part.processes])


def _check_count(part: JoinedPart) -> None:
    if part.root.ranks is None:
        return
    if not part.processes:
        raise SettingsError(
            f"{part.shown}: ranks cannot be given for a dump of {part.kind}, whose files say their ranks "
            "themselves; leave them out"
        )
    if len(part.processes) != len(part.root.ranks):
        raise SettingsError(
            f"{part.shown}: holds {len(part.processes)} processes, but {len(part.root.ranks)} "
            "ranks are listed"
        )


def _part_process_ids(processes: Sequence[RankProcess]) -> None:
    """Two hosts may give out one process id: the second of them gets another."""
    taken: set[int] = set()
    free = max((process.pid for process in processes), default=0) + 1
    for process in processes:
        if process.pid in taken:
            process.pid, free = free, free + 1
        taken.add(process.pid)


def _files_of(part: JoinedPart) -> tuple[FileSource, Iterator[StoredFile]]:
    """Where the files of a place lie, and these, by their names below its top."""
    mirror = mirror_at(part.top)
    if mirror is None:
        return FileSource(part.top, part.renamed), _on_disk(part.extent)
    source = mirror.table.sources[0]
    above = mirror.name_of(part.top) or ""
    root = f"{source.root}/{above}" if above else source.root
    return FileSource(root, part.renamed), mirror.table.files(above)


def _known_headers(part: JoinedPart, table: FileTable) -> Iterator[HeaderRow]:
    """What the index of a place says of its tensors, by the rows of the table of all places."""
    mirror = mirror_at(part.top)
    if mirror is None:
        return
    above = mirror.name_of(part.top) or ""
    for one in headers_of(mirror.table):
        if one.row >= len(mirror.table):  # a damaged index; the files say it all
            return
        name = mirror.table.name(one.row)
        if not above or name.startswith(f"{above}/"):
            found = table.row(_name_here(name[len(above) :].lstrip("/"), part.renamed))
            if found is not None:
                yield one._replace(row=found.number)


def _on_disk(extent: Extent) -> Iterator[StoredFile]:
    for part in extent.parts:
        if is_file(part):
            yield _stored(str(part), extent)
        for home, _, names in os.walk(part, followlinks=True):
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


def _name_here(name: str, renamed: Sequence[tuple[str, str]]) -> str:
    for here, there in renamed:
        if not there or name.startswith(f"{there}/"):
            return f"{here}/{name[len(there) :].lstrip('/')}"
    return name


def _without_doubles(table: FileTable, parts: Sequence[JoinedPart]) -> FileTable:
    """The table with each name once. Raises `DumpError` where two places hold different files of one name.

    What lies at the top (a configuration, a profile) may have been copied to each host.
    """
    rows = doubles(table)
    for row in rows:
        name = table.name(row)
        first, second = (parts[int(table.columns["source"][one])].shown for one in (row - 1, row))
        own = "/" in name or name.endswith(SUFFIXES)
        if own or table.columns["size"][row - 1] != table.columns["size"][row]:
            raise DumpError(
                f"{first} and {second} both hold {name!r:.200}; leave one out, or list the places with the "
                "ranks of each in a TOML file"
            )
    return dropped(table, rows)
