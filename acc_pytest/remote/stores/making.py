"""Mirrors made: of one address, or of several places that are one dump."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...errors import DumpError, FormatError
from ...tensors.address import INDEX, Address
from .filesystem import PATIENCE, FileStore, StoredFile, connected, error_text, store_of, within
from .hosts import NODE, host_of, surveyed
from .indexes import take_texts
from .mirror import NOTE, Mirror, home_of, install, mirror_of
from .table import LARGEST, Column, FileSource, FileTable, TableMaker, read_table

LISTED_ANEW = 50_000
"""Files up to which the mirror of an earlier run is not believed: to list so many takes some seconds."""
_LOOKED_AT = 64
"""Directories that are listed to see whether an index is still true."""
_ABOVE = 3
"""Directories above an address in which the index of its dump may lie."""
_STAMP = "stamp"
LISTED = "listed"
"""The digest of the listing that an index without names belongs to, among its notes."""
_LARGE = 1000
"""Files and directories in one directory from which that takes several requests."""


def mirrored(address: Address, cache: str) -> str:
    """The path that stands for an address, whose files are listed unless an index of them can be believed.

    Raises `DumpError` for an address with nothing at it, or that the store refuses.
    """
    if address.protocol == NODE:
        return _of_host(address, cache)
    store = store_of(address)
    alone = store.file_at_root()
    if alone is not None:
        maker = TableMaker()
        maker.add(alone._replace(name=address.name))
        table = maker.table([FileSource(str(address.parent))])
        return f"{_installed(address.parent, cache, table, str(address)).path}/{address.name}"
    mirror, refused = _believed_mirror(store, cache)
    if mirror is not None:
        return mirror.path
    return _in_indexed(address, cache) or listed_anew(store, cache, refused)


def matching(pattern: Address) -> list[str]:
    """The addresses that a pattern with `*`, `?` or `[...]` means. Raises `DumpError`."""
    system, path = connected(pattern)
    try:
        paths = within(PATIENCE, lambda: system.glob(path))
    except Exception as error:  # noqa: BLE001 - file systems document no errors of theirs
        raise DumpError(f"{pattern}: cannot be listed: {error_text(error)}") from None
    before = len(pattern.rest) - len(path.lstrip("/"))
    return [f"{pattern.protocol}://{pattern.rest[:before]}{name.lstrip('/')}" for name in paths]


def _in_indexed(address: Address, cache: str) -> str:
    """The path of a place inside of a dump that has an index; empty where no directory above has one."""
    parent = address
    for _ in range(_ABOVE):
        parent = parent.parent
        if "/" not in parent.rest.strip("/"):
            break
        store = store_of(parent)
        try:
            mirror = _believed_mirror(store, cache)[0] if store.stat(INDEX) is not None else None
        except DumpError:  # who may read a dump need not be allowed to read what is above it
            break
        if mirror is not None:
            return f"{mirror.path}/{address.rest[len(parent.rest) + 1 :]}"
    return ""


def _of_host(address: Address, cache: str) -> str:
    """The path that stands for what lies on another machine, which is asked once for all that it holds."""
    survey = surveyed(str(address))
    top = Address(NODE, f"{host_of(str(address))}{survey.top.rstrip('/')}")
    table = read_table(survey.content, str(top))
    table.sources = (FileSource(str(top)),)
    mirror = install(home_of(cache, str(top)), top.below, table, believed=False)
    take_texts(mirror)
    return f"{mirror.path}/{survey.inside}".rstrip("/")


def listed_anew(store: FileStore, cache: str, note: str = "") -> str:
    """The path that stands for a directory of a store, whose files are listed now. Raises `DumpError`."""
    table = table_of(store)
    if note:
        table.notes[NOTE] = note
    return _installed(store.address, cache, table, str(store.address)).path


def _installed(address: Address, cache: str, table: FileTable, root: str) -> Mirror:
    home = home_of(cache, root)
    before = _before(home)
    if before is not None and before.table.digest == table.digest:
        table.more = before.table.more
    return install(home, address.below, table, believed=False)


def _before(home: str) -> Mirror | None:
    """The mirror that an earlier run left at a home; `None` for none that can be read."""
    try:
        return mirror_of(home)
    except FormatError:
        return None


def table_of(store: FileStore) -> FileTable:
    """The table of all files of a store. Raises `DumpError` where there are none."""
    maker = TableMaker()
    for file in store.files():
        if file.name != INDEX:
            maker.add(file)
    table = maker.table([FileSource(str(store.address))])
    if not len(table):
        raise DumpError(f"{store.address}: holds no file; was the dump written somewhere else?")
    return table


def _believed_mirror(store: FileStore, cache: str) -> tuple[Mirror | None, str]:
    """The mirror made of the index in the store, or of a large listing of an earlier run, if still true; else
    why an index in the store was refused."""
    home = home_of(cache, str(store.address))
    before = _before(home)
    index = store.stat(INDEX)
    if index is not None:
        return _of_index(store, home, before, f"{index.version:016x}")
    if before is None or len(before.table) <= LISTED_ANEW or stale(before.table, store) is not None:
        return None, ""
    return install(home, store.address.below, before.table, believed=True), ""


def _of_index(store: FileStore, home: str, before: Mirror | None, stamp: str) -> tuple[Mirror | None, str]:
    """The mirror made of the index in the store, whose version is `stamp`; or why it was refused."""
    where = store.address.joined(INDEX)
    if before is not None and before.table.notes.get(_STAMP) == stamp:
        table = before.table
    else:
        try:
            table = read_table(store.get(INDEX, LARGEST + 1), str(where))
        except FormatError as error:
            return None, f"the index was not used: {error}"
    if LISTED in table.notes:
        return _with_listing(store, home, table, stamp), ""
    reason = stale(table, store)
    if reason is not None:
        return None, _stale_note(store, reason)
    return _used(store, home, table, stamp, believed=True), ""


def _with_listing(store: FileStore, home: str, index: FileTable, stamp: str) -> Mirror:
    """The mirror of what is in the store now, with what an index without names says of that."""
    table = table_of(store)
    if table.digest == index.notes[LISTED]:
        table.more, table.notes[LISTED] = index.more, table.digest
    else:
        table.notes[NOTE] = _stale_note(store, "files were added, removed or written anew")
    return _used(store, home, table, stamp, believed=False)


def _used(store: FileStore, home: str, table: FileTable, stamp: str, *, believed: bool) -> Mirror:
    table.notes[_STAMP] = stamp
    table.sources = (FileSource(str(store.address)),)
    mirror = install(home, store.address.below, table, believed=believed)
    take_texts(mirror)
    return mirror


def _stale_note(store: FileStore, reason: str) -> str:
    return f"{store.address.joined(INDEX)}: is stale and was not used: {reason}; acc index makes a new one"


def index_of(table: FileTable, store: FileStore, columns: dict[str, Column]) -> FileTable:
    """The index of a table of files in a store: `columns` of it.

    Where all files can be listed by few requests, that is done each time the dump is opened. The index has a
    digest of the listing then, and no names: it is much smaller, and one changed file is enough to refuse it.
    """
    if store.has_pages and len(table) <= LISTED_ANEW:
        index = TableMaker().table(table.sources)
        index.notes[LISTED], index.more = table.digest, columns
        return index
    return FileTable(table.directories, table.bases, table.columns, table.sources, columns)


def stale(table: FileTable, store: FileStore) -> str | None:
    """The reason why an index is out of date for the store; `None` where it is not.

    The first directories are listed again, one level after the other. Files below the others are looked at
    when they are read.
    """
    for directory in _first_directories(table):
        path = store.path_of(directory)
        try:
            files, directories = store.level(path)
        except DumpError:
            return f"{store.address.joined(directory)} can no longer be listed"
        now = {store.name_of(child) for child in directories}
        before = {
            f"{directory}/{name}" if directory else name for name in (table.entries(directory) or ((),))[0]
        }
        if now != before:
            changed = sorted(now ^ before)[0]
            return f"the directory {store.address.joined(changed)} was added or removed"
        reason = _changed_file(table, directory, [file for file in files if file.name != INDEX], store)
        if reason is not None:
            return reason
    return None


def _changed_file(table: FileTable, directory: str, files: list[StoredFile], store: FileStore) -> str | None:
    names = (table.entries(directory) or ((), ()))[1]
    if len(names) != len(files):
        return f"{store.address.joined(directory)} holds {len(files)} files, not {len(names)}"
    for file in files:
        row = table.row(file.name)
        if row is None or row.version != file.version:
            return f"{store.address.joined(file.name)} was added or written anew"
    return None


def _first_directories(table: FileTable) -> Iterator[str]:
    waiting, count = [""], 0
    while waiting and count < _LOOKED_AT:
        directory = waiting.pop(0)
        entries = table.entries(directory)
        if entries is None or len(entries[0]) + len(entries[1]) > _LARGE:
            continue
        count += 1
        yield directory
        waiting += (os.path.join(directory, name) for name in sorted(entries[0]))
