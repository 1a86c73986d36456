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
            raise FormatError(f"{path}: larger than any library")
        content = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from error
    if content[:6] != b"\x7fELF\x02\x01":
        raise FormatError(f"{path}: no shared library of 64 bits")
    try:
        sections = _sections(content)
        for kind, link, symbols in sections:
            if kind == _DYNSYM:
                yield from _names(symbols, sections[link][2])
    except (struct.error, IndexError, ValueError) as error:
        raise FormatError(f"{path}: its symbol table is broken; is the file cut?") from error


def _sections(content: bytes) -> list[tuple[int, int, bytes]]:
    """Kind, linked section and bytes of every section."""
    (start,) = struct.unpack_from("<Q", content, 0x28)
    size, count = struct.unpack_from("<HH", content, 0x3A)
    found = []
    for number in range(count):
        _, kind, _, _, place, length, link = struct.unpack_from("<IIQQQQI", content, start + number * size)
        held = content[place : place + length] if kind != 8 else b""  # 8: no bytes in the file
        if kind != 8 and len(held) != length:
            raise ValueError("a section beyond the end")
        found.append((kind, link, held))
    return found


def _names(symbols: bytes, strings: bytes) -> Iterator[bytes]:
    for name, *_ in struct.iter_unpack("<IBBHQQ", symbols):
        if name:
            yield strings[name : strings.index(b"\0", name)]
