"""Bytes of a file, wherever it lies: the one place that opens tensor files.

Every reader checks declared sizes here, against the file, before any memory is taken.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import mmap
import os
import stat
import sys
import weakref
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast

from ..base.imports import torch
from ..errors import FormatError
from .header import version_of
from .kept_dump import KeptFile, stretches, whereabouts
from .location import on_disk, placed_at
from .sized_file import SizedFile

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
            from ..remote.stores.blocks import StoreFile

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


def content_within(path: str, largest: int, what: str) -> bytes:
    """All bytes of a file. Raises `FormatError` where they are more than the `largest` number of `what`."""
    with opened(path) as (file, size):
        if size > largest:
            raise FormatError(f"{path}: has {size} bytes, more than the {largest} allowed for {what}")
        return file.read(size)


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


# Bytes of a file as a torch tensor, without reading them: the one place that maps files.


class _Watched(NamedTuple):
    """A file that torch has mapped: for which memory, which file it was, and its size."""

    storage: Any
    path: str
    file: tuple[int, int]
    size: int


class Mapped(NamedTuple):
    """Bytes of a file in memory: how many, from where in the file, and at which address.

    `file` is which file it was, empty for one that cannot be opened again.
    """

    path: str
    offset: int
    nbytes: int
    address: int = 0
    file: tuple[int, ...] = ()


_watched: list[_Watched] = []
_mappings: weakref.WeakKeyDictionary[mmap.mmap, Mapped] = weakref.WeakKeyDictionary()
"""Every mapping that a tensor holds."""
# Python names this Linux flag since 3.11 only.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def mapped(path: str, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> torch.Tensor:
    """The dense row-major tensor that starts at byte `offset` of the file, in its own dtype.

    Large tensors are mapped copy on write: nothing is read before it is used, writing to the tensor
    leaves the file alone. `offset` may have any alignment. Raises `FormatError` where the file ends
    before the tensor does.
    """
    nbytes = byte_count(path, shape, dtype.itemsize * 8)
    if nbytes == 0:
        # Not torch.empty: that warns about complex32, and a warning may be an error in the user's run.
        return torch.frombuffer(bytearray(dtype.itemsize), dtype=dtype)[:0].view(shape)
    byte_ranges = stretches(path)
    if byte_ranges is not None and (location := whereabouts(byte_ranges, offset, nbytes)) is not None:
        (path, offset), byte_ranges = location, None
    if nbytes < READ_BELOW or byte_ranges is not None:
        return torch.frombuffer(bytes_at(path, offset, nbytes), dtype=dtype).view(shape)
    with opened(path, values=True) as (opened_file, size):
        file: Any = opened_file
        check_end(path, offset, nbytes, size)
        stored = isinstance(file, SizedFile)
        descriptor = file.descriptor_with(offset, nbytes) if stored else file.fileno()
        page = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        lead = offset - page
        # A private writable mapping is charged against the machine's commit limit, so that a tensor larger
        # than its memory could not be opened; MAP_NORESERVE lifts that. A read-only mapping would need no
        # flag, but torch warns about buffers it cannot write to.
        view = mmap.mmap(
            descriptor,
            lead + nbytes,
            flags=mmap.MAP_PRIVATE | _NO_RESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
            offset=page,
        )
        flat = torch.frombuffer(view, dtype=dtype, count=nbytes // dtype.itemsize, offset=lead)
        which = () if stored else _which(os.fstat(descriptor))
        _mappings[view] = Mapped(path, offset, nbytes, flat.data_ptr(), which)
    return flat.view(shape)


def mapping_of(tensor: torch.Tensor) -> Mapped | None:
    """The mapping that has all of a tensor as it lies in memory, if its elements are in order there."""
    if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    first, nbytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    for mapping in tuple(_mappings.values()):
        if mapping.address <= first and first + nbytes <= mapping.address + mapping.nbytes:
            return mapping
    return None


def opened_again(mapping: Mapped) -> int | None:
    """A descriptor of the file of a mapping, which the caller closes; `None` where it is there no more."""
    if not mapping.file:
        return None
    try:
        descriptor, _ = opened_plainly(on_disk(mapping.path))
    except FormatError:
        return None
    if _which(os.fstat(descriptor)) == mapping.file:
        return descriptor
    os.close(descriptor)
    return None


def _which(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def watch(tensor: torch.Tensor, path: str) -> torch.Tensor:
    """The tensor, which torch itself has mapped from the file: `check_mapped` looks at that one too."""
    from torch.multiprocessing.reductions import StorageWeakRef

    _watched[:] = [entry for entry in _watched if not _is_gone(entry)]
    with contextlib.suppress(OSError):
        status = os.stat(path)
        storage = StorageWeakRef(tensor.untyped_storage())
        _watched.append(_Watched(storage, path, _which(status), status.st_size))
    return tensor


def check_mapped() -> None:
    """Raise `FormatError` where a file of a tensor that lives has become shorter than the tensor.

    To touch what is no longer in a file ends the process (SIGBUS) before anybody can say which file it was. A
    file that was deleted or replaced is still there for those who have mapped it.
    """
    for view, mapping in tuple(_mappings.items()):
        try:
            size = view.size()
        except OSError as error:
            sentence = f"{mapping.path}: became unreadable while it was read: {error.strerror}"
            raise FormatError(sentence) from error
        _check_size(mapping.path, size, mapping.offset + mapping.nbytes)
    for entry in _watched:
        if _is_gone(entry):
            continue
        with contextlib.suppress(OSError):
            status = os.stat(entry.path)
            if _which(status) == entry.file:
                _check_size(entry.path, status.st_size, entry.size)


def _is_gone(entry: _Watched) -> bool:
    return bool(entry.storage.expired())


def _check_size(path: str, size: int, needed: int) -> None:
    if size < needed:
        raise FormatError(
            f"{path}: became shorter while it was read (to {size} bytes, its tensor ends at {needed}); "
            "is the dump still being written, or deleted?"
        )


# A few bytes of a file by which copies of it are known again without reading it.


BLOCK = 4096
BLOCKS = 4
"""So much is read, at even distances from the first byte to the last."""


def sampled(path: str) -> tuple[int, int] | None:
    """Size and CRC-32 of a few blocks of a file; `None` where it cannot be read.

    Files that differ may have equal ones: it is evidence of where a tensor came from, never of its values.
    """
    try:
        with opened(path) as (file, size):
            crc32 = 0
            for number in range(BLOCKS):
                file.seek(max(0, size - BLOCK) * number // (BLOCKS - 1))
                crc32 = zlib.crc32(file.read(BLOCK), crc32)
                if size <= BLOCK:
                    break
    except (OSError, FormatError):
        return None
    return size, crc32
