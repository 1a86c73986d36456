"""The wire format of protobuf messages: the fields of one message, read and written, without a compiler.

A message is a row of fields, each a number, a wire type and a value: a varint, a run of bytes, or 4 or 8
fixed bytes. What a field means is the business of whoever knows the message.
Source of the facts: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Union

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types in use; the two of the groups of proto1 are refused."""

_U64 = (1 << 64) - 1
_MOST_FIELDS = 100_000

Buffer = Union[bytes, mmap.mmap]
"""The bytes of a message, which may be those of a mapped file."""
Span = tuple[int, int]
"""Start and stop of the bytes of a field in the message."""


class WireError(ValueError):
    """The bytes are no message; the text says where they stop making sense."""


def varint(data: Buffer, at: int, stop: int) -> tuple[int, int]:
    """The number that starts at `at` and the place after it. Raises `WireError`."""
    value = shift = 0
    while at < stop:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _U64, at
        shift += 7
        if shift > 63:
            raise WireError(f"byte {at}: a number of more than ten bytes")
    raise WireError(f"byte {at}: ends inside a number")


def fields(data: Buffer, start: int, stop: int) -> Iterator[tuple[int, int, Span]]:
    """Number, value and span of every field in `data[start:stop]`, in order.

    A varint or fixed field has its value and an empty span, a field of bytes the value -1 and its span.
    Raises `WireError` for what is no message.
    """
    for _ in range(_MOST_FIELDS + 1):
        if start >= stop:
            return
        tag = data[start]
        if tag < 0x80:
            start += 1
        else:
            tag, start = varint(data, start, stop)
        kind, number = tag & 7, tag >> 3
        if not number:
            raise WireError(f"byte {start}: a field of number 0")
        if kind in (VARINT, BYTES):
            if start < stop and data[start] < 0x80:  # most numbers are one byte, and records are many
                value, begin = data[start], start + 1
            else:
                value, begin = varint(data, start, stop)
            start = begin if kind == VARINT else begin + value
            if start > stop:
                raise WireError(f"byte {begin}: field {number} ends {start - stop} bytes beyond its message")
            yield number, value if kind == VARINT else -1, (begin, start)
        elif kind in (FIXED64, FIXED32):
            begin, start = start, start + (8 if kind == FIXED64 else 4)
            if start > stop:
                raise WireError(f"byte {begin}: ends inside a fixed number")
            yield number, int.from_bytes(data[begin:start], "little"), (start, start)
        else:
            raise WireError(f"byte {start}: field {number} has wire type {kind}")
    raise WireError(f"more than {_MOST_FIELDS} fields in one message")


def signed(value: int, bits: int = 32) -> int:
    """A varint as the two's complement number of a protobuf `int32`, `int64` or enum."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def encoded(value: int) -> bytes:
    """A number as a varint; a negative one takes ten bytes, as protobuf has it."""
    value &= _U64
    text = bytearray()
    while value >= 0x80:
        text.append(value & 0x7F | 0x80)
        value >>= 7
    text.append(value)
    return bytes(text)


def number_field(number: int, value: int) -> bytes:
    """A varint field; nothing for 0, which proto3 leaves out."""
    return encoded(number << 3 | VARINT) + encoded(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """A field of bytes or a sub-message, present even when empty."""
    return encoded(number << 3 | BYTES) + encoded(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    """A string field; nothing for the empty string, which proto3 leaves out."""
    return bytes_field(number, value.encode("utf-8")) if value else b""
