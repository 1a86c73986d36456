"""The names that a shared library exports or needs, read from its bytes.

Source: System V ABI, chapters 4 and 5 (object files); what `nm -D` prints comes from the same table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from ...errors import FormatError

_DYNSYM = 11
_MOST_BYTES = 2**31


def dynamic_symbols(path: Path) -> Iterator[bytes]:
    """Names in the dynamic symbol table of a library of 64 bits, little-endian (x86-64, aarch64).

    Raises `FormatError` for anything else and for tables that point outside of the file.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise FormatError(f"{path}: too large to be a shared library")
        content = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from error
    if content[:6] != b"\x7fELF\x02\x01":
        raise FormatError(f"{path}: not a 64-bit shared library")
    try:
        sections = _sections(content)
        for kind, link, place, length in sections:
            if kind == _DYNSYM:
                _, _, strings, strings_length = sections[link]
                yield from _names(_held(content, place, length), _held(content, strings, strings_length))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise FormatError(f"{path}: its symbol table is broken; was the file truncated?") from error


def _sections(content: bytes) -> list[tuple[int, int, int, int]]:
    """Kind, linked section, place and length of every section."""
    (start,) = struct.unpack_from("<Q", content, 0x28)
    size, count = struct.unpack_from("<HH", content, 0x3A)
    sections = []
    for number in range(count):
        _, kind, _, _, place, length, link = struct.unpack_from("<IIQQQQI", content, start + number * size)
        sections.append((kind, link, place, length))
    return sections


def _held(content: bytes, place: int, length: int) -> bytes:
    if place + length > len(content):
        raise ValueError("a section beyond the end")
    return content[place : place + length]


def _names(symbols: bytes, strings: bytes) -> Iterator[bytes]:
    for name, *_ in struct.iter_unpack("<IBBHQQ", symbols):
        if name:
            yield strings[name : strings.index(b"\0", name)]
