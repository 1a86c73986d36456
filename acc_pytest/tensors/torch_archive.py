"""Writes a tensor as `torch.save` would, but as parts that need no copy: head, the tensor's memory, tail.

`torch.load` (also with `weights_only=True` and mapped) reads the result like any other file. It is written
here because the same values must give the same bytes whatever the file is called, because the check sum that
the format wants is also wanted in the manifest of a dump, and because a dump is thousands of small files, for
which `torch.save` takes several times as long as the disk.

The format is a zip archive of stored entries: a pickle that rebuilds one tensor from storage `0`, the bytes
of that storage at a multiple of 64, and two entries that say version and byte order.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import zipfile
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

from ..base.imports import torch
from ..errors import FormatError
from .dtypes import by_torch

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<IHHHHIIH")
_ALIGNMENT = 64
_DATA = b"archive/data/0"
_EARLIEST_DATE = 0x21  # 1980-01-01, so that the bytes do not depend on the clock
_NUMPY_KNOWS = frozenset(["float64", "float32", "float16", "int64", "int32", "uint8", "bool"])
LEGACY_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
"""The typed storages that the format names, and their dtypes; any other dtype has an untyped one."""
_LARGEST = (1 << 32) - (1 << 16)
"""Bytes from which a zip archive needs 64-bit fields, less room for the other entries."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The file's bytes in three parts, and the CRC-32 of the tensor's own bytes."""

    head: bytes
    data: memoryview
    tail: bytes
    crc32: int

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self.head) + self.data.nbytes + len(self.tail)


def encode(tensor: torch.Tensor) -> Archive:
    """The file of a dense CPU tensor. The result refers to the tensor's memory.

    A tensor that is not contiguous, or of 4 GiB and more, is copied; anything but a dense tensor with values
    on the CPU raises `TypeError`, and so does a dtype that `torch.save` of this release cannot write.
    """
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise TypeError("only dense tensors on the CPU have a file of their own")
    plain = tensor.detach()
    if not plain.is_contiguous() or plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg().contiguous()
    data = memory_of(plain)
    crc32 = zlib.crc32(data)
    if data.nbytes > _LARGEST:
        file = io.BytesIO()
        torch.save(plain.clone(), file)
        return Archive(file.getvalue(), memoryview(b""), b"", crc32)
    before, listed, extra = _head(plain.dtype, tuple(plain.shape))
    size = data.nbytes
    head = b"".join((before, _local(_DATA, crc32, size, extra), _DATA, extra))
    directory = listed + _central(_DATA, crc32, size, len(before))
    end = _END.pack(0x06054B50, 0, 0, 4, 4, len(directory), len(head) + size, 0)
    return Archive(head, data, directory + end, crc32)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, not copied."""
    if not tensor.numel():
        return memoryview(b"")
    if by_torch(tensor.dtype).name in _NUMPY_KNOWS:
        return tensor.numpy().data
    # Strides of one element mean nothing and may be 0, which `view` refuses.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


@lru_cache(maxsize=1024)
def _head(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[bytes, bytes, bytes]:
    """Bytes that all files of one dtype and shape share: the entries before the storage, their lines in the
    directory, and the extra field that puts the storage at a multiple of 64.
    """
    storage = _Storage()
    legacy = getattr(torch, _legacy_storage(dtype), None)
    count = torch.Size(shape).numel()
    if legacy is None:
        legacy = torch.storage.UntypedStorage
        count *= dtype.itemsize

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", legacy, "0", "cpu", count) if obj is storage else None

    file = io.BytesIO()
    Pickler(file, protocol=2).dump(_Rebuilt(storage, dtype, shape))
    entries = (
        (b"archive/data.pkl", file.getvalue()),
        (b"archive/byteorder", sys.byteorder.encode()),
        (b"archive/version", b"3\n"),
    )
    head = listed = b""
    for name, content in entries:
        crc32 = zlib.crc32(content)
        listed += _central(name, crc32, len(content), len(head))
        head += _local(name, crc32, len(content), b"") + name + content
    padding = -(len(head) + _LOCAL.size + len(_DATA) + 4) % _ALIGNMENT
    return head, listed, struct.pack("<2sH", b"FB", padding) + b"Z" * padding


def _local(name: bytes, crc32: int, size: int, extra: bytes) -> bytes:
    return _LOCAL.pack(0x04034B50, 0, 0, 0, 0, _EARLIEST_DATE, crc32, size, size, len(name), len(extra))


def _central(name: bytes, crc32: int, size: int, offset: int) -> bytes:
    fields = (0x02014B50, 0, 0, 0, 0, 0, _EARLIEST_DATE, crc32, size, size, len(name), 0, 0, 0, 0, 0, offset)
    return _CENTRAL.pack(*fields) + name


class _Storage:
    """Stands for storage `0` in the pickle."""


class _Rebuilt:
    """Pickles as the call that `torch.load` makes to build the tensor."""

    def __init__(self, storage: _Storage, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        strides = torch.empty(shape, device="meta").stride()
        self._arguments: tuple[Any, ...] = (storage, 0, shape, strides, False, OrderedDict())
        self._typed = hasattr(torch, _legacy_storage(dtype))
        self._dtype = dtype

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if self._typed:
            return torch._utils._rebuild_tensor_v2, self._arguments
        if not hasattr(torch._utils, "_rebuild_tensor_v3"):  # torch 2.1
            raise TypeError(f"torch {torch.__version__} cannot save {self._dtype}; torch 2.2 can")
        return torch._utils._rebuild_tensor_v3, (*self._arguments, self._dtype)


def _legacy_storage(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return next((storage for storage, stored in LEGACY_STORAGES.items() if stored == name), "?")


# The zip archive that `torch.save` writes: its entries, checked against the file, and where their bytes are.
#
# `torch.save` stores entries uncompressed, so none can be larger than the file.


ZIP = b"PK\x03\x04"
LARGEST_PICKLE = 16 << 20
_MOST_ENTRIES = 10_000
_LOCAL_HEADER = struct.Struct("<26xHH")
"""Lengths of the name and the extra field of a zip entry, which stand before its bytes."""


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
        with zipfile.ZipFile(file) as archive:
            entries = [
                ArchiveEntry(
                    e.filename, e.header_offset, e.file_size, e.CRC, e.compress_type != zipfile.ZIP_STORED
                )
                for e in archive.infolist()
            ]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise FormatError(
            f"{path}: is a damaged torch file (zip directory: {error}); was it truncated?"
        ) from error
    # torch would inflate a compressed pickle to any size.
    if len(entries) > _MOST_ENTRIES:
        raise FormatError(f"{path}: has {len(entries)} entries, so it is not a file of one tensor")
    for entry in entries:
        limit = LARGEST_PICKLE if entry.name.endswith(".pkl") else size
        if entry.compressed or entry.nbytes > min(limit, size):
            raise FormatError(
                f"{path}: entry {entry.name[:80]!r} is compressed or larger than the file can hold; "
                "torch.save writes no such file"
            )
    return entries


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
