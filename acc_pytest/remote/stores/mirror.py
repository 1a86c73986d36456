"""`Mirror`: a path that stands for a dump in a store, or for one put together of several places.

    CACHE/acc_mirror/3f2a91c07b44/acc_dump.index      its index; nothing else is on the disk
    CACHE/acc_mirror/3f2a91c07b44/s3/bucket/dump      the path that stands for s3://bucket/dump

The path alone says where all is, once the cache is in use: a worker that gets one in a plan needs no more.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import AccError, FormatError
from ...tensors.address import (
    INDEX,
    MIRRORS,
    address_of,
    check_cache,
    home_at,
    is_address,
    use_caches,
)
from ...tensors.whole_file import whole_file
from .filesystem import FileStore, store_of
from .hosts import path_here
from .table import FileRow, FileTable, read_table

_BASE = "base"
NOTE = "note"
"""Key of the note to the user on how the mirror was made, among the notes of its table."""
_BELIEVED = "believed"
_LIFETIME = 30 * 86400.0
"""Seconds for which the index of a mirror is kept that no run has used."""
_mirrors: dict[str, Mirror] = {}
"""Mirrors that this process has read, by their homes."""


@dataclass(eq=False)
class Mirror:
    """`home` holds the index; `path` stands for the dump; `cache` is the directory of the blocks.

    `believed`: the index was not made of a listing of this run, so that every file is looked at in the store
    before it is read.
    """

    home: str
    table: FileTable

    @property
    def path(self) -> str:
        return f"{self.home}/{self.table.notes[_BASE]}"

    @property
    def cache(self) -> str:
        return os.path.dirname(os.path.dirname(self.home))

    @property
    def believed(self) -> bool:
        return bool(self.table.notes.get(_BELIEVED))

    def name_of(self, path: str) -> str | None:
        """The name in the table of a path below the mirror; `None` for one above its dump."""
        root = self.path
        if path.rstrip("/") == root:
            return ""
        return path[len(root) + 1 :].rstrip("/") if path.startswith(f"{root}/") else None

    def placed(self, row: int) -> Placed:
        """The file in a row of the table."""
        name = self.table.name(row)
        file_row = self.table.row(name)
        assert file_row is not None
        return Placed(self, name, file_row)


class Placed(NamedTuple):
    """A file of a mirror: its row, and where it lies."""

    mirror: Mirror
    name: str
    row: FileRow

    @property
    def name_in_source(self) -> str:
        """Its name in its source."""
        return self.row.source.name_in_source(self.name)

    @property
    def source_path(self) -> str:
        """The address or the path at which the user finds it."""
        return f"{self.row.source.root}/{self.name_in_source}"

    @property
    def path(self) -> str:
        """Its path, where it lies on this machine; empty where it lies in a store or on another one."""
        root = self.row.source.root
        local_root = path_here(root) if is_address(root) else root
        return f"{local_root}/{self.name_in_source}" if local_root else ""

    @property
    def store(self) -> FileStore:
        """Its store. Raises `DumpError` where that cannot be opened."""
        return store_of(address_of(self.row.source.root))


def home_of(cache: str, root: str) -> str:
    """The home of the mirror of `root`: an address, or what tells one list of places from another."""
    digest = hashlib.blake2b(root.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{cache}/{MIRRORS}/{digest}"


def install(home: str, base: str, table: FileTable, *, believed: bool) -> Mirror:
    """Write the index of a mirror, whose dump is at `home`/`base`. Raises `AccError`."""
    table.notes |= {_BASE: base, _BELIEVED: believed}
    mirror = Mirror(home, table)
    check_cache(mirror.cache)
    use_caches((mirror.cache,))
    if not _mirrors:
        _remove_unused(os.path.dirname(home))
    save(mirror)
    _mirrors[home] = mirror
    return mirror


def _remove_unused(mirrors: str) -> None:
    """Remove the indexes of mirrors that no run has used for long: each run writes those that it uses."""
    with contextlib.suppress(OSError), os.scandir(mirrors) as homes:
        for home in homes:
            with contextlib.suppress(OSError):
                index = f"{home.path}/{INDEX}"
                if os.stat(index).st_mtime < time.time() - _LIFETIME:
                    os.unlink(index)
                    os.rmdir(home.path)


def forget(mirror: Mirror) -> None:
    """Forget a mirror whose files will be removed."""
    _mirrors.pop(mirror.home, None)


def save(mirror: Mirror) -> None:
    """Write the index of a mirror again, with what is in `table.more`. Raises `AccError`."""
    with whole_file(f"{mirror.home}/{INDEX}") as file:
        file.write(mirror.table.packed())


def known_mirrors() -> dict[str, bytes]:
    """The mirrors of this process by their homes, to be sent to another machine."""
    return {home: mirror.table.packed() for home, mirror in _mirrors.items()}


def take_mirrors(sent: Mapping[str, bytes]) -> None:
    """Know the mirrors of another machine; nothing is written. Raises `FormatError` for what is none."""
    for home, content in sent.items():
        _mirrors[home] = Mirror(home, read_table(content, home))
        use_caches((_mirrors[home].cache,))


def put_at(path: str, source: str) -> None:
    """Upload a file of the disk to where a path below a mirror stands for. Raises `AccError`."""
    mirror = mirror_at(path)
    name = mirror.name_of(path) if mirror is not None else None
    if mirror is None or not name or len(mirror.table.sources) != 1:
        raise AccError(f"{path}: cannot be written: it would lie in a dump that is put together of several")
    store_of(address_of(mirror.table.sources[0].root)).put(name, source)


def mirror_at(path: str) -> Mirror | None:
    """The mirror that a path lies in; `None` for any other path. Raises `FormatError` for a broken index."""
    home = home_at(path)
    return mirror_of(home) if home else None


def mirror_of(home: str) -> Mirror | None:
    """The mirror at a home; `None` where there is none. Raises `FormatError` for a broken index."""
    if home not in _mirrors:
        try:
            with open(f"{home}/{INDEX}", "rb") as file:
                content = file.read()
        except OSError:
            return None
        table = read_table(content, f"{home}/{INDEX}")
        if type(table.notes.get(_BASE)) is not str:
            raise FormatError(f"{home}/{INDEX}: is no index of a mirror; remove {home}")
        _mirrors[home] = Mirror(home, table)
    return _mirrors[home]


def placed(path: str) -> Placed | None:
    """The file that a path below a mirror stands for; `None` for every other path, also on the disk."""
    mirror = mirror_at(path)
    name = mirror.name_of(path) if mirror is not None else None
    row = mirror.table.row(name) if mirror is not None and name else None
    return Placed(mirror, name or "", row) if mirror is not None and row is not None else None


def readable_path(path: str) -> str:
    """A path as the user may read it: one below a mirror as what it stands for."""
    try:
        file = placed(path)
        mirror = mirror_at(path)
    except AccError:
        return path
    if file is not None:
        return file.source_path
    name = mirror.name_of(path) if mirror is not None else None
    if mirror is None or name is None:
        return path
    if len(mirror.table.sources) != 1:
        return ", ".join(source.root for source in mirror.table.sources) if not name else path
    source = mirror.table.sources[0]
    return "/".join(segment for segment in (source.root, source.name_in_source(name)) if segment)
