"""The zip archive that `torch.save` writes: its entries, checked against the file, and where their bytes are.

`torch.save` stores entries uncompressed, so none can be larger than the file.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from typing import BinaryIO

from ..errors import FormatError

ZIP = b"PK\x03\x04"
LARGEST_PICKLE = 16 << 20
_MOST_ENTRIES = 10_000
_LOCAL_HEADER = struct.Struct("<26xHH")
"""Of a zip entry: the lengths of its name and of its extra field, which stand before its bytes."""


def entries_in(path: str, file: BinaryIO, size: int) -> list[zipfile.ZipInfo]:
    """The entries of an archive of `size` bytes. Raises `FormatError` for one that is cut, or lies."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise FormatError(
            f"{path}: is a damaged torch file (zip directory: {error}); was it truncated?"
        ) from error
    _check(path, size, entries)
    return entries


def _check(path: str, size: int, entries: list[zipfile.ZipInfo]) -> None:
    """torch would inflate a compressed pickle to any size."""
    if len(entries) > _MOST_ENTRIES:
        raise FormatError(f"{path}: has {len(entries)} entries, so it is not a file of one tensor")
    for entry in entries:
        limit = LARGEST_PICKLE if entry.filename.endswith(".pkl") else size
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > min(limit, size):
            raise FormatError(
                f"{path}: entry {entry.filename[:80]!r} is compressed or larger than the file can hold; "
                "torch.save writes no such file"
            )


def start_of(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an entry begin; behind the end of every file for one that is not there."""
    if not 0 <= entry.header_offset < 1 << 62:  # what is in front of an archive moves it
        return sys.maxsize
    head = _bytes_at(file, entry.header_offset, _LOCAL_HEADER.size)
    if len(head) != _LOCAL_HEADER.size:
        return sys.maxsize
    name, extra = _LOCAL_HEADER.unpack(head)
    return int(entry.header_offset + len(head) + name + extra)


def bytes_of(file: BinaryIO, entry: zipfile.ZipInfo) -> bytes:
    """The bytes of an entry, as far as they are there."""
    start = start_of(file, entry)
    return b"" if start == sys.maxsize else _bytes_at(file, start, entry.file_size)


def is_foreign(file: BinaryIO, by_name: dict[str, zipfile.ZipInfo]) -> bool:
    """Whether the archive says that its bytes are in another order than those of this machine."""
    order = by_name.get("byteorder")
    return order is not None and bytes_of(file, order) != sys.byteorder.encode()


def _bytes_at(file: BinaryIO, offset: int, count: int) -> bytes:
    file.seek(offset)
    return file.read(count)
