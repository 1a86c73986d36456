"""Where the values of an ordinary `.pth` file lie.

Dumps are thousands of small files, for each of which `torch.load` takes several times as long as the values
themselves. Anything but one dense row-major tensor, as `torch.save` writes it, is left to `torch.load`.
"""

from __future__ import annotations

import math
import struct
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

import torch

from .torch_pickle import LONGEST, declared

_LOCAL_HEADER = struct.Struct("<26xHH")
"""Of a zip entry: the lengths of its name and of its extra field, which stand before its bytes."""


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """A row-major tensor: `offset` in bytes from the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def plain_tensor_in(file: BinaryIO, size: int, entries: Sequence[zipfile.ZipInfo]) -> PlainTensor | None:
    """Where the tensor of an archive of `size` bytes lies; `None` for what only `torch.load` understands.

    `entries` are stored, not compressed, and none is larger than the file.
    """
    by_name = {entry.filename.partition("/")[2]: entry for entry in entries}
    wanted = by_name.get("data.pkl")
    if len(by_name) != len(entries) or wanted is None or wanted.file_size > LONGEST:
        return None
    order = by_name.get("byteorder")
    if order is not None and _content(file, order) != sys.byteorder.encode():
        return None
    tensor = declared(_content(file, wanted))
    held = by_name.get(f"data/{tensor.key}") if tensor is not None else None
    if tensor is None or held is None:
        return None
    itemsize = tensor.dtype.itemsize
    nbytes = math.prod(tensor.shape) * itemsize
    before = tensor.first * itemsize
    start = _start(file, held)
    if before + nbytes > held.file_size or held.file_size != tensor.stored or start + held.file_size > size:
        return None
    return PlainTensor(tensor.dtype, tensor.shape, start + before, nbytes)


def _start(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an entry begin."""
    head = _bytes_at(file, entry.header_offset, _LOCAL_HEADER.size)
    if len(head) != _LOCAL_HEADER.size:
        return sys.maxsize
    name, extra = _LOCAL_HEADER.unpack(head)
    return int(entry.header_offset + len(head) + name + extra)


def _content(file: BinaryIO, entry: zipfile.ZipInfo) -> bytes:
    start = _start(file, entry)
    return b"" if start == sys.maxsize else _bytes_at(file, start, entry.file_size)


def _bytes_at(file: BinaryIO, offset: int, count: int) -> bytes:
    file.seek(offset)
    return file.read(count)
