"""`.npz` files: a zip archive of `.npy` files, as `numpy.savez` writes it. Nothing is ever unpickled.

An array that is stored as it is lies in the file and is mapped; a packed one is unpacked when it is opened.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass, replace
from typing import BinaryIO

from ..base.imports import torch
from ..errors import FormatError
from .file_bytes import opened
from .header import Location, TensorHeader, member_of, until_changed
from .numpy_file import HEADER_ROOM, as_read, described
from .torch_archive import ArchiveEntry, start_of

_SUFFIX = ".npy"
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, EOFError)


@dataclass(frozen=True, slots=True)
class NpzEntry:
    header: TensorHeader
    name: str
    fortran: bool
    swapped: bool


class NpzFile:
    """The format object of `.npz` files; `TensorRef.member` is the name of the array."""

    name = "npz"

    def matches(self, head: bytes) -> bool:
        """Files of `torch.save` begin like these, so the suffix has to say it."""
        return False

    def header(self, place: Location) -> TensorHeader:
        """Dtype, shape and, of an array that is not packed, its place. Raises `FormatError`."""
        return member_of(place, _entries(place.path), "array").header

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """The array. Raises `FormatError` or `CannotDecode`."""
        entry = member_of(place, _entries(place.path), "array")
        if header.offset:
            return as_read(place.path, header, entry.fortran, entry.swapped)
        try:
            with opened(place.path) as (file, _), zipfile.ZipFile(file) as archive:
                data = archive.read(entry.name)[-header.nbytes :] if header.nbytes else b""
        except _DAMAGE as error:
            raise FormatError(f"{place}: its packed bytes are damaged ({error!s:.200})") from error
        return as_read(place.path, header, entry.fortran, entry.swapped, data)


FORMAT = NpzFile()


def names(path: str) -> tuple[str, ...]:
    """The names of the arrays, in the order in which they were saved. Raises `FormatError`."""
    return tuple(_entries(path))


@until_changed(maxsize=16)
def _entries(path: str) -> dict[str, NpzEntry]:
    try:
        with opened(path) as (file, size), zipfile.ZipFile(file) as archive:
            listed = [info for info in archive.infolist() if info.filename.endswith(_SUFFIX)]
            entries = [_entry(path, file, size, archive, info) for info in listed]
    except _DAMAGE as error:
        raise FormatError(f"{path}: is a damaged .npz file ({error!s:.200}); was it truncated?") from error
    return {entry.name.removesuffix(_SUFFIX): entry for entry in entries}


def _entry(path: str, file: BinaryIO, size: int, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NpzEntry:
    with archive.open(info) as stream:
        head = stream.read(HEADER_ROOM)
    header, *order = described(f"{path}:{info.filename.removesuffix(_SUFFIX)}", head, info.file_size)
    packed = info.compress_type != zipfile.ZIP_STORED
    start = start_of(file, ArchiveEntry(info.filename, info.header_offset, info.file_size, info.CRC, packed))
    if not packed and start + info.file_size > size:
        raise ValueError(f"{info.filename} lies outside of the file")
    place = 0 if packed else start + header.offset
    return NpzEntry(replace(header, offset=place, plain=header.plain and not packed), info.filename, *order)
