"""GE records: all inputs and outputs of one operator in one file, as the device writes them.

Eight bytes with the length of the header, the header (`ge_message`), then the values: inputs, outputs,
buffers, workspaces, back to back. A tensor to which the device gave no memory (a null address) is
described and has no values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import CannotDecode, FormatError
from .dtypes import DType
from .file_bytes import opened
from .ge_message import GeRecord, GeTensor, OriginalOp, by_ge_code, ge_layout_name
from .header import until_changed
from .wire import BYTES, Span, WireError, fields, signed, varint

MAPPING_FILE = "mapping.csv"
"""Beside records whose names the file system did not take: `{file name},{name}` line by line."""

_LENGTH = 8
_FIRST_READ = 4096
_LONGEST_HEADER = 4 << 20
_NANO = b"\x5a\x5a\x5a\x5a"
# Tags of the fields 1 to 9 of the message, one of which is its first byte.
_FIRST_BYTES = frozenset(b"\x0a\x10\x1a\x22\x2a\x32\x3a\x42\x4a")


def is_record(head: bytes) -> bool:
    """Whether a file with these first bytes is a record of GE, of a nano device included."""
    if len(head) <= _LENGTH or not 0 < int.from_bytes(head[:_LENGTH], "little") < 1 << 31:
        return False
    return head[_LENGTH] in _FIRST_BYTES or head[_LENGTH:].startswith(_NANO)


@until_changed(maxsize=32768)  # a step of a large graph has some ten thousand records
def read_record(path: str) -> GeRecord:
    """The record, read from its header alone; the values are not touched.

    Remembered until the file changes. Raises `FormatError` for what is no record or ends inside its header,
    `CannotDecode` for a record of a nano device. A record whose values are cut can be read.
    """
    with opened(path) as (file, size):
        head = file.read(_FIRST_READ)
        if not is_record(head):
            raise FormatError(
                f"{path}: is not a GE record: starts with {head[:16]!r} instead of a header and its "
                "length; a file of another format needs its own suffix"
            )
        if head[_LENGTH:].startswith(_NANO):
            raise CannotDecode(
                f"{path}: is a record of a nano device (TLV instead of protobuf), which is not supported; "
                "convert it to .npy with the parser of CANN's toolkit"
            )
        length = int.from_bytes(head[:_LENGTH], "little")
        start = _LENGTH + length
        if start > size:
            raise FormatError(
                f"{path}: is truncated: declares a header of {length} bytes, {size - _LENGTH} follow; "
                "was the dump interrupted?"
            )
        if length > _LONGEST_HEADER:
            raise FormatError(
                f"{path}: declares a header of {length} bytes, more than the {_LONGEST_HEADER} allowed"
            )
        if start > len(head):
            head += file.read(start - len(head))
    try:
        return parse(head[_LENGTH:start], start, size)
    except WireError as error:
        raise FormatError(f"{path}: its header is not a valid DumpData message: {error}") from error


# The fields of the protobuf message `DumpData` that mean something here, by their numbers; others are passed
# over. A step has tens of thousands of records, so this is the one place of the room where calls are counted.


_UNKNOWN_INDEX = (1 << 32) - 1
_MOST_DIMS = 64
_PACKED = 1 << 3 | BYTES
"""The tag before the packed dimensions of a shape."""
_Decode = Callable[[bytes, int, Span, Any], Any]


class _Field(NamedTuple):
    """The attribute that a field is. `decode` takes the message, the field's number (-1 for bytes) and span,
    and the value so far, at first `default`. Without it the number counts."""

    name: str
    default: Any = 0
    decode: _Decode | None = None


def _decoded(message: Mapping[int, _Field], data: bytes, span: Span) -> dict[str, Any]:
    """The attributes of the message that lies at `span`. Raises `WireError`."""
    values = {name: default for name, default, _ in message.values()}
    for number, value, inner in fields(data, *span):
        if number in message:
            name, _, decode = message[number]
            values[name] = value if decode is None else decode(data, value, inner, values[name])
    return values


def _text(data: bytes, _value: int, span: Span, _before: object) -> str:
    return data[span[0] : span[1]].decode("utf-8", "surrogateescape")


def _dtype(_data: bytes, value: int, _span: Span, _before: object) -> DType:
    return by_ge_code(signed(value))


def _index(_data: bytes, value: int, _span: Span, _before: object) -> int | None:
    return value if 0 <= value < _UNKNOWN_INDEX else None


def _shape(data: bytes, _value: int, span: Span, before: tuple[int, ...] | None) -> tuple[int, ...]:
    """The dimensions of a `Shape`, packed as proto3 writes them or one by one."""
    begin, end = span
    count = end - begin - 2
    if not before and 0 <= count <= _MOST_DIMS and data[begin] == _PACKED and data[begin + 1] == count:
        sizes = data[begin + 2 : end]
        if max(sizes, default=0) < 0x80:
            return tuple(sizes)  # each its own byte
    dims = list(before or ())
    for number, value, (at, stop) in fields(data, *span):
        if number != 1:
            continue
        if value >= 0:
            dims.append(value)
        while at < stop and len(dims) <= _MOST_DIMS:
            size, at = varint(data, at, stop)
            dims.append(size)
        if len(dims) > _MOST_DIMS:
            raise WireError(f"a shape of more than {_MOST_DIMS} dimensions")
    return tuple(dims)


def _several(message: Mapping[int, _Field]) -> _Decode:
    """Messages of one kind, each a field of its own."""

    def read(data: bytes, _value: int, span: Span, before: Sequence[Any]) -> list[Any]:
        values = before if isinstance(before, list) else []
        values.append(_decoded(message, data, span))
        return values

    return read


_ORIGINAL_OP = {1: _Field("name", "", _text), 2: _Field("output_index", 0, _index), 4: _Field("layout")}


def _origin(data: bytes, _value: int, span: Span, _before: object) -> OriginalOp:
    values = _decoded(_ORIGINAL_OP, data, span)
    return OriginalOp(**values | {"layout": ge_layout_name(max(signed(values["layout"]), -1))})


_TENSOR = {
    1: _Field("dtype", by_ge_code(0), _dtype),
    2: _Field("layout"),  # as its number, which may have other things in its higher bits
    3: _Field("shape", (), _shape),
}
_INPUT = _TENSOR | {
    5: _Field("nbytes"),
    6: _Field("original_shape", None, _shape),
    7: _Field("sub_format"),
    8: _Field("address"),
    9: _Field("address_offset"),
}
_OUTPUT = _TENSOR | {
    4: _Field("original_op", None, _origin),
    6: _Field("nbytes"),
    7: _Field("original_shape", None, _shape),
    8: _Field("sub_format"),
    9: _Field("address"),
    11: _Field("address_offset"),
}
_LENGTHS = _several({3: _Field("size")})
"""Buffers and workspaces: both have their size in the third field."""
_RECORD = {
    2: _Field("dump_time"),
    3: _Field("outputs", (), _several(_OUTPUT)),
    4: _Field("inputs", (), _several(_INPUT)),
    5: _Field("buffers", (), _LENGTHS),
    6: _Field("op_name", "", _text),
    8: _Field("spaces", (), _LENGTHS),
}


def parse(data: bytes, start: int = 0, size: int | None = None) -> GeRecord:
    """The message in `data`; with the places of the values where a file of `size` has them from `start` on.

    Raises `WireError` for bytes that are no message.
    """
    values = _decoded(_RECORD, data, (0, len(data)))
    for name in ("buffers", "spaces"):
        values[name] = tuple(max(entry["size"], 0) for entry in values[name])
    split = len(values["inputs"])
    tensors = [*values["inputs"], *values["outputs"]]
    for described in tensors:
        # A field of bytes where a number belongs has the value -1.
        if min(described["nbytes"], described["address"], described["address_offset"]) < 0:
            raise WireError("a size, address or offset is not a number")
        layout = described["layout"]
        # Writers on the host leave C0 and the groups in the bits above the layout.
        groups = signed(described["sub_format"]) or (layout >> 8 & 0xFFFF if layout > 0xFF else 0)
        described["sub_format"] = groups
        described["layout"] = ge_layout_name(max(signed(layout), -1))
    places: list[int | None] = [None] * len(tensors)
    end = start
    if size is not None:
        places, end = _places(tensors, sum(values["buffers"]) + sum(values["spaces"]), start, size)
    ge_tensors = tuple(GeTensor(**described, place=place) for described, place in zip(tensors, places))
    values |= {
        "inputs": ge_tensors[:split],
        "outputs": ge_tensors[split:],
        "dump_time": max(values["dump_time"], 0),
    }
    return GeRecord(**values, start=start, end=end, size=size or 0)


def _places(
    tensors: Sequence[Mapping[str, Any]], rest: int, start: int, size: int
) -> tuple[list[int | None], int]:
    """The offset of the values of each tensor, and the end of all that is declared.

    Which of two rules the writer followed, values of null addresses there or not, shows in the file's
    size. Of a cut file it does not; then the rule of the device holds, unless no tensor has an address.
    """
    every = sum(described["nbytes"] for described in tensors)
    has_addresses = any(described["nbytes"] and described["address"] for described in tensors)
    stores_nulls = start + every + rest == size or not has_addresses
    places: list[int | None] = []
    for described in tensors:
        nbytes = described["nbytes"]
        is_stored = nbytes and (described["address"] or stores_nulls)
        places.append(start if is_stored else None)
        start += nbytes if is_stored else 0
    return places, start + rest
