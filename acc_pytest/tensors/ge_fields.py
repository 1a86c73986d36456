"""The fields of the protobuf message `DumpData`, in one table for reading and writing.

What is written is what protobuf itself writes: fields in rising order, zeros left out, shapes there even when
empty. Fields nobody here needs are skipped, whatever their number. A step has tens of thousands of records,
so this is the one place of the room where calls are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .dtypes import DType
from .ge_codes import by_ge_code, ge_code, ge_layout_code, ge_layout_name
from .ge_message import GeRecord, GeTensor, OriginalOp
from .wire import (
    BYTES,
    Span,
    WireError,
    bytes_field,
    encoded,
    fields,
    number_field,
    signed,
    text_field,
    varint,
)

_UNKNOWN_INDEX = (1 << 32) - 1
_MOST_DIMS = 64
_PACKED = 1 << 3 | BYTES
"""The tag before the packed dimensions of a shape."""


class _Kind(NamedTuple):
    """Coding of the fields of one kind: how one is written, and how one that is read changes the value.

    `encode` takes the number of the field and the value of the attribute; `decode` the message, the field's
    number (-1 for bytes) and span, and the value so far, at first `default`. Without it the number counts.
    """

    encode: Callable[[int, Any], bytes]
    decode: Callable[[bytes, int, Span, Any], Any] | None
    default: Any


class _Message:
    """A message: kinds of its fields by number, with the attributes that hold their values."""

    def __init__(self, *table: tuple[int, str, _Kind]) -> None:
        self._table = table
        self._decoders = {number: (name, kind.decode) for number, name, kind in table}
        self._defaults = {name: kind.default for _, name, kind in table}

    def encode(self, source: object) -> bytes:
        """The bytes of the message with the attributes of `source`."""
        return b"".join([kind.encode(number, getattr(source, name)) for number, name, kind in self._table])

    def decode(self, data: bytes, span: Span) -> dict[str, Any]:
        """The attributes of the message that lies at `span`. Raises `WireError`."""
        values = self._defaults.copy()
        for number, value, inner in fields(data, *span):
            decoder = self._decoders.get(number)
            if decoder is not None:
                name, decode = decoder
                values[name] = value if decode is None else decode(data, value, inner, values[name])
        return values


def _text(data: bytes, _value: int, span: Span, _before: object = None) -> str:
    return data[span[0] : span[1]].decode("utf-8", "surrogateescape")


def _encode_shape(number: int, shape: Sequence[int] | None) -> bytes:
    if shape is None:
        return b""
    dims = b"".join(map(encoded, shape))
    return bytes_field(number, bytes_field(1, dims) if dims else b"")


def _decode_shape(data: bytes, _value: int, span: Span, before: tuple[int, ...] | None) -> tuple[int, ...]:
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


def _encode_index(number: int, index: int | None) -> bytes:
    return number_field(number, _UNKNOWN_INDEX if index is None else index)


def _decode_index(_data: bytes, value: int, _span: Span, _before: object) -> int | None:
    return value if 0 <= value < _UNKNOWN_INDEX else None


def _encode_dtype(number: int, dtype: DType) -> bytes:
    return number_field(number, ge_code(dtype))


def _decode_dtype(_data: bytes, value: int, _span: Span, _before: object) -> DType:
    return by_ge_code(signed(value))


def _encode_layout(number: int, layout: str) -> bytes:
    return number_field(number, ge_layout_code(layout))


_NUMBER = _Kind(number_field, None, 0)
_TEXT = _Kind(text_field, _text, "")
_DTYPE = _Kind(_encode_dtype, _decode_dtype, by_ge_code(0))
# A layout is read as its number, which may have other things in its higher bits.
_LAYOUT = _Kind(_encode_layout, None, 0)
_SHAPE = _Kind(_encode_shape, _decode_shape, ())
_SHAPE_OR_NONE = _Kind(_encode_shape, _decode_shape, None)
_INDEX = _Kind(_encode_index, _decode_index, 0)


def _repeated(encode: Callable[[Any], bytes], decode: Callable[[bytes, Span], Any]) -> _Kind:
    """Messages of one kind, each a field of its own."""

    def write(number: int, values: Iterable[Any]) -> bytes:
        return b"".join([bytes_field(number, encode(value)) for value in values])

    def read(data: bytes, _value: int, span: Span, before: Sequence[Any]) -> list[Any]:
        values = before if isinstance(before, list) else []
        values.append(decode(data, span))
        return values

    return _Kind(write, read, ())


_ORIGINAL_OP = _Message(
    (1, "name", _TEXT), (2, "output_index", _INDEX), (3, "dtype", _DTYPE), (4, "layout", _LAYOUT)
)


def _encode_origin(number: int, origin: OriginalOp | None) -> bytes:
    return b"" if origin is None else bytes_field(number, _ORIGINAL_OP.encode(origin))


def _decode_origin(data: bytes, _value: int, span: Span, _before: object) -> OriginalOp:
    values = _ORIGINAL_OP.decode(data, span)
    return OriginalOp(**{**values, "layout": ge_layout_name(max(signed(values["layout"]), -1))})


def _encode_pair(pair: tuple[int, int]) -> bytes:
    return number_field(1, pair[0]) + number_field(2, pair[1])


def _decode_pair(data: bytes, span: Span) -> tuple[int, int]:
    values = {number: value for number, value, _ in fields(data, *span)}
    return values.get(1, 0), values.get(2, 0)


def _encode_attribute(attribute: tuple[str, str]) -> bytes:
    return text_field(1, attribute[0]) + text_field(2, attribute[1])


def _decode_attribute(data: bytes, span: Span) -> tuple[str, str]:
    texts = {number: _text(data, value, inner) for number, value, inner in fields(data, *span)}
    return texts.get(1, ""), texts.get(2, "")


def _encode_length(length: int) -> bytes:
    return number_field(3, length)


def _decode_length(data: bytes, span: Span) -> int:
    """The size of a buffer or workspace, which both have in their third field."""
    values = {number: value for number, value, _ in fields(data, *span)}
    return max(values.get(3, 0), 0)


_ORIGIN = _Kind(_encode_origin, _decode_origin, None)
_RANGES = _repeated(_encode_pair, _decode_pair)
_LENGTHS = _repeated(_encode_length, _decode_length)
_ATTRIBUTES = _repeated(_encode_attribute, _decode_attribute)

_INPUT = _Message(
    (1, "dtype", _DTYPE),
    (2, "layout", _LAYOUT),
    (3, "shape", _SHAPE),
    (5, "nbytes", _NUMBER),
    (6, "original_shape", _SHAPE_OR_NONE),
    (7, "sub_format", _NUMBER),
    (8, "address", _NUMBER),
    (9, "address_offset", _NUMBER),
    (10, "arg_index", _NUMBER),
)
_OUTPUT = _Message(
    (1, "dtype", _DTYPE),
    (2, "layout", _LAYOUT),
    (3, "shape", _SHAPE),
    (4, "original_op", _ORIGIN),
    (6, "nbytes", _NUMBER),
    (7, "original_shape", _SHAPE_OR_NONE),
    (8, "sub_format", _NUMBER),
    (9, "address", _NUMBER),
    (10, "dim_range", _RANGES),
    (11, "address_offset", _NUMBER),
    (12, "arg_index", _NUMBER),
)
_RECORD = _Message(
    (1, "version", _TEXT),
    (2, "dump_time", _NUMBER),
    (3, "outputs", _repeated(_OUTPUT.encode, _OUTPUT.decode)),
    (4, "inputs", _repeated(_INPUT.encode, _INPUT.decode)),
    (5, "buffers", _LENGTHS),
    (6, "op_name", _TEXT),
    (7, "attrs", _ATTRIBUTES),
    (8, "spaces", _LENGTHS),
    (9, "dfx_message", _TEXT),
)


def serialise(record: GeRecord) -> bytes:
    """The bytes of the message, equal to those of protobuf's own serialisation."""
    return _RECORD.encode(record)


def parse(data: bytes, start: int = 0, size: int | None = None) -> GeRecord:
    """The message in `data`; with the places of the values where a file of `size` has them from `start` on.

    Raises `WireError` for bytes that are no message.
    """
    values = _RECORD.decode(data, (0, len(data)))
    split = len(values["inputs"])
    tensors = [*values["inputs"], *values["outputs"]]
    for described in tensors:
        _settle(described)
    places: list[int | None] = [None] * len(tensors)
    end = start
    if size is not None:
        places, end = _places(tensors, sum(values["buffers"]) + sum(values["spaces"]), start, size)
    ge_tensors = tuple(GeTensor(**described, place=place) for described, place in zip(tensors, places))
    values |= {name: tuple(values[name]) for name in ("attrs", "buffers", "spaces")}
    values |= {
        "inputs": ge_tensors[:split],
        "outputs": ge_tensors[split:],
        "dump_time": max(values["dump_time"], 0),
    }
    return GeRecord(**values, start=start, end=end, size=size or 0)


def _settle(described: dict[str, Any]) -> None:
    """Make attributes of what was read of a tensor. Raises `WireError` for a size that is no number."""
    # A field of bytes where a number belongs has the value -1.
    sizes = described["nbytes"], described["address"], described["address_offset"], described["arg_index"]
    if min(sizes) < 0:
        raise WireError("a size, address or offset is not a number")
    layout = described["layout"]
    # Writers on the host leave C0 and the groups in the bits above the layout.
    groups = signed(described["sub_format"]) or (layout >> 8 & 0xFFFF if layout > 0xFF else 0)
    described["sub_format"] = groups
    described["layout"] = ge_layout_name(max(signed(layout), -1))
    described["dim_range"] = tuple(described.get("dim_range", ()))


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
