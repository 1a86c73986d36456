"""The CRC-32 of a tensor that `torch.save` wrote, without reading its values.

A zip archive lists a check sum of each entry, so two files can be told to hold the same bytes by a few
hundred bytes of each. The sum is that of a whole storage; it is given only where the tensor is all of it in
row-major order, so that equal sums of one dtype and shape mean equal tensors.
"""

from __future__ import annotations

import math
import re

from ..errors import FormatError
from .file_bytes import opened
from .torch_entries import bytes_of, entries_in
from .torch_members import content_of
from .torch_pickle import LONGEST, declared

_SUFFIXES = (".pt", ".pth")
_MOST_ENTRIES = 64
_DATA = re.compile(r"[^/]+/data/[^/]+")
_PICKLE = re.compile(r"[^/]+/data\.pkl")


def stored_crc(path: str, member: str = "") -> tuple[int, int] | None:
    """CRC-32 and bytes of a file's tensor in row-major order, as the directory of its zip archive has them.

    `None` for files without such a number: of another format or older than torch 1.6, damaged, with more than
    one tensor where no member is named, or with a tensor that shows only a part of its storage or in another
    order.
    """
    return _of_member(path, member) if member else _of_file(path)


def _of_member(path: str, member: str) -> tuple[int, int] | None:
    if not path.lower().endswith(_SUFFIXES):
        return None
    try:
        stored = content_of(path).tensors.get(member)
    except FormatError:
        return None
    return (
        (stored.crc32, stored.declared.stored) if stored and stored.fills_storage and stored.crc32 else None
    )


def _of_file(path: str) -> tuple[int, int] | None:
    try:
        with opened(path) as (file, size):
            entries = entries_in(path, file, size)
            data = [entry for entry in entries if _DATA.fullmatch(entry.name)]
            pickles = [entry for entry in entries if _PICKLE.fullmatch(entry.name)]
            if len(entries) > _MOST_ENTRIES or len(data) != 1 or len(pickles) != 1:
                return None
            if pickles[0].nbytes > LONGEST:
                return None
            fills_storage = _fills_storage(bytes_of(file, pickles[0]))
    except (FormatError, OSError):
        return None
    # torch can be told to leave the sums out, and then writes 0.
    return (data[0].crc32, data[0].nbytes) if fills_storage and data[0].crc32 else None


def _fills_storage(pickled: bytes) -> bool:
    """Whether a tensor is its storage from the first element to the last, in row-major order."""
    tensor = declared(pickled)
    if tensor is None or tensor.first:
        return False
    return tensor.stored == math.prod(tensor.shape) * tensor.itemsize
