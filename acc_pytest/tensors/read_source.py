"""Sources over files: tensors that lie there as they are, read past any mapping into memory that is there.

To touch a mapped page that its file has lost ends the process (SIGBUS); to read it is an error with a name.
Threads that touch pages of one process for the first time may wait for each other. Which costs less depends
on the system: for two elements of float16 0.1 ns to read and 0.3 ns to map (AMD EPYC), 0.5 ns and 0.1 to 0.2
(Intel Xeon, Linux 6.18).
"""

from __future__ import annotations

import functools
import math
import os
import struct
import sys

from ..base.imports import torch
from ..errors import guarded
from .dtypes import DType, by_torch
from .file_bytes import READ_BELOW, became_shorter, bytes_at, mapping_of, opened_again, opened_at
from .header import TensorHeader
from .ref import TensorRef, header_to_open
from .source import InMemory, Source, TensorSource

_UNPACKED = {
    "float16": "e", "float32": "f", "bfloat16": "f", "bool": "?",
    "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
}  # fmt: skip
"""Types that are read without torch, and how Python unpacks an element of each; bfloat16 made a float32."""
_HAS_PREADV = hasattr(os, "preadv")


class _File:
    """The elements of a tensor in an open file, from byte `first` on. The file is closed with it."""

    def __init__(self, path: str, descriptor: int, first: int, itemsize: int) -> None:
        self._path, self._descriptor, self._first, self._itemsize = path, descriptor, first, itemsize

    def __del__(self) -> None:
        os.close(self._descriptor)

    def read_into(self, room: bytearray, start: int, stop: int) -> None:
        """Put elements `[start, stop)` into the first bytes of `room`; several threads may at the same time.

        Raises `FormatError` where the file has become shorter.
        """
        room_left = memoryview(room)[: (stop - start) * self._itemsize]
        at = self._first + start * self._itemsize
        while room_left and (count := os.preadv(self._descriptor, [room_left], at)):
            room_left, at = room_left[count:], at + count
        if room_left:
            raise became_shorter(self._path)


class ReadSource(TensorSource):
    """A `Source` over a tensor that is mapped from a file, and over that file."""

    def __init__(self, tensor: torch.Tensor, file: _File) -> None:
        super().__init__(tensor)
        self._file = file

    def in_memory(self, start: int, stop: int, room: bytearray) -> InMemory:
        """Elements `[start, stop)`, as `read` gives them, in the first bytes of `room`."""
        self._file.read_into(room, start, stop)
        return InMemory.of_buffer(by_torch(self.dtype), stop - start, room)


class StoredSource:
    """A `Source` over a tensor that was not opened: its header says that it lies in its file as it is read.

    Who asks for a tensor of it imports torch.
    """

    def __init__(self, ref: TensorRef, header: TensorHeader, content: bytearray | _File) -> None:
        self.shape, self.element_type = header.shape, header.dtype
        self._ref, self._content = ref, content
        self._itemsize = header.dtype.bits // 8

    @property
    def dtype(self) -> torch.dtype:
        return self.element_type.torch_dtype(self._ref)

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)` as a contiguous 1-D CPU tensor."""
        return self._opened.read(start, stop)

    @functools.cached_property
    def _opened(self) -> TensorSource:
        return TensorSource(self._ref.open())

    def in_memory(self, start: int, stop: int, room: bytearray) -> InMemory:
        """Elements `[start, stop)`, of a large tensor in the first bytes of `room`."""
        if isinstance(self._content, bytearray):
            return InMemory.of_buffer(self.element_type, stop - start, self._content, start * self._itemsize)
        self._content.read_into(room, start, stop)
        return InMemory.of_buffer(self.element_type, stop - start, room)

    def element(self, flat: int) -> float:
        """One element, as a Python value of its own kind."""
        if isinstance(self._content, bytearray):
            raw = self._content[flat * self._itemsize : (flat + 1) * self._itemsize]
        else:
            raw = bytearray(self._itemsize)
            self._content.read_into(raw, flat, flat + 1)
        if self.element_type.name == "bfloat16":  # the upper half of a float32
            raw = bytearray((int.from_bytes(raw, sys.byteorder) << 16).to_bytes(4, sys.byteorder))
        value: float
        (value,) = struct.unpack(f"={_UNPACKED[self.element_type.name]}", raw)
        return value

    def elements(self) -> list[int]:
        """All elements, of whole numbers. Raises `FormatError`."""
        numel, content = math.prod(self.shape), self._content
        if not isinstance(content, bytearray):
            content.read_into(room := bytearray(numel * self._itemsize), 0, numel)
            content = room
        return list(struct.unpack(f"={numel}{_UNPACKED[self.element_type.name]}", content))


def element_type(source: Source) -> DType:
    """The type of the elements of a source; of a stored one torch is not asked."""
    return source.element_type if isinstance(source, StoredSource) else by_torch(source.dtype)


def opened_source(ref: TensorRef) -> Source:
    """A source over a tensor on disk: over its file where it lies there as it is read, else over the tensor.

    Raises what opening it raises.
    """
    header = header_to_open(ref)
    if header.plain and header.dtype.name in _UNPACKED:
        with guarded(f"opening {ref}", (OSError,)):
            content = _content(ref.path, header)
        if content is not None:
            return StoredSource(ref, header, content)
    return source_of(ref.open())


def whole_numbers(ref: TensorRef) -> list[int]:
    """All elements of a tensor of whole numbers on disk. Raises what opening it raises."""
    source = opened_source(ref)
    if isinstance(source, StoredSource):
        return source.elements()
    return [int(value) for value in source.read(0, math.prod(source.shape)).tolist()]


def _content(path: str, header: TensorHeader) -> bytearray | _File | None:
    """The bytes of a small tensor, the file of a large one; `None` where that is on no disk."""
    nbytes = header.nbytes
    if nbytes < READ_BELOW:
        return bytes_at(path, header.offset, nbytes) if nbytes else bytearray()
    location = opened_at(path, header.offset, nbytes) if _HAS_PREADV else None
    return None if location is None else _File(path, *location, header.dtype.bits // 8)


def source_of(tensor: torch.Tensor) -> TensorSource:
    """A source over a tensor as it was opened, to which nobody has written: over its file, if it has one."""
    mapping = mapping_of(tensor) if _HAS_PREADV else None
    descriptor = None if mapping is None else opened_again(mapping)
    if mapping is None or descriptor is None:
        return TensorSource(tensor)
    first = mapping.offset + tensor.data_ptr() - mapping.address
    return ReadSource(tensor, _File(mapping.path, descriptor, first, tensor.element_size()))
