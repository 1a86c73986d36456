"""`FileTable`: the names, sizes and versions of all files of a dump, as columns; what an index holds.

    directories   every directory below the root, sorted, parents included; "" is the root
    bases         every last component of a name, each once
    begin         of each directory, its first row; rows of a directory lie side by side
    base, size, version, modified, source
                  of each file (row), sorted by `base` within its directory: its last component, its bytes,
                  64 bits that change when it is written anew, when that was (ns), and in which source it lies

A million files in 500,000 directories take 180 MB while they are listed, and 5 MB on the disk; the entries of
fsspec, a dict for each file, would take ten times as much.
"""

from __future__ import annotations

import bisect
import hashlib
import io
import json
import struct
import zipfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.forms import WrongField, check_header
from ...base.texts import parsed
from ...errors import FormatError
from .filesystem import StoredFile

FORMAT = "acc_pytest dump index"
VERSION = 3
_COLUMNS: Mapping[str, Any] = {
    "begin": np.int64,
    "base": np.int32,
    "size": np.int64,
    "version": np.uint64,
    "modified": np.int64,
    "source": np.int16,
}


@dataclass(frozen=True, slots=True)
class FileSource:
    """Source of some of the files: an address or an absolute path, and the dump's names of its directories.

    `renamed` has pairs (a directory of the dump, the directory of the source that it is); a file that lies in
    none of them has the same name on both sides.
    """

    root: str
    renamed: tuple[tuple[str, str], ...] = ()

    def name_in_source(self, name: str) -> str:
        """The name in the source of a file of the dump."""
        for directory, source_directory in self.renamed:
            if name.startswith(f"{directory}/"):
                return f"{source_directory}{name[len(directory) :]}".lstrip("/")
        return name


class FileRow(NamedTuple):
    """Row of a file in a table: its place there, size, version, time and source."""

    number: int
    size: int
    version: int
    modified: int
    source: FileSource


@dataclass(eq=False)
class FileTable:
    """See above. `columns` are those of `_COLUMNS`; `more` what others keep in the same file."""

    directories: list[str]
    bases: list[str]
    columns: dict[str, Column]
    sources: tuple[FileSource, ...]
    more: dict[str, Column] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["base"])

    @cached_property
    def _number_of(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.directories)}

    @cached_property
    def _subdirectories(self) -> dict[str, list[str]]:
        """The names of the sub-directories of each directory."""
        children: dict[str, list[str]] = {}
        for name in self.directories:
            if name:
                parent, _, base = name.rpartition("/")
                children.setdefault(parent, []).append(base)
        return children

    def entries(self, directory: str) -> tuple[list[str], list[str]] | None:
        """Names of the sub-directories and of the files in a directory; `None` where there is none such."""
        number = self._number_of.get(directory)
        if number is None:
            return None
        begin = self.columns["begin"]
        rows = self.columns["base"][int(begin[number]) : int(begin[number + 1])]
        return list(self._subdirectories.get(directory, ())), [self.bases[base] for base in rows.tolist()]

    def row(self, name: str) -> FileRow | None:
        """The row of a file; `None` where there is none of that name."""
        directory, _, base = name.rpartition("/")
        number = self._number_of.get(directory)
        if number is None:
            return None
        position = bisect.bisect_left(self.bases, base)
        first, end = (int(place) for place in self.columns["begin"][number : number + 2])
        row = first + int(np.searchsorted(self.columns["base"][first:end], position))
        exists = row < end and self.bases[self.columns["base"][row]] == base
        return self._row(row) if exists else None

    def _row(self, row: int) -> FileRow:
        size, version, modified = (int(self.columns[name][row]) for name in ("size", "version", "modified"))
        return FileRow(row, size, version, modified, self.sources[self.columns["source"][row]])

    def name(self, row: int) -> str:
        """The name of the file in a row."""
        number = int(np.searchsorted(self.columns["begin"], row, side="right")) - 1
        directory, base = self.directories[number], self.bases[self.columns["base"][row]]
        return f"{directory}/{base}" if directory else base

    def after(self, row: int, count: int) -> Iterable[tuple[str, FileRow]]:
        """The file in a row, and at most so many that follow it in its directory."""
        begin = self.columns["begin"]
        number = int(np.searchsorted(begin, row, side="right")) - 1
        directory = self.directories[number]
        for place in range(row, min(int(begin[number + 1]), row + 1 + count)):
            base = self.bases[self.columns["base"][place]]
            yield (f"{directory}/{base}" if directory else base), self._row(place)

    def files(self, parent: str = "") -> Iterator[StoredFile]:
        """All files below a directory, by their names below it."""
        begin, begun = self.columns["begin"], len(parent) + 1 if parent else 0
        for number, directory in enumerate(self.directories):
            if parent and directory != parent and not directory.startswith(f"{parent}/"):
                continue
            for row in range(int(begin[number]), int(begin[number + 1])):
                file_row = self._row(row)
                name = self.name(row)[begun:]
                yield StoredFile(name, file_row.size, file_row.version, file_row.modified)

    @cached_property
    def digest(self) -> str:
        """Changes when a file is added, removed or written anew."""
        hasher = hashlib.blake2b(digest_size=16)
        for column in (names_column(self.directories), names_column(self.bases)):
            hasher.update(column.tobytes())
        for name in ("begin", "base", "size", "version", "source"):
            hasher.update(np.ascontiguousarray(self.columns[name]).tobytes())
        return hasher.hexdigest()

    def packed(self) -> bytes:
        """The bytes of an index."""
        head = {
            "format": FORMAT,
            "version": VERSION,
            "directories": len(self.directories),
            "bases": len(self.bases),
            "sources": [{"root": source.root, "renamed": [*source.renamed]} for source in self.sources],
            "notes": self.notes,
        }
        names = {"directories": names_column(self.directories), "bases": names_column(self.bases)}
        columns = self.columns if len(self) else {}  # an array without elements takes 200 bytes, too
        return packed(head, {**names, **columns, **self.more})


class TableMaker:
    """Files as they are listed, in columns from the first one on."""

    def __init__(self) -> None:
        self._directories: dict[str, int] = {"": 0}
        self._bases: dict[str, int] = {}
        self._directory = array("i")
        self._values = {name: array(kind) for name, kind in _KINDS.items()}
        self.left_out = 0

    def add(self, file: StoredFile, source: int = 0, name: str = "") -> None:
        """Take a file along, as `name` where that is not its name in the source."""
        name = name or file.name
        segments = name.split("/")
        if not name or any(segment in ("", ".", "..") or "\0" in segment for segment in segments):
            self.left_out += 1
            return
        self._directory.append(self._number(name.rpartition("/")[0]))
        values = self._values
        values["base"].append(self._bases.setdefault(segments[-1], len(self._bases)))
        values["size"].append(file.size)
        values["version"].append(file.version)
        values["modified"].append(file.modified)
        values["source"].append(source)

    def add_directory(self, name: str) -> None:
        """Take a directory along, which may be empty."""
        self._number(name)

    def _number(self, directory: str) -> int:
        if directory not in self._directories:
            self._number(directory.rpartition("/")[0])
            self._directories[directory] = len(self._directories)
        return self._directories[directory]

    def table(self, sources: Iterable[FileSource]) -> FileTable:
        """The table of all files so far, sorted by directory and name."""
        directories, bases = sorted(self._directories), sorted(self._bases)
        place = np.empty(len(directories), np.int64)
        place[[self._directories[name] for name in directories]] = np.arange(len(directories))
        rank = np.empty(max(len(bases), 1), np.int64)
        rank[[self._bases[name] for name in bases]] = np.arange(len(bases))
        directory = place[np.frombuffer(self._directory, np.int32)] if self._directory else np.zeros(0, int)
        columns = {
            name: np.frombuffer(values, _COLUMNS[name]) if values else np.zeros(0, _COLUMNS[name])
            for name, values in self._values.items()
        }
        columns["base"] = rank[columns["base"]].astype(np.int32)
        order = np.lexsort((columns["base"], directory))
        columns = {name: column[order] for name, column in columns.items()}
        columns["begin"] = np.searchsorted(directory[order], np.arange(len(directories) + 1)).astype(np.int64)
        return FileTable(directories, bases, columns, tuple(sources))


_KINDS = {"base": "i", "size": "q", "version": "Q", "modified": "q", "source": "h"}
"""The columns of rows by the letters that `array` has for their types."""


def read_table(content: bytes, where: str) -> FileTable:
    """The table in the bytes of an index, which were read from `where`. Raises `FormatError`."""
    head, columns = unpacked(content, where, FORMAT, VERSION)
    try:
        directories = names_of(columns.pop("directories"), _count(head["directories"]))
        bases = names_of(columns.pop("bases"), _count(head["bases"]))
        empty = {name: np.zeros(0) for name in _KINDS} | {"begin": np.zeros(len(directories) + 1)}
        table_columns = {
            name: columns.pop(name, empty[name]).astype(kind, copy=False) for name, kind in _COLUMNS.items()
        }
        sources = tuple(
            FileSource(
                str(source["root"]),
                tuple(
                    (str(directory), str(source_directory))
                    for directory, source_directory in source["renamed"]
                ),
            )
            for source in head["sources"]
        )
        table = FileTable(directories, bases, table_columns, sources, columns, dict(head["notes"]))
        _check(table)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise FormatError(f"{where}: is damaged: {error!s:.200}; make it anew with acc index") from None
    return table


def _count(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("a count is no number")
    return value


def _check(table: FileTable) -> None:
    """Raise `ValueError` where a column points outside of another."""
    begin, rows = table.columns["begin"], len(table.columns["base"])
    lengths = {len(table.columns[name]) for name in _KINDS}
    if lengths != {rows} or begin.shape != (len(table.directories) + 1,):
        raise ValueError("its columns differ in length")
    if begin[0] != 0 or begin[-1] != rows or (np.diff(begin) < 0).any():
        raise ValueError("its directories overlap")
    for name, count in (("base", len(table.bases)), ("source", len(table.sources))):
        if rows and not 0 <= int(table.columns[name].min()) <= int(table.columns[name].max()) < count:
            raise ValueError(f"its column {name} points to nothing")
    if rows and int(table.columns["size"].min()) < 0:
        raise ValueError("a file has less than no bytes")


def doubles(table: FileTable) -> list[int]:
    """Rows with the name of the row before them."""
    begin, base = table.columns["begin"], table.columns["base"]
    directory = np.repeat(np.arange(len(table.directories)), np.diff(begin))
    repeats = (directory[1:] == directory[:-1]) & (base[1:] == base[:-1])
    return [int(row) + 1 for row in np.flatnonzero(repeats)]


def dropped(table: FileTable, rows: Sequence[int]) -> FileTable:
    """The table without some of its rows."""
    if not rows:
        return table
    mask = np.ones(len(table), bool)
    mask[[*rows]] = False
    columns = {name: column if name == "begin" else column[mask] for name, column in table.columns.items()}
    columns["begin"] = np.concatenate(([0], np.cumsum(mask)))[table.columns["begin"]].astype(np.int64)
    return FileTable(table.directories, table.bases, columns, table.sources)


# Columns of numbers and names in one file: a zip of numpy arrays, the head of which is JSON.
#
# Nothing in it is unpickled. What it says of lengths is checked before any memory is taken for it.


Column = npt.NDArray[Any]
_HEAD = "head"
LARGEST = 1 << 30
"""Bytes of an index, packed or not."""
# Errors that zipfile, zlib and numpy raise for damaged files.
_REFUSALS = (
    *(ValueError, LookupError, OSError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error),
)
_BETWEEN = "\0"
"""No name of a file holds it."""


def packed(head: Mapping[str, Any], columns: Mapping[str, Column]) -> bytes:
    """The bytes of a file of columns."""
    file = io.BytesIO()
    text = np.frombuffer(json.dumps(head, sort_keys=True).encode("ascii"), dtype=np.uint8)
    arrays: dict[str, Any] = {_HEAD: text, **columns}
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def unpacked(content: bytes, where: str, form: str, version: int) -> tuple[dict[str, Any], dict[str, Column]]:
    """The head and the columns in `content`, which was read from `where`.

    Raises `FormatError` for anything but a file of columns of this format and version.
    """
    if len(content) > LARGEST:
        raise FormatError(
            f"{where}: has {len(content)} bytes, so it is no {form}; make it anew with acc index"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                raise ValueError(f"it would take more than {LARGEST >> 30} GiB")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            columns = {name: archive[name] for name in archive.files}
        head = parsed(columns.pop(_HEAD).tobytes())
    except _REFUSALS as error:
        raise FormatError(f"{where}: is damaged: {error!s:.200}; make it anew with acc index") from None
    try:
        check_header(head if type(head) is dict else {}, form, version, "; make it anew with acc index")
    except WrongField as error:
        raise FormatError(f"{where}: {error}") from None
    return head, columns


def names_column(names: Sequence[str]) -> Column:
    """Names as one column of bytes."""
    return np.frombuffer(_BETWEEN.join(names).encode("utf-8", "surrogatepass"), dtype=np.uint8)


def names_of(column: Column, count: int) -> list[str]:
    """The names in a column of `names_column`. Raises `ValueError` where they are not `count`."""
    text = column.astype(np.uint8, copy=False).tobytes().decode("utf-8", "surrogatepass")
    names = text.split(_BETWEEN) if count else []
    if len(names) != count:
        raise ValueError(f"has {len(names)} names where {count} were written")
    return names
