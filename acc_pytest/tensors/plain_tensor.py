"""Location of the values of an ordinary `.pth` file.

Dumps are thousands of small files, for each of which `torch.load` takes several times as long as the values
themselves. Anything but one dense row-major tensor, as `torch.save` writes it, is left to `torch.load`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from .dtypes import DType
from .torch_entries import ArchiveEntry, bytes_of, is_foreign, start_of
from .torch_pickle import LONGEST, declared


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """A row-major tensor: `offset` in bytes from the start of the file."""

    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def plain_tensor_in(file: BinaryIO, size: int, entries: Sequence[ArchiveEntry]) -> PlainTensor | None:
    """The tensor of an archive of `size` bytes; `None` for what only `torch.load` understands.

    `entries` are stored, not compressed, and none is larger than the file.
    """
    by_name = {entry.name.partition("/")[2]: entry for entry in entries}
    pickle_entry = by_name.get("data.pkl")
    if len(by_name) != len(entries) or pickle_entry is None or pickle_entry.nbytes > LONGEST:
        return None
    if is_foreign(file, by_name):
        return None
    tensor = declared(bytes_of(file, pickle_entry))
    storage = by_name.get(f"data/{tensor.key}") if tensor is not None else None
    if tensor is None or storage is None:
        return None
    itemsize = tensor.itemsize
    nbytes = math.prod(tensor.shape) * itemsize
    before = tensor.first * itemsize
    start = start_of(file, storage)
    if before + nbytes > storage.nbytes or storage.nbytes != tensor.stored or start + storage.nbytes > size:
        return None
    return PlainTensor(tensor.dtype, tensor.shape, start + before, nbytes)
