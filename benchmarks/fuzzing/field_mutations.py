"""Mutations of files that begin with the length of a header: GE records (protobuf), `.npy`, safetensors."""

from __future__ import annotations

import struct
from random import Random

from . import json_mutations, text_mutations
from .byte_mutations import Contents, edge
from .byte_mutations import mutated as bytes_mutated

_RAW = -1
"""Stands for the tag of a field that is written as it is, whatever it is."""
Field = tuple[int, "int | bytes"]
"""Tag (number and wire type) and value of a field of a protobuf message."""
_WIDTHS = {1: 8, 5: 4}


def ge_record(random: Random, content: bytes, others: Contents) -> bytes:
    """A record whose message, its length or the values behind it are changed."""
    length = int.from_bytes(content[:8], "little")
    message, values = content[8 : 8 + length], content[8 + length :]
    chance = random.random()
    if chance < 0.15:
        return bytes_mutated(random, content, others)
    if chance < 0.25:
        return edge(random, 8) + message + values
    for _ in range(random.choice((1, 1, 2, 3))):
        message = protobuf(random, message)
    if chance < 0.35:
        values = bytes_mutated(random, values, ())
    return len(message).to_bytes(8, "little") + message + values


def protobuf(random: Random, content: bytes) -> bytes:
    """A message whose fields are changed, moved, nested, or lie about their lengths."""
    fields = _fields(content)
    if not fields or random.random() < 0.1:
        return bytes_mutated(random, content, ())
    at, choice = random.randrange(len(fields)), random.randrange(9)
    tag, value = fields[at]
    if choice == 0:
        del fields[at]
    elif choice == 1:
        fields[at:at] = [fields[at]] * random.choice((1, 2, 3000))
    elif choice == 2:
        fields[at] = random.choice((tag ^ 1 << random.randrange(6), tag ^ 7, 0, 1 << 40)), value
    elif choice == 3:
        random.shuffle(fields)
    elif choice == 4 and isinstance(value, bytes):
        lie = random.choice((len(value) + 1, max(0, len(value) - 1), 1 << 31, (1 << 63) - 1))
        fields[at] = _RAW, varint(tag) + varint(lie) + value
    elif isinstance(value, int):
        fields[at] = tag, int.from_bytes(edge(random, 8), "little")
    else:
        fields[at] = tag, protobuf(random, value) if random.random() < 0.8 else value * 100
    return b"".join(map(_written, fields))


def varint(value: int) -> bytes:
    """The number as protobuf writes it."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(found) + bytes([value])


def _fields(content: bytes) -> list[Field]:
    """The fields of a message; none for bytes that are no message."""
    found: list[Field] = []
    at = 0
    while at < len(content):
        tag, at = _number(content, at)
        kind = tag & 7
        if kind == 0:
            number, at = _number(content, at)
            found.append((tag, number))
            continue
        length, at = _number(content, at) if kind == 2 else (_WIDTHS.get(kind, len(content)), at)
        if tag < 8 or at + length > len(content):
            return []
        found.append((tag, content[at : at + length]))
        at += length
    return found


def _number(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + 10, len(content))):
        value |= (content[place] & 0x7F) << shift
        shift += 7
        if content[place] < 0x80:
            return value, place + 1
    return 0, len(content) + 1


def _written(field: Field) -> bytes:
    tag, value = field
    if tag == _RAW:
        return value if isinstance(value, bytes) else b""
    if isinstance(value, int):
        return varint(tag) + varint(value)
    return varint(tag) + (varint(len(value)) if tag & 7 == 2 else b"") + value


def numpy(random: Random, content: bytes, others: Contents) -> bytes:
    """A `.npy` file whose header, its length, its version or the values are changed."""
    chance = random.random()
    if chance < 0.2 or content[:6] != b"\x93NUMPY":
        return bytes_mutated(random, content, others)
    (length,) = struct.unpack("<H", content[8:10])
    header, values = content[10 : 10 + length], content[10 + length :]
    if chance < 0.9:
        header = text_mutations.mutated(random, header, [other[10:200] for other in others])
    if chance > 0.8:
        values = bytes_mutated(random, values, ())
    version = random.choice((b"\1\0", b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\x09\0"))
    width = 2 if version == b"\1\0" else 4
    said = edge(random, width) if random.random() < 0.1 else (len(header) % 65536).to_bytes(width, "little")
    return content[:6] + version + said + header + values


def safetensors(random: Random, content: bytes, others: Contents) -> bytes:
    """A safetensors file whose header (JSON), its length or the values are changed."""
    length = int.from_bytes(content[:8], "little")
    header, values = content[8 : 8 + length], content[8 + length :]
    chance = random.random()
    if chance < 0.15:
        return bytes_mutated(random, content, others)
    if chance < 0.25:
        return edge(random, 8) + header + values
    headers = [other[8 : 8 + int.from_bytes(other[:8], "little")] for other in others]
    header = json_mutations.mutated(random, header, headers)
    if chance < 0.35:
        values = bytes_mutated(random, values, ())
    return len(header).to_bytes(8, "little") + header + values
