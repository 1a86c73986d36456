"""The files that a kept dump's bytes go to: tensors in safetensors files, everything else in one of pieces.

Equal bytes are stored once. One block is in memory at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import BinaryIO

from ...errors import FormatError
from ...tensors.kept_index import PIECES, store_name
from ...tensors.whole_file import FILE_MODE
from .regions import Region

FIRST_HEADER = 1 << 12
LARGEST_HEADER = 1 << 20
"""Bytes for the header of the first safetensors file and of the last; each file has twice those of the file
before. A header is written last, over blanks, which the format allows at its end."""
_LARGEST = 2 << 30
"""Bytes from which on the next tensor goes to another file."""
_BLOCK = 1 << 20
_LENGTH = 8


def new_store(home: str, number: int) -> BinaryIO:
    """An empty file for the bytes of a number in the index."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.fdopen(os.open(f"{home}/{store_name(number)}", flags, FILE_MODE), "w+b")


class Pieces:
    """The short pieces, each once."""

    def __init__(self, home: str) -> None:
        self._file = new_store(home, PIECES)
        self._stretches: dict[bytes, int] = {}
        self.size = 0

    def add(self, data: bytes) -> list[int]:
        """The stretch where these bytes lie."""
        key = hashlib.blake2b(data, digest_size=32).digest()
        if key not in self._stretches:
            self._stretches[key] = self.size
            self._file.write(data)
            self.size += len(data)
        return [PIECES, self._stretches[key], len(data)]

    def close(self) -> None:
        """All of it is on the disk, or `OSError` is raised."""
        self._file.close()


class Tensors:
    """The tensors, each once; a file of them after the other."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._stretches: dict[bytes, list[int]] = {}
        self._file: BinaryIO | None = None
        self._number = 0
        self._header = 0
        self._end = 0
        self._entries: dict[str, object] = {}
        self._described = 0
        self.size = 0

    def add(self, source: BinaryIO, path: str, name: str, region: Region) -> list[int]:
        """The stretch where the bytes of a region lie; `name` is what the tensor is called if it is new.

        Raises `FormatError` for a file that ends before its region does.
        """
        name = _readable(name)
        entry = {"dtype": region.dtype, "shape": list(region.shape), "data_offsets": [0, 0]}
        described = len(json.dumps({name: entry})) + 2 * len(str(_LARGEST + region.nbytes))
        file = self._room(described)
        start = self._end
        digest = self._copied(source, path, region, file)
        stretch = self._stretches.get(digest)
        if stretch is not None:
            file.seek(start)
            file.truncate()
            self._end = start
            return stretch
        while name in self._entries:
            name += "#"
        entry["data_offsets"] = [start - self._header, self._end - self._header]
        self._entries[name] = entry
        self._described += described
        self.size += region.nbytes
        self._stretches[digest] = [self._number, start, region.nbytes]
        return self._stretches[digest]

    def _room(self, described: int) -> BinaryIO:
        """The file for the next tensor, whose description takes so many characters."""
        full = self._described + described > self._header - _LENGTH - 2 or self._end > _LARGEST
        if self._file is None or full:
            self.close()
            self._number += 1
            self._header = max(min(FIRST_HEADER << (self._number - 1), LARGEST_HEADER), 2 * described)
            self._file = new_store(self._home, self._number)
            self._file.seek(self._header)
            self._end, self._described = self._header, 0
        return self._file

    def _copied(self, source: BinaryIO, path: str, region: Region, file: BinaryIO) -> bytes:
        digest = hashlib.blake2b(digest_size=32)
        source.seek(region.offset)
        left = region.nbytes
        while left:
            block = source.read(min(left, _BLOCK))
            if not block:
                raise FormatError(
                    f"{path}: became shorter while it was read; is the dump still being written?"
                )
            digest.update(block)
            file.write(block)
            left -= len(block)
        self._end += region.nbytes
        return digest.digest()

    def close(self) -> None:
        """The header of the last file is written; all of it is on the disk, or `OSError` is raised."""
        file, self._file = self._file, None
        if file is None:
            return
        with file:
            text = json.dumps(self._entries, separators=(",", ":")).encode("ascii")
            header = text.ljust(self._header - _LENGTH)
            file.seek(0)
            file.write(len(header).to_bytes(_LENGTH, "little") + header)
        self._entries = {}


def _readable(name: str) -> str:
    """A name that is text in every language: bytes that are none become escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
