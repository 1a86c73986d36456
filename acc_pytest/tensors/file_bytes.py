"""Bytes of a file, wherever it lies: the one place that opens tensor files.

Every reader checks declared sizes here, against the file, before any memory is taken.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, cast

from ..errors import FormatError
from .header import version_of
from .kept_file import KeptFile, whereabouts
from .kept_index import stretches
from .stores.place import on_disk, placed_at
from .stores.store_file import StoreFile

# Below this size one read is cheaper than a mapping (two system calls and page faults), and a tensor
# that was read holds no file descriptor open: a mapping keeps one for as long as the tensor lives.
READ_BELOW = 64 * 1024
_MAX_DIMENSIONS = 64
_LARGEST = 2**63 - 1


@contextlib.contextmanager
def opened(path: str, *, values: bool = False) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file for unbuffered reading; gives it with its size in bytes.

    Raises `FormatError` for what cannot be opened and for pipes, devices and directories, on which
    a read would block or never end. A small file is read at once and kept until others were: its header and
    its values are asked for one after the other. A file of a kept dump is read from where its bytes lie; what
    is read of one in a store is fetched first, with the heads of its neighbours unless `values` are read.
    """
    byte_ranges = stretches(path)
    if byte_ranges is not None:
        with KeptFile(path, byte_ranges) as stored:
            yield cast(BinaryIO, stored), stored.size
        return
    placed = placed_at(path)
    if placed is not None:
        if not placed.path:
            with StoreFile(placed, alone=values) as remote:
                yield cast(BinaryIO, remote), remote.size
            return
        path = placed.path
    version = version_of(path)
    if version and 0 < version[0] < READ_BELOW:
        content = _content(path, version)
        yield io.BytesIO(content), len(content)
        return
    with opened_on_disk(path) as (file, size):
        yield file, size


@functools.lru_cache(maxsize=8)
def _content(path: str, _version: tuple[int, ...]) -> bytes:
    descriptor, size = opened_plainly(path)
    try:
        content = os.read(descriptor, size)
    finally:
        os.close(descriptor)
    if len(content) < size:
        raise became_shorter(path)
    return content


@contextlib.contextmanager
def opened_on_disk(path: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file as `opened` does, but always with a descriptor."""
    descriptor, size = opened_plainly(on_disk(path))
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        yield file, size


def opened_plainly(path: str) -> tuple[int, int]:
    """A descriptor of a regular file, and its size."""
    try:
        # O_NONBLOCK so that a named pipe without a writer does not hang the open itself.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FormatError(f"{path}: cannot be opened: {reason}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise FormatError(f"{path}: must be a file, but it is a directory, pipe or device")
    return descriptor, status.st_size


def became_shorter(path: str) -> FormatError:
    """The sentence for a file that ends before its tensor, and did not when it was opened."""
    return FormatError(f"{path}: became shorter while it was read; is a dump still being written?")


def byte_count(path: str, shape: tuple[int, ...], bits: int) -> int:
    """Bytes that a dense tensor of this shape takes, `bits` per element, rounded up to whole bytes.

    Raises `FormatError` for shapes no tensor can have: negative sizes, more than 64 dimensions, or
    more than 2^63 bytes (counting empty dimensions as 1, since strides must fit as well).
    """
    if len(shape) > _MAX_DIMENSIONS:
        raise FormatError(
            f"{path}: declares {len(shape)} dimensions, more than the {_MAX_DIMENSIONS} allowed"
        )
    if any(size < 0 for size in shape):
        raise FormatError(f"{path}: declares a negative dimension in shape {shape!s:.100}")
    if math.prod(max(size, 1) for size in shape) * max(bits, 8) // 8 > _LARGEST:
        raise FormatError(f"{path}: declares shape {shape!s:.100}, larger than any file")
    return (math.prod(shape) * bits + 7) // 8


def bytes_at(path: str, offset: int, nbytes: int) -> bytearray:
    """Bytes of a file, at least one. Raises `FormatError` where the file ends before them."""
    with opened(path, values=True) as (file, size):
        check_end(path, offset, nbytes, size)
        file.seek(offset)
        buffer = bytearray(nbytes)
        if file.readinto(buffer) != nbytes:  # type: ignore[attr-defined]
            raise became_shorter(path)
        return buffer


def opened_at(path: str, offset: int, nbytes: int) -> tuple[int, int] | None:
    """A descriptor, which the caller closes, and where in it these bytes of a file lie side by side.

    `None` where they do not, or are on no disk. Raises `FormatError` where the file ends before them.
    """
    byte_ranges = stretches(path)
    if byte_ranges is not None:
        location = whereabouts(byte_ranges, offset, nbytes)
        if location is None:
            return None
        path, offset = location
    placed = placed_at(path)
    if placed is not None and not placed.path:
        return None
    descriptor, size = opened_plainly(path if placed is None else placed.path)
    try:
        check_end(path, offset, nbytes, size)
    except FormatError:
        os.close(descriptor)
        raise
    return descriptor, offset


def check_end(path: str, offset: int, nbytes: int, size: int) -> None:
    """Raise `FormatError` where a file of so many bytes ends before the bytes of a tensor do."""
    if offset < 0 or offset + nbytes > size:
        raise FormatError(
            f"{path}: is truncated: needs {nbytes} bytes at offset {offset}, the file has {size} bytes"
        )
