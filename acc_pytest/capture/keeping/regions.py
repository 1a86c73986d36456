"""The places of tensors in a file, and whether a kept dump may hold the file in pieces at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import AccError
from ...guard import guarded
from ...tensors.formats import format_of
from ...tensors.header import TensorHeader
from ...tensors.ref import TensorRef

_IN_PIECES = frozenset({"ATB", "numpy", "torch", "safetensors", "GE record", "info"})
"""Formats whose readers open files by `file_bytes.opened` alone."""
_TO_SAFETENSORS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
BYTES = "U8"


@dataclass(frozen=True, slots=True)
class Region:
    """A tensor in a file: its bytes, its member, and how safetensors calls its type."""

    offset: int
    nbytes: int
    member: str
    dtype: str
    shape: tuple[int, ...]


def regions_of(path: str, size: int) -> tuple[Region, ...] | None:
    """The tensors in a file by their places, none overlapping; `None` for a file that is kept as it is.

    That is one of another format, and a torch file that only `torch.load` understands, which takes files.
    Of a file that cannot be understood nothing is a tensor; its bytes are kept all the same.
    """
    try:
        name = format_of(path).name
    except AccError:
        return None
    if name not in _IN_PIECES:
        return None
    try:
        with guarded(f"reading {path}", (OSError,)):
            regions = list(_tensors(path, name))
    except (AccError, OSError):
        regions = []
    if name == "torch" and not regions:
        return None
    return tuple(_apart(regions, size))


def _tensors(path: str, name: str) -> Iterator[Region]:
    for member in _members(path, name):
        header = TensorRef(path, member).header()
        if header.payload == "data" and header.offset:
            yield Region(header.offset, header.nbytes, member, *_described(header))


def _members(path: str, name: str) -> Sequence[str]:
    if name == "GE record":
        from ...tensors.ge_file import members

        return members(path)
    if name == "safetensors":
        from ...tensors.safetensors_file import keys

        return keys(path)
    return ("",)


def _described(header: TensorHeader) -> tuple[str, tuple[int, ...]]:
    dtype = _TO_SAFETENSORS.get(header.dtype.name)
    if dtype is None or math.prod(header.shape) * header.dtype.bits != 8 * header.nbytes:
        return BYTES, (header.nbytes,)
    return dtype, header.shape


def _apart(regions: Sequence[Region], size: int) -> Iterator[Region]:
    end = 0
    for region in sorted(regions, key=lambda region: region.offset):
        if region.nbytes and end <= region.offset and region.offset + region.nbytes <= size:
            end = region.offset + region.nbytes
            yield region
