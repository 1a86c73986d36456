"""Bytes of a file as a torch tensor, without reading them: the one place that opens and maps files.

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
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import FormatError
from .header import version_of
from .kept_file import KeptFile, whereabouts
from .kept_index import stretches
from .stores.place import on_disk, placed_at
from .stores.store_file import StoreFile

# Below this size one read is cheaper than a mapping (two system calls and page faults), and a tensor
# that was read holds no file descriptor open: a mapping keeps one for as long as the tensor lives.
_READ_BELOW = 64 * 1024
_MAX_DIMENSIONS = 64
_LARGEST = 2**63 - 1


class _Watched(NamedTuple):
    """A file that torch has mapped: for which memory, which file it was, and its size."""

    storage: StorageWeakRef
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


@contextlib.contextmanager
def opened(path: str, *, values: bool = False) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file for unbuffered reading; gives it with its size in bytes.

    Raises `FormatError` for what cannot be opened and for pipes, devices and directories, on which
    a read would block or never end. A small file is read at once and kept until others were: its header and
    its values are asked for one after the other. A file of a kept dump is read from where its bytes lie; what
    is read of one in a store is fetched first, with the heads of its neighbours unless `values` are read.
    """
    kept = stretches(path)
    if kept is not None:
        with KeptFile(path, kept) as stored:
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
    if version and 0 < version[0] < _READ_BELOW:
        content = _content(path, version)
        yield io.BytesIO(content), len(content)
        return
    with opened_on_disk(path) as (file, size):
        yield file, size


@functools.lru_cache(maxsize=8)
def _content(path: str, _version: tuple[int, ...]) -> bytes:
    descriptor, size = _opened(path)
    try:
        content = os.read(descriptor, size)
    finally:
        os.close(descriptor)
    if len(content) < size:
        raise became_shorter(path)
    return content


@contextlib.contextmanager
def opened_on_disk(path: str) -> Iterator[tuple[BinaryIO, int]]:
    """As `opened`, but always with a file that has a descriptor."""
    descriptor, size = _opened(on_disk(path))
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        yield file, size


def _opened(path: str) -> tuple[int, int]:
    """A descriptor of a regular file, and its size."""
    try:
        # O_NONBLOCK so that a named pipe without a writer does not hang the open itself.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FormatError(f"{path}: cannot be opened: {reason}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise FormatError(f"{path}: must be a file, but it is a directory, pipe or device")
    return descriptor, found.st_size


def became_shorter(path: str) -> FormatError:
    """What is wrong where a file ends before its tensor, as it did not when it was opened."""
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
    kept = stretches(path)
    if kept is not None and (found := whereabouts(kept, offset, nbytes)) is not None:
        (path, offset), kept = found, None
    with opened(path, values=True) as (opened_file, size):
        file: Any = opened_file
        if offset < 0 or offset + nbytes > size:
            raise FormatError(
                f"{path}: is truncated: needs {nbytes} bytes at offset {offset}, the file has {size} bytes"
            )
        if nbytes < _READ_BELOW or kept is not None:
            file.seek(offset)
            buffer = bytearray(nbytes)
            if file.readinto(buffer) != nbytes:
                raise became_shorter(path)
            return torch.frombuffer(buffer, dtype=dtype).view(shape)
        stored = isinstance(file, StoreFile)
        descriptor = file.descriptor_with(offset, nbytes) if stored else file.fileno()
        page = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        lead = offset - page
        view = _map(descriptor, lead + nbytes, page)
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
        descriptor, _ = _opened(on_disk(mapping.path))
    except FormatError:
        return None
    if _which(os.fstat(descriptor)) == mapping.file:
        return descriptor
    os.close(descriptor)
    return None


def _which(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def watch(tensor: torch.Tensor, path: str) -> torch.Tensor:
    """The tensor, which torch itself has mapped from the file: `check_mapped` looks at that one too."""
    _watched[:] = [one for one in _watched if not _is_gone(one)]
    with contextlib.suppress(OSError):
        found = os.stat(path)
        storage = StorageWeakRef(tensor.untyped_storage())
        _watched.append(_Watched(storage, path, _which(found), found.st_size))
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
            said = f"{mapping.path}: became unreadable while it was read: {error.strerror}"
            raise FormatError(said) from error
        _check_size(mapping.path, size, mapping.offset + mapping.nbytes)
    for one in _watched:
        if _is_gone(one):
            continue
        with contextlib.suppress(OSError):
            found = os.stat(one.path)
            if _which(found) == one.file:
                _check_size(one.path, found.st_size, one.size)


def _is_gone(one: _Watched) -> bool:
    return bool(one.storage.expired())


def _check_size(path: str, size: int, needed: int) -> None:
    if size < needed:
        raise FormatError(
            f"{path}: became shorter while it was read (to {size} bytes, its tensor ends at {needed}); "
            "is the dump still being written, or deleted?"
        )


def _map(descriptor: int, length: int, offset: int) -> mmap.mmap:
    # A private writable mapping is charged against the machine's commit limit, so that a tensor larger
    # than its memory could not be opened; MAP_NORESERVE lifts that. A read-only mapping would need no
    # flag, but torch warns about buffers it cannot write to.
    return mmap.mmap(
        descriptor,
        length,
        flags=mmap.MAP_PRIVATE | _NO_RESERVE,
        prot=mmap.PROT_READ | mmap.PROT_WRITE,
        offset=offset,
    )
