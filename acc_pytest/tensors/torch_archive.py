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
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..lazy_torch import torch
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
        return Archive(_saved_by_torch(plain), memoryview(b""), b"", crc32)
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


def _saved_by_torch(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor.clone(), file)
    return file.getvalue()


@lru_cache(maxsize=1024)
def _head(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[bytes, bytes, bytes]:
    """Bytes that all files of one dtype and shape share: the entries before the storage, their lines in the
    directory, and the extra field that puts the storage at a multiple of 64.
    """
    entries = (
        (b"archive/data.pkl", _pickle(dtype, shape)),
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


def _pickle(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
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
    return file.getvalue()


def _legacy_storage(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return next((storage for storage, stored in LEGACY_STORAGES.items() if stored == name), "?")
