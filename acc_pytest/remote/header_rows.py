"""Headers of tensors as columns of an index: what a file says of its tensors, without opening it.

    h_skip, h_member               the file (how many rows of the table it comes after the one before) and
                                   the name inside of it, sorted
    h_dtype, h_payload, h_layout, h_alias   numbers of texts
    h_offset, h_nbytes, h_counted, h_plain  as in `TensorHeader`
    h_dimensions, h_shape          how many dimensions each has, and all shapes one after the other
    h_members, h_texts, h_counts   the names and the texts, and how many they are
    h_check                        a check sum of all these and of the listing of the files that they are of

Headers that hold statistics or digests are not kept: these are in texts, which are read anyway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ..tensors.address import INDEX
from ..tensors.dtypes import by_name
from ..tensors.header import Location, TensorHeader
from .stores.indexes import indexed_at
from .stores.mirror import mirror_at, save
from .stores.table import Column, FileTable, names_column, names_of

_MOST = 2_000_000
"""Headers that a process remembers of one mirror, to be kept with it."""
_SKIP, _CHECK = "h_skip", "h_check"


class HeaderRow(NamedTuple):
    """A header, of a member of the file in a row."""

    row: int
    member: str
    header: TensorHeader


class HeaderRows:
    """The columns of one table, read. `listing` is the digest of the table.

    Raises `ValueError` for columns that were not made for these files.
    """

    def __init__(self, columns: Mapping[str, Column], listing: str) -> None:
        if columns[_CHECK].tobytes() != check_of(columns, listing).tobytes():
            raise ValueError("its headers are not of these files")
        counts = columns["h_counts"]
        self._members = names_of(columns["h_members"], int(counts[0]))
        self._texts = names_of(columns["h_texts"], int(counts[1]))
        self._columns = {name: columns[name] for name in (*_NUMBERS, "h_shape")}
        self._rows = np.cumsum(columns[_SKIP], dtype=np.int64)
        self._begin = np.cumsum([0, *columns["h_dimensions"].tolist()], dtype=np.int64)
        self._check()

    def _check(self) -> None:
        """Raise `ValueError` where a column points outside of another, or says what no header says."""
        columns, rows, begin = self._columns, self._rows, self._begin
        if {columns[name].shape for name in _NUMBERS} != {rows.shape} or len(begin) != len(rows) + 1:
            raise ValueError("its columns of headers differ in length")
        if (np.diff(rows) < 0).any() or (np.diff(begin) < 0).any() or (begin < 0).any():
            raise ValueError("its headers are in no order")
        limits = {name: len(self._texts) for name in _TEXTS}
        limits |= {
            "h_member": len(self._members),
            "h_offset": 1 << 62,
            "h_nbytes": 1 << 62,
            "h_shape": 1 << 62,
        }
        for name, limit in limits.items():
            if ((columns[name] < 0) | (columns[name] >= limit)).any():
                raise ValueError(f"its column {name} points to nothing")
        payloads = {self._texts[number] for number in np.unique(columns["h_payload"]).tolist()}
        if begin[-1] != len(columns["h_shape"]) or not payloads <= _PAYLOADS:
            raise ValueError("its headers are of no known kind")

    def __iter__(self) -> Iterator[HeaderRow]:
        for number, row in enumerate(self._rows.tolist()):
            yield HeaderRow(row, self._members[self._columns["h_member"][number]], self._header(number))

    def find(self, row: int, member: str) -> TensorHeader | None:
        """The header of a member of the file in a row; `None` where it is not known."""
        rows = self._rows
        first = int(np.searchsorted(rows, row))
        for number in range(first, len(rows)):
            if rows[number] != row:
                return None
            if self._members[self._columns["h_member"][number]] == member:
                return self._header(number)
        return None

    def _header(self, number: int) -> TensorHeader:
        columns = self._columns
        begin, end = (int(place) for place in self._begin[number : number + 2])
        return TensorHeader(
            by_name(self._texts[columns["h_dtype"][number]]),
            tuple(columns["h_shape"][begin:end].tolist()),
            payload=self._texts[columns["h_payload"][number]],
            offset=int(columns["h_offset"][number]),
            nbytes=int(columns["h_nbytes"][number]),
            layout=self._texts[columns["h_layout"][number]],
            alias=self._texts[columns["h_alias"][number]],
            counted=bool(columns["h_counted"][number]),
            plain=bool(columns["h_plain"][number]),
        )


_TEXTS = ("h_dtype", "h_payload", "h_layout", "h_alias")
_PAYLOADS = {"data", "description", "alias"}
_NUMBERS = (
    "h_member", "h_dtype", "h_payload", "h_layout", "h_alias", "h_offset", "h_nbytes", "h_counted",
    "h_plain",
)  # fmt: skip


def check_of(columns: Mapping[str, Column], listing: str) -> Column:
    """The check sum of columns of headers, of the files whose table has the digest `listing`."""
    digest = hashlib.blake2b(listing.encode(), digest_size=16)
    for name in sorted(columns):
        if name.startswith("h_") and name != _CHECK:
            digest.update(f"{name} {columns[name].dtype}".encode() + columns[name].tobytes())
    return np.frombuffer(digest.digest(), np.uint8)


def columns_of(rows: Iterable[HeaderRow], listing: str) -> dict[str, Column]:
    """The columns of headers of the files whose table has the digest `listing`; those that cannot be kept are
    left out."""
    entries = sorted(
        (
            entry
            for entry in rows
            if entry.header.statistics is None and not entry.header.digest
            if by_name(entry.header.dtype.name) == entry.header.dtype and entry.header.offset < 1 << 62
        ),
        key=lambda entry: (entry.row, entry.member),
    )
    members: dict[str, int] = {}
    texts: dict[str, int] = {}

    def numbers(name: str) -> list[int]:
        return [texts.setdefault(str(getattr(entry.header, name)), len(texts)) for entry in entries]

    columns: dict[str, Column] = {
        _SKIP: np.diff(np.array([0, *(entry.row for entry in entries)], np.int64)),
        "h_member": np.array([members.setdefault(entry.member, len(members)) for entry in entries], np.int32),
        "h_dtype": np.array(
            [texts.setdefault(entry.header.dtype.name, len(texts)) for entry in entries], np.int32
        ),
        "h_offset": np.array([entry.header.offset for entry in entries], np.int64),
        "h_nbytes": np.array([entry.header.nbytes for entry in entries], np.int64),
        "h_counted": np.array([entry.header.counted for entry in entries], np.bool_),
        "h_plain": np.array([entry.header.plain for entry in entries], np.bool_),
        "h_dimensions": np.array([len(entry.header.shape) for entry in entries], np.int8),
        "h_shape": np.array([size for entry in entries for size in entry.header.shape], np.int64),
    }
    columns |= {f"h_{name}": np.array(numbers(name), np.int32) for name in ("payload", "layout", "alias")}
    columns["h_members"], columns["h_texts"] = names_column([*members]), names_column([*texts])
    columns["h_counts"] = np.array([len(members), len(texts)], np.int64)
    columns[_CHECK] = check_of(columns, listing)
    return columns


_read: dict[int, tuple[FileTable, HeaderRows | None]] = {}
"""By the identity of a table, which is kept alive beside it."""
_remembered: dict[int, dict[tuple[int, str], TensorHeader]] = {}
"""Headers of files of mirrors that were read since, by the identity of their table."""


def known_header(place: Location, version: tuple[int, ...]) -> TensorHeader | None:
    """The header that an index has of a tensor, where its file is the one that was indexed; else `None`."""
    file = indexed_at(place.path, version)
    if file is None:
        return None
    rows = _rows_of(file.table)
    return rows.find(file.row, place.member) if rows is not None else None


def remember(place: Location, header: TensorHeader) -> None:
    """Keep what was read of a file of a mirror, until `keep_remembered`."""
    file = indexed_at(place.path, ())
    if file is None or not file.is_mirrored:
        return
    headers = _remembered.setdefault(id(file.table), {})
    if len(headers) < _MOST:
        headers[file.row, place.member] = header


def keep_headers(paths: Iterable[str]) -> None:
    """Write the headers that were read of mirrors into their indexes, for the next run. Raises `AccError`."""
    for path in paths:
        mirror = mirror_at(path)
        if mirror is not None and id(mirror.table) in _remembered:
            # Put headers into the columns of their table.
            new = _remembered.pop(id(mirror.table))
            headers = {(entry.row, entry.member): entry.header for entry in headers_of(mirror.table)}
            headers |= new
            rows = (HeaderRow(row, member, header) for (row, member), header in headers.items())
            mirror.table.more |= columns_of(rows, mirror.table.digest)
            _read.pop(id(mirror.table), None)
            save(mirror)


def is_of_index(place: Location, version: tuple[int, ...]) -> bool:
    """Whether a header is known from the index of a dump on the disk, where the file is at hand."""
    file = indexed_at(place.path, version)
    return file is not None and not file.is_mirrored


def headers_refused(table: FileTable, where: str) -> str:
    """The reason why the headers in a table are not used; empty where they are, or where it has none."""
    if _SKIP not in table.more or _rows_of(table) is not None:
        return ""
    why = "they are not those that were written for these files"
    return f"{where}/{INDEX}: its headers were not used: {why}; acc index makes a new one"


def headers_of(table: FileTable) -> Iterable[HeaderRow]:
    """The headers that a table has."""
    return _rows_of(table) or ()


def _rows_of(table: FileTable) -> HeaderRows | None:
    if id(table) not in _read:
        try:
            rows = HeaderRows(table.more, table.digest) if _SKIP in table.more else None
        except (KeyError, ValueError, IndexError, TypeError):
            rows = None  # a damaged column says nothing, and the files say it all
        _read[id(table)] = table, rows
    return _read[id(table)][1]
