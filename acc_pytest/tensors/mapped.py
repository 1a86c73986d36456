"""Bytes of a file as a torch tensor, without reading them: the one place that maps files."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import weakref
from typing import Any, NamedTuple

from ..errors import FormatError
from ..lazy_torch import torch
from .file_bytes import READ_BELOW, byte_count, bytes_at, check_end, opened, opened_plainly
from .kept_file import whereabouts
from .kept_index import stretches
from .stores.place import on_disk
from .stores.store_file import StoreFile


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
