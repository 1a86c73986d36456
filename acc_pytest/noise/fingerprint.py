"""`fingerprint`: a few bytes that tell the tensor of one golden from that of another."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from ..tensors.file_bytes import opened
from ..tensors.header import TensorHeader
from ..tensors.ref import TensorRef
from ..tensors.source import TensorSource

if TYPE_CHECKING:
    import torch

_LOOKED_AT = 16
"""Elements of a tensor in its fingerprint: a page of the file each, whatever the size of the tensor."""


def fingerprint(ref: TensorRef) -> str:
    """A check sum of what is dumped of a tensor: its type and shape, and a few values spread over it.

    Raises `AccError` or `OSError` where it cannot be read.
    """
    header = ref.header()
    check = zlib.crc32(f"{header.dtype.name} {list(header.shape)} {header.statistics}".encode())
    if header.payload != "statistics" and header.numel:
        lies_so = header.plain and header.dtype.itemsize is not None
        check = zlib.crc32(_in_file(ref, header) if lies_so else _sampled(ref.open()), check)
    return f"{check:08x}"


def _in_file(ref: TensorRef, header: TensorHeader) -> bytes:
    """The bytes of `_sampled`, of a tensor that lies in its file as it is read."""
    size, chunks = header.dtype.bits // 8, []
    with opened(ref.path, values=True) as (file, _):
        for place in _places(header.numel):
            file.seek(header.offset + place * size)
            chunks.append(file.read(size))
    return b"".join(chunks)


def _sampled(tensor: torch.Tensor) -> bytes:
    from ..metrics.tensor_values import raw  # with torch, which a run without a profile may do without

    places = _places(tensor.numel())
    source = TensorSource(tensor)
    if tensor.is_contiguous():  # read as a view
        return raw(source.read(0, tensor.numel())).reshape(tensor.numel(), -1)[places].tobytes()
    return b"".join(raw(source.read(place, place + 1)).tobytes() for place in places)


def _places(elements: int) -> list[int]:
    """First, last, and evenly spread between."""
    last = min(_LOOKED_AT, elements) - 1
    return [number * (elements - 1) // max(1, last) for number in range(last + 1)]
