"""The zip archive that `torch.save` writes: its entries, checked against the file, and where their bytes are.

`torch.save` stores entries uncompressed, so none can be larger than the file.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from typing import BinaryIO, NamedTuple

from ..errors import FormatError

ZIP = b"PK\x03\x04"
LARGEST_PICKLE = 16 << 20
_MOST_ENTRIES = 10_000
_LOCAL_HEADER = struct.Struct("<26xHH")
"""Lengths of the name and the extra field of a zip entry, which stand before its bytes."""
_TAIL = struct.Struct("<4sHHHHLLH")
_END_64 = struct.Struct("<4sQHHLLQQQQ")
_LOCATOR = struct.Struct("<4sLQL")
_LISTED = struct.Struct("<4sHHHHHHLLLHHHHHLL")
"""Records of a zip archive (APPNOTE.TXT, 4.3.12 to 4.3.16), all signatures first."""
_ENCRYPTED = 1 << 0
_ELSEWHERE = 0xFFFFFFFF
"""A number that stands in 64 bits somewhere else."""


class ArchiveEntry(NamedTuple):
    """One entry of an archive: its local header is at byte `offset`, and it holds `nbytes` bytes."""

    name: str
    offset: int
    nbytes: int
    crc32: int
    compressed: bool


def entries_in(path: str, file: BinaryIO, size: int) -> list[ArchiveEntry]:
    """The entries of an archive of `size` bytes. Raises `FormatError` for one that is cut, or lies."""
    try:
        entries = _listed(file, size) or _found_by_zipfile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise FormatError(
            f"{path}: is a damaged torch file (zip directory: {error}); was it truncated?"
        ) from error
    _check(path, size, entries)
    return entries


def _found_by_zipfile(file: BinaryIO) -> list[ArchiveEntry]:
    with zipfile.ZipFile(file) as archive:
        return [
            ArchiveEntry(
                e.filename, e.header_offset, e.file_size, e.CRC, e.compress_type != zipfile.ZIP_STORED
            )
            for e in archive.infolist()
        ]


def _listed(file: BinaryIO, size: int) -> list[ArchiveEntry] | None:
    """The entries of an archive as `torch.save` writes it; `None` for any other, which `zipfile` reads.

    A dump is thousands of small files, and `zipfile` takes longer for each than all the rest.
    """
    directory = _directory(file, size)
    if directory is None:
        return None
    count, listed = directory
    entries, place = [], 0
    for _ in range(count):
        if place + _LISTED.size > len(listed):
            return None
        mark, _, _, flags, method, _, _, crc32, packed_size, nbytes, name, extra, comment, _, _, _, offset = (
            _LISTED.unpack_from(listed, place)
        )
        first = place + _LISTED.size
        place = first + name + extra + comment
        called = listed[first : first + name]
        usual = mark == b"PK\x01\x02" and packed_size == nbytes and _ELSEWHERE not in (nbytes, offset)
        if not usual or flags & _ENCRYPTED or not called.isascii() or b"\0" in called:
            return None
        entries.append(
            ArchiveEntry(called.decode("ascii"), offset, nbytes, crc32, method != zipfile.ZIP_STORED)
        )
    return entries if place == len(listed) else None


def _directory(file: BinaryIO, size: int) -> tuple[int, bytes] | None:
    """The count of entries in an archive's directory, and its bytes; `None` where anything is unusual."""
    tail = _bytes_at(file, max(0, size - _TAIL.size - _LOCATOR.size - _END_64.size), 1 << 10)
    if len(tail) < _TAIL.size:
        return None
    mark, disk, first_disk, count_on_disk, count, nbytes, offset, comment = _TAIL.unpack(tail[-_TAIL.size :])
    end = size - _TAIL.size
    if mark != b"PK\x05\x06" or disk or first_disk or count_on_disk != count or comment:
        return None
    if tail[-_TAIL.size - _LOCATOR.size :].startswith(b"PK\x06\x07"):
        wide = _END_64.unpack_from(tail) if len(tail) == _TAIL.size + _LOCATOR.size + _END_64.size else ()
        if wide[:1] != (b"PK\x06\x06",) or wide[4:] != (0, 0, count, count, nbytes, offset):
            return None
        end -= _LOCATOR.size + _END_64.size
    if offset + nbytes != end or count > _MOST_ENTRIES:
        return None
    return count, _bytes_at(file, offset, nbytes)


def _check(path: str, size: int, entries: list[ArchiveEntry]) -> None:
    """torch would inflate a compressed pickle to any size."""
    if len(entries) > _MOST_ENTRIES:
        raise FormatError(f"{path}: has {len(entries)} entries, so it is not a file of one tensor")
    for entry in entries:
        limit = LARGEST_PICKLE if entry.name.endswith(".pkl") else size
        if entry.compressed or entry.nbytes > min(limit, size):
            raise FormatError(
                f"{path}: entry {entry.name[:80]!r} is compressed or larger than the file can hold; "
                "torch.save writes no such file"
            )


def start_of(file: BinaryIO, entry: ArchiveEntry) -> int:
    """The offset of the bytes of an entry; behind the end of every file for one that is not there."""
    if not 0 <= entry.offset < 1 << 62:  # what is in front of an archive moves it
        return sys.maxsize
    head = _bytes_at(file, entry.offset, _LOCAL_HEADER.size)
    if len(head) != _LOCAL_HEADER.size:
        return sys.maxsize
    name, extra = _LOCAL_HEADER.unpack(head)
    return int(entry.offset + len(head) + name + extra)


def bytes_of(file: BinaryIO, entry: ArchiveEntry) -> bytes:
    """The bytes of an entry, as far as they are there."""
    start = start_of(file, entry)
    return b"" if start == sys.maxsize else _bytes_at(file, start, entry.nbytes)


def is_foreign(file: BinaryIO, by_name: dict[str, ArchiveEntry]) -> bool:
    """Whether the archive says that its bytes are in another order than those of this machine."""
    order = by_name.get("byteorder")
    return order is not None and bytes_of(file, order) != sys.byteorder.encode()


def _bytes_at(file: BinaryIO, offset: int, count: int) -> bytes:
    file.seek(offset)
    return file.read(count)
