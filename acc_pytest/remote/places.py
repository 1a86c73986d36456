"""The places of a dump, as the user gives them: one path, one address, a pattern, several of these, or a list
of them in a file. What comes out is one path that all readers take.

    [[roots]]
    path = "/dumps/run"                 # on this machine
    [[roots]]
    host = "node7"                      # on another one: a node of the cluster, else sftp://node7/dumps/run
    path = "/dumps/run"
    ranks = [8, 9, 10, 11]              # the ranks there, in the order of their directories
    [[roots]]
    store = "s3://bucket"               # s3://bucket/runs/host3
    path = "runs/host3"
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.texts import parsed, read_toml
from ..dumps.base import DumpLayout, Listing, RankProcess, natural, stable_name
from ..dumps.discovery import locate
from ..dumps.single import SUFFIXES
from ..errors import DumpError, SettingsError
from ..tensors.address import (
    Cache,
    Places,
    address_of,
    is_address,
    is_pattern,
    local_path,
    may_be_list,
    places_of,
    without_secrets,
)
from ..tensors.location import is_file, shown_at
from .header_rows import HeaderRow, columns_of, headers_of, headers_refused
from .stores.blocks import set_limit
from .stores.filesystem import StoredFile
from .stores.hosts import address_on, host_of, survey_all
from .stores.indexes import stored_on_disk, use_index
from .stores.making import mirrored
from .stores.mirror import NOTE, home_of, install, mirror_at
from .stores.table import FileSource, FileTable, TableMaker, doubles, dropped

_LARGEST = 1 << 20
_KEYS = frozenset({"path", "host", "store", "ranks"})


def path_of(places: Places, cache: Cache) -> str:
    """The one path that `places` mean. Raises `DumpError` and `SettingsError`."""
    roots = [*_roots(places_of(places))]
    survey_all([root.place for root in roots if host_of(root.place)])
    if len(roots) == 1 and roots[0].ranks is None:
        return roots[0].path(cache)
    return joined(roots, cache)


def index_note(path: str) -> str:
    """Use the index of a mirror or in a directory of the disk; returns why it could not be used."""
    mirror = mirror_at(path)
    if mirror is not None:
        return str(mirror.table.notes.get(NOTE, "")) or headers_refused(mirror.table, shown_at(mirror.path))
    table, reason = use_index(path)
    return reason if table is None else headers_refused(table, path)


def _roots(places: Sequence[str]) -> Iterator[DumpRoot]:
    for place in places:
        listed = _listed(place)
        if listed is not None:
            yield from listed
        elif is_pattern(place):
            if is_address(place):
                from .stores.making import matching

                matches = matching(address_of(place))
            else:
                matches = glob.glob(local_path(place))
            if not matches:
                raise DumpError(f"{place}: nothing matches the pattern; correct it")
            yield from map(DumpRoot, sorted(matches, key=natural))
        else:
            yield DumpRoot(place)


def _listed(place: str) -> list[DumpRoot] | None:
    """The places that a file lists; `None` for what is no such file. Raises `SettingsError`."""
    if not may_be_list(place):
        return None
    content = read_toml(Path(place)) if place.endswith(".toml") else _json(place)
    listed = content.get("roots") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed) or not listed:
        if place.endswith(".json"):
            return None
        raise SettingsError(f"{place}: must list places of a dump, each in a table [[roots]] with a path")
    home = os.path.dirname(os.path.abspath(place))
    return [_root(entry, f"{place}: roots[{number}]", home) for number, entry in enumerate(listed)]


def _json(place: str) -> Any:
    """The content of a small JSON file; a larger one is a dump."""
    if os.path.getsize(place) > _LARGEST:
        return None
    try:
        return parsed(Path(place).read_bytes())
    except (OSError, ValueError):
        return None


def _root(entry: Mapping[str, Any], where: str, home: str) -> DumpRoot:
    if unknown := sorted(entry.keys() - _KEYS):
        raise SettingsError(f"{where}: unknown key {unknown[0]!r:.100}; known: {', '.join(sorted(_KEYS))}")
    texts = {key: entry.get(key, "") for key in ("path", "host", "store")}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise SettingsError(f"{where}: {key} must be a text, got {json.dumps(value)[:100]}")
    if not texts["path"] or (texts["host"] and texts["store"]):
        raise SettingsError(f"{where}: needs a path, and at most one of host and store")
    return DumpRoot(_place_of(texts, home), _ranks(entry.get("ranks"), where))


def _place_of(texts: Mapping[str, str], home: str) -> str:
    path = texts["path"]
    if texts["store"]:
        return f"{texts['store'].rstrip('/')}/{path.lstrip('/')}"
    if texts["host"]:
        on_node = address_on(texts["host"], path)
        if on_node or not _is_here(texts["host"]):
            return on_node or f"sftp://{texts['host']}/{path.lstrip('/')}"
    return path if is_address(path) else os.path.join(home, path)


def _is_here(host: str) -> bool:
    name = socket.gethostname()
    return host in ("localhost", "127.0.0.1", name, name.partition(".")[0])


def _ranks(value: Any, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    numbers = isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
    if not numbers or not value or len(set(value)) < len(value):
        raise SettingsError(
            f"{where}: ranks must be a list of different whole numbers >= 0, as in [8, 9], "
            f"got {json.dumps(value)[:100]}"
        )
    return tuple(value)


# Several places that are one dump: each host wrote the ranks that ran on it.
#
#     places -> JoinedPlace (layout, processes) -> a number for each process -> one table of files -> a mirror
#
# The directory of a process is called after its rank in the joined dump, whatever it is called where it lies:
# two hosts count their devices alike, and may give out one process id.


@dataclass(slots=True)
class JoinedPlace:
    """One place: what lies there."""

    root: DumpRoot
    layout: DumpLayout
    processes: list[RankProcess]

    @property
    def address(self) -> str:
        return without_secrets(self.root.place)

    @property
    def top(self) -> str:
        return str(self.layout.top)

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
        if place.layout.name != places[0].layout.name:
            raise DumpError(
                f"{places[0].address} holds a dump of {places[0].layout.name}, "
                f"{place.address} one of {place.layout.name}; places of one dump hold one kind"
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
    names = [place.layout.top.name for place in places]
    if len({stable_name(name, "") for name in names}) == 1:
        return names[0]
    alike = itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*names))
    return "".join(letters[0] for letters in alike).rstrip("0123456789_.- ") or "dump"


def _place(root: DumpRoot, cache: Cache) -> JoinedPlace:
    listing = Listing()
    layout = locate(root.path(cache), listing)
    processes = layout.processes(listing)
    if all(process.rank is not None for process in processes):
        processes.sort(key=lambda process: process.rank or 0)
    else:
        processes.sort(key=lambda process: (process.device, process.pid))
    return JoinedPlace(root, layout, processes)


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
            f"{place.address}: ranks cannot be given for a dump of {place.layout.name}, whose files say "
            "their ranks themselves; leave them out"
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
        return FileSource(place.top, place.renamed), _on_disk(place)
    source = mirror.table.sources[0]
    prefix = mirror.name_of(place.top) or ""
    root = f"{source.root}/{prefix}" if prefix else source.root
    return FileSource(root, place.renamed), mirror.table.files(prefix)


def _indexed_headers(place: JoinedPlace, table: FileTable) -> Iterator[HeaderRow]:
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


def _on_disk(place: JoinedPlace) -> Iterator[StoredFile]:
    top = place.top
    for path in place.layout.paths():
        if is_file(path):
            yield stored_on_disk(top, os.path.relpath(path, top))
        for home, _, names in os.walk(path, followlinks=True):
            for name in names:
                yield stored_on_disk(top, os.path.relpath(f"{home}/{name}", top))


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


@dataclass(frozen=True, slots=True)
class DumpRoot:
    """One of the places of a dump: a path or an address, and the numbers of the ranks there, if given."""

    place: str
    ranks: tuple[int, ...] | None = None

    def path(self, cache: Cache) -> str:
        """The path that stands for it. Raises `DumpError` for an address with nothing at it."""
        if not is_address(self.place):
            return local_path(self.place)
        set_limit(cache.path, cache.limit)
        return mirrored(address_of(self.place), cache.path)
