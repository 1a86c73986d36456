"""Indexes of dumps on the disk, and which file of which index a path is.

    DUMP/acc_dump.index      a `FileTable` of the dump's files, with the headers of their tensors

An index on the disk replaces listing directories and opening files to see what they hold. Values and texts
are read from the files as ever. It is believed where no directory has changed since, and of each file as
long as its size and time are those that the index has.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ...errors import AccError
from ...tensors.address import INDEX, indexes
from ...tensors.whole_file import whole_file
from .blocks import StoredBlock, is_fetched
from .filesystem import StoredFile, version_number
from .mirror import Mirror, Placed, placed
from .table import LARGEST, Column, FileSource, FileTable, TableMaker, read_table

_PARTS = "parts"
_TIMES = "d_modified"


class IndexedFile(NamedTuple):
    """A file that an index has: its table and its row."""

    table: FileTable
    row: int
    is_mirrored: bool


def table_of_disk(root: str, paths: Iterable[str]) -> FileTable:
    """The table of the files at and below `paths`, paths below `root`. Raises `OSError`."""
    maker = TableMaker()
    relative = [os.path.relpath(path, root) for path in paths]
    relative = ["" if path == "." else path for path in relative]
    visited: set[str] = set()
    for path in relative:
        if os.path.isdir(os.path.join(root, path)):
            _walk(root, path, maker, visited)
        else:
            maker.add(stored_on_disk(root, path))
    table = maker.table([FileSource(root)])
    table.notes[_PARTS] = relative
    times = [os.stat(os.path.join(root, name)).st_mtime_ns for name in table.directories]
    table.more[_TIMES] = np.array(times, np.int64)
    return table


def _walk(root: str, directory: str, maker: TableMaker, visited: set[str]) -> None:
    """Take all files below a directory along; one that was met before, by a link, is not entered again."""
    waiting = [directory]
    while waiting:
        place = waiting.pop()
        real = os.path.realpath(os.path.join(root, place))
        if real in visited:
            continue
        visited.add(real)
        maker.add_directory(place)
        with os.scandir(os.path.join(root, place)) as entries:
            for entry in entries:
                name = f"{place}/{entry.name}" if place else entry.name
                if entry.is_dir():
                    waiting.append(name)
                elif name != INDEX:
                    maker.add(stored_on_disk(root, name))


def stored_on_disk(root: str, name: str) -> StoredFile:
    """The file of a name below a directory of the disk. Raises `OSError`."""
    path = os.path.join(root, name)
    try:
        status = os.stat(path)
    except OSError:  # a link to nowhere, which says what it is when it is read
        status = os.lstat(path)
    size, time = status.st_size, status.st_mtime_ns
    return StoredFile(name, size, version_number(str(time), size), time)


def write_index(root: str, table: FileTable) -> str:
    """Write the index of a dump on the disk; returns its path. Raises `AccError`."""
    path = f"{root}/{INDEX}"
    with whole_file(path) as file:
        file.write(table.packed())
    return path


def use_index(root: str) -> tuple[FileTable | None, str]:
    """Use the index in the directory `root`: its table, or none and a sentence where it cannot be used."""
    try:
        with open(f"{root}/{INDEX}", "rb") as file:
            table = read_table(file.read(LARGEST + 1), f"{root}/{INDEX}")
    except (OSError, AccError) as error:
        return None, f"the index was not used: {error}"
    reason = _stale(root, table)
    if reason:
        return None, f"{root}/{INDEX}: is stale and was not used: {reason}; acc index makes a new one"
    indexes[root] = table
    return table, ""


def _stale(root: str, table: FileTable) -> str:
    """The reason why an index is out of date for its directories; empty where it is not."""
    times, paths = table.more.get(_TIMES), table.notes.get(_PARTS)
    if times is None or len(times) != len(table.directories) or not isinstance(paths, list):
        return "it is not one of a dump on the disk"
    for name, time in zip(table.directories, times.tolist()):
        try:
            changed = bool(name) and os.stat(f"{root}/{name}").st_mtime_ns != time
        except OSError:
            changed = True
        if changed and _is_covered(name, paths):
            return f"the directory {name} has changed since"
    if "" in paths:
        entries, names = table.entries("") or ([], []), {*os.listdir(root)} - {INDEX}
        if names != {*entries[0], *entries[1]}:
            return "something was added to its directory, or removed"
    return ""


def _is_covered(name: str, paths: list[str]) -> bool:
    return any(not path or name == path or name.startswith(f"{path}/") for path in paths)


def entries_indexed(path: str) -> tuple[list[str], list[str]] | None:
    """Names of sub-directories and files of a directory of an index in use; `None` for any other path."""
    for root, table in indexes.items():
        if path.startswith(f"{root}/"):
            name = path[len(root) + 1 :].rstrip("/")
            return table.entries(name) if _is_covered(name, table.notes[_PARTS]) else None
    return None


def indexed_at(path: str, version: tuple[int, ...]) -> IndexedFile | None:
    """The file that a path is, in a mirror or in an index in use; on the disk only if it is of this `version`
    (`header.version_of`)."""
    for root, table in indexes.items():
        if path.startswith(f"{root}/"):
            row = table.row(path[len(root) + 1 :])
            is_current = row is not None and version[:2] == (row.size, row.modified)
            return IndexedFile(table, row.number, False) if row is not None and is_current else None
    file = placed(path)
    return IndexedFile(file.mirror.table, file.row.number, True) if file is not None else None


# The texts of a dump (topology, manifests) in its index, so that it opens with one request.
#
# t_row, t_begin, t_bytes      the files, by their rows; where the bytes of each begin; all bytes


_SUFFIXES = (".json", ".csv", ".txt")
_LARGEST = 64 << 20
"""Bytes of all texts that an index holds; what is beyond is read when it is needed."""


def texts_of_mirror(mirror: Mirror) -> dict[str, Column]:
    """The texts that were read since the mirror was made, as columns."""
    return _columns(_fetched(mirror))


def texts_of_disk(table: FileTable, root: str, read: Iterable[str]) -> dict[str, Column]:
    """The texts of a dump on the disk, at `root`, that are among the files that were `read`, as columns."""
    texts = (path for path in sorted(read) if path.startswith(f"{root}/") and path.endswith(_SUFFIXES))
    files = ((name, table.row(name)) for name in (path[len(root) + 1 :] for path in texts))
    return _columns(_on_disk(root, ((row.number, name, row.size) for name, row in files if row is not None)))


def _fetched(mirror: Mirror) -> Iterator[tuple[int, bytes]]:
    budget = _LARGEST
    for row in range(len(mirror.table)):
        file = mirror.placed(row)
        if not file.name.endswith(_SUFFIXES) or file.row.size > budget or not is_fetched(file):
            continue
        budget -= file.row.size
        block = StoredBlock(file)
        try:
            if block.is_complete:
                yield row, os.pread(block.descriptor, block.size, 0)
        finally:
            block.close()


def _on_disk(root: str, files: Iterable[tuple[int, str, int]]) -> Iterator[tuple[int, bytes]]:
    budget = _LARGEST
    for row, name, size in files:
        with contextlib.suppress(OSError):
            if size <= budget:
                with open(f"{root}/{name}", "rb") as file:
                    yield row, file.read()
                budget -= size


def _columns(texts: Iterable[tuple[int, bytes]]) -> dict[str, Column]:
    rows, contents = [], []
    for row, content in texts:
        rows.append(row)
        contents.append(content)
    return {
        "t_row": np.array(rows, np.int64),
        "t_begin": np.cumsum([0, *map(len, contents)], dtype=np.int64),
        "t_bytes": np.frombuffer(b"".join(contents), np.uint8),
    }


def take_texts(mirror: Mirror) -> None:
    """Put the texts of an index into blocks, where readers find them. Raises `AccError`."""
    columns = mirror.table.more
    rows, begin, content = (columns.pop(name, None) for name in ("t_row", "t_begin", "t_bytes"))
    if rows is None or begin is None or content is None or len(begin) != len(rows) + 1:
        return
    text = content.astype(np.uint8, copy=False).tobytes()
    for number, row in enumerate(rows.tolist()):
        first, end = int(begin[number]), int(begin[number + 1])
        file: Placed | None = mirror.placed(row) if 0 <= row < len(mirror.table) else None
        if file is None or file.row.size != end - first or is_fetched(file):
            continue
        block = StoredBlock(file)
        try:
            block.write(0, text[first:end])
        finally:
            block.close()
