"""`.safetensors` files: an eight-byte length, a JSON header, then the tensors back to back.

The format's own rules are enforced before anything is mapped: header at most 100 MB, every tensor
exactly as long as its dtype and shape say, no overlaps and no holes.
"""

from __future__ import annotations

from typing import Any

from ..base.imports import torch
from ..base.texts import parsed
from ..errors import FormatError
from .dtypes import by_name
from .file_bytes import byte_count, mapped, opened
from .header import Location, TensorHeader, member_of, until_changed

_LONGEST_HEADER = 100_000_000
_LENGTH = 8


class SafetensorsFile:
    """The format object of `.safetensors` files; `TensorRef.member` is the tensor's key."""

    name = "safetensors"

    def matches(self, head: bytes) -> bool:
        """Whether these first bytes can be a length and the start of a JSON object."""
        return (
            len(head) > _LENGTH and head[_LENGTH : _LENGTH + 1] == b"{" and _length(head) <= _LONGEST_HEADER
        )

    def header(self, place: Location) -> TensorHeader:
        """Dtype, shape and place of one tensor; of the only one where `place.member` is empty."""
        return member_of(place, _headers(place.path), "tensor")

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """The tensor, mapped. Raises `FormatError` or `CannotDecode`."""
        return mapped(place.path, header.dtype.torch_dtype(place), header.shape, header.offset)


FORMAT = SafetensorsFile()


def keys(path: str) -> tuple[str, ...]:
    """The names of the tensors in a file, in the order they lie in it. Raises `FormatError`."""
    return tuple(_headers(path))


def _length(head: bytes) -> int:
    return int.from_bytes(head[:_LENGTH], "little")


# A model file holds thousands of tensors behind one header; a few files are enough for a comparison.
@until_changed(maxsize=4)
def _headers(path: str) -> dict[str, TensorHeader]:
    with opened(path) as (file, size):
        head = file.read(_LENGTH)
        length = _length(head)
        if len(head) < _LENGTH or length > min(_LONGEST_HEADER, size - _LENGTH):
            raise FormatError(
                f"{path}: is not a valid safetensors file: declares a header of {length} bytes, "
                f"the file has {size} bytes and the format allows {_LONGEST_HEADER}"
            )
        return _parsed(path, file.read(length), size)


def _parsed(path: str, text: bytes, size: int) -> dict[str, TensorHeader]:
    try:
        declared = parsed(text, pairs=_without_repeats)
    except ValueError as error:
        raise FormatError(f"{path}: its safetensors header is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(declared, dict):
        raise FormatError(f"{path}: its safetensors header is not a JSON object")
    declared.pop("__metadata__", None)
    start = _LENGTH + len(text)
    headers = {key: _header(path, key, value, start) for key, value in declared.items()}
    ordered = dict(sorted(headers.items(), key=lambda item: (item[1].offset, item[1].nbytes)))
    end = start
    for key, header in ordered.items():
        if header.offset != end:
            raise FormatError(
                f"{path}: tensor {key[:80]!r} starts at byte {header.offset}, the one before ends at {end}; "
                "safetensors files have no holes or overlaps"
            )
        end += header.nbytes
    if end != size:
        raise FormatError(f"{path}: its tensors end at byte {end}, the file has {size}; was it truncated?")
    return ordered


def _header(path: str, key: str, value: Any, start: int) -> TensorHeader:
    try:
        name, sizes, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
    except (TypeError, LookupError, ValueError) as error:
        raise FormatError(
            f"{path}: tensor {key[:80]!r} lacks a dtype, a shape or a pair of data_offsets"
        ) from error
    are_sizes = isinstance(sizes, list) and all(type(n) is int and n >= 0 for n in (*sizes, begin, end))
    if not isinstance(name, str) or not are_sizes:
        raise FormatError(f"{path}: tensor {key[:80]!r} has a dtype, shape or data_offsets of the wrong type")
    dtype, shape = by_name(name), tuple(sizes)
    needed = byte_count(path, shape, dtype.bits)
    if dtype.bits and end - begin != needed:
        raise FormatError(
            f"{path}: tensor {key[:80]!r} declares {dtype} {sizes!s:.100}, which takes {needed} bytes, "
            f"but its data_offsets span {end - begin}"
        )
    if end < begin:
        raise FormatError(f"{path}: tensor {key[:80]!r} ends before it begins")
    return TensorHeader(dtype, shape, offset=start + begin, nbytes=end - begin, plain=True)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key appears twice")
    return mapping
