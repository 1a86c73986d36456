"""GE records: all inputs and outputs of one operator in one file, as the device writes them. Both ways.

Eight bytes with the length of the header, the header (`ge_message`), then the values: inputs, outputs,
buffers, workspaces, back to back. A tensor to which the device gave no memory (a null address) is
described and has no values.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..base.imports import torch
from ..errors import AccError, CannotDecode, FormatError
from .device_layouts import conversion, stored_shape
from .dtypes import by_name, by_torch
from .file_bytes import opened
from .ge_message import (
    DYNAMIC,
    VERSION,
    GeRecord,
    GeTensor,
    OriginalOp,
    by_ge_code,
    ge_code,
    ge_layout_code,
    ge_layout_name,
)
from .header import until_changed
from .packed import is_packed, pack
from .whole_file import whole_file
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

__all__ = ["GeRecord", "GeTensor", "GeValue", "OriginalOp", "hashed_name", "read_record", "write_record"]

MAPPING_FILE = "mapping.csv"
"""Beside records whose names the file system did not take: `{file name},{name}` line by line."""

_LENGTH = 8
_FIRST_READ = 4096
_LONGEST_HEADER = 4 << 20
_NANO = b"\x5a\x5a\x5a\x5a"
# Tags of the fields 1 to 9 of the message, one of which is its first byte.
_FIRST_BYTES = frozenset(b"\x0a\x10\x1a\x22\x2a\x32\x3a\x42\x4a")
_LONGEST_NAME = 255
_FIRST_ADDRESS = 0x1000


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


@dataclass(frozen=True, slots=True)
class GeValue:
    """A logical tensor, and how a record shall hold it.

    `c0` is the width of the device's tiles, 0 for what fits the type. `channels` is the order of the
    logical dimensions, as in `device_layouts.stored_shape`. `dtype` names a type that torch has not, such as
    `int4`, whose values `tensor` holds. `padding` are bytes behind the values that belong to no element.
    `null` describes the tensor without its values. `stored` gives the tensor of the device as it is, for
    layouts nobody here can make; the logical shape is `shape`, then. `address` is where the device kept it, a
    place of its own unless given.
    """

    tensor: torch.Tensor
    layout: str = "nd"
    c0: int = 0
    channels: str = "nchw"
    dtype: str = ""
    padding: int = 0
    null: bool = False
    sub_format: int = 0
    dynamic: bool = False
    original_op: OriginalOp | None = None
    shape: tuple[int, ...] | None = None
    stored: bool = False
    address: int = 0


def write_record(
    path: str | os.PathLike[str],
    op_name: str,
    inputs: Sequence[torch.Tensor | GeValue] = (),
    outputs: Sequence[torch.Tensor | GeValue] = (),
    *,
    dump_time: int | None = None,
    version: str = VERSION,
    attrs: Sequence[tuple[str, str]] = (),
    buffers: Sequence[bytes] = (),
    spaces: Sequence[bytes] = (),
) -> str:
    """Write a record as the device does, and return the path of the file.

    `dump_time` is in microseconds since 1970, now by default. A name too long for a file becomes its hash,
    which `mapping.csv` beside it resolves. The file is whole or not there. Raises `AccError` where it cannot
    be: `CannotDecode` for a type GE has not, `FormatError` for a layout that does not hold the shape.
    """
    values = [value if isinstance(value, GeValue) else GeValue(value) for value in (*inputs, *outputs)]
    entries = [_described(value, _FIRST_ADDRESS * place) for place, value in enumerate(values, start=1)]
    split = len(inputs)
    record = GeRecord(
        op_name,
        time.time_ns() // 1000 if dump_time is None else dump_time,
        version,
        tuple(tensor for tensor, _ in entries[:split]),
        tuple(tensor for tensor, _ in entries[split:]),
        tuple(attrs),
        tuple(map(len, buffers)),
        tuple(map(len, spaces)),
    )
    header = serialise(record)
    target = _fitting(Path(path))
    with whole_file(target) as file:
        file.write(len(header).to_bytes(_LENGTH, "little") + header)
        for value, (_, payload) in zip(values, entries):
            if not value.null:
                file.writelines([payload.numpy().data, bytes(value.padding)])
        file.writelines([*buffers, *spaces])
    return str(target)


def _described(value: GeValue, address: int) -> tuple[GeTensor, torch.Tensor]:
    """The description of a value, and its bytes."""
    tensor = value.tensor.detach().cpu()
    dtype = by_name(value.dtype) if value.dtype else by_torch(tensor.dtype)
    logical = tuple(tensor.shape) if value.shape is None else value.shape
    shape = tuple(tensor.shape)
    if not value.stored:
        shape = stored_shape(
            value.layout, logical, value.c0 or {4: 64, 8: 32}.get(dtype.bits, 16), value.channels
        )
        rule = conversion(value.layout, shape, logical, groups=value.sub_format, hint=value.channels)
        if rule is None:
            raise FormatError(f"a tensor {list(logical)} cannot be stored as {value.layout} {list(shape)}")
        tensor = rule.to_stored(tensor)
    flat = tensor.contiguous().reshape(-1)
    payload = pack(flat, dtype) if is_packed(dtype) else flat.view(torch.uint8)
    described = GeTensor(
        dtype,
        value.layout,
        shape,
        logical,
        payload.numel() + value.padding,
        address=0 if value.null else value.address or address,
        sub_format=value.sub_format,
        address_offset=DYNAMIC if value.dynamic else 0,
        original_op=value.original_op,
    )
    return described, payload


def _fitting(path: Path) -> Path:
    """The path itself, or where its name is too long, the path under the name's hash."""
    if len(os.fsencode(path.name)) <= _LONGEST_NAME:
        return path
    short = path.with_name(hashed_name(path.name))
    try:
        short.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_name(MAPPING_FILE), "a", encoding="utf-8") as file:
            file.write(f"{short.name},{path.name}\n")
    except OSError as error:
        raise AccError(f"{path.parent}: cannot be written: {error.strerror}") from error
    return short


def hashed_name(name: str) -> str:
    """The decimal `std::hash` of a name on 64-bit Linux, under which the device writes a name too long.

    That is MurmurHash2 of 64 bits as libstdc++ has it: https://gcc.gnu.org/git, `hash_bytes.cc`.
    """
    data = name.encode("utf-8")
    mask, factor = (1 << 64) - 1, 0xC6A4A7935BD1E995
    digest = 0xC70F6907 ^ (len(data) * factor & mask)
    boundary = len(data) & ~7
    for start in range(0, boundary, 8):
        word = int.from_bytes(data[start : start + 8], "little") * factor & mask
        digest = (digest ^ ((word ^ word >> 47) * factor & mask)) * factor & mask
    if boundary < len(data):
        digest = (digest ^ int.from_bytes(data[boundary:], "little")) * factor & mask
    digest = (digest ^ digest >> 47) * factor & mask
    return str(digest ^ digest >> 47)


# The fields of the protobuf message `DumpData`, in one table for reading and writing.
#
# What is written is what protobuf itself writes: fields in rising order, zeros left out, shapes there even
# when empty. Fields nobody here needs are skipped, whatever their number. A step has tens of thousands of
# records, so this is the one place of the room where calls are counted.


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


_NUMBER = _Kind(number_field, None, 0)
_TEXT = _Kind(text_field, _text, "")
_DTYPE = _Kind(
    lambda number, dtype: number_field(number, ge_code(dtype)),
    lambda _data, value, _span, _before: by_ge_code(signed(value)),
    by_ge_code(0),
)
# A layout is read as its number, which may have other things in its higher bits.
_LAYOUT = _Kind(lambda number, layout: number_field(number, ge_layout_code(layout)), None, 0)
_SHAPE = _Kind(_encode_shape, _decode_shape, ())
_SHAPE_OR_NONE = _Kind(_encode_shape, _decode_shape, None)
_INDEX = _Kind(
    lambda number, index: number_field(number, _UNKNOWN_INDEX if index is None else index),
    lambda _data, value, _span, _before: value if 0 <= value < _UNKNOWN_INDEX else None,
    0,
)


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


def _decode_origin(data: bytes, _value: int, span: Span, _before: object) -> OriginalOp:
    values = _ORIGINAL_OP.decode(data, span)
    return OriginalOp(**{**values, "layout": ge_layout_name(max(signed(values["layout"]), -1))})


def _decode_pair(data: bytes, span: Span) -> tuple[int, int]:
    values = {number: value for number, value, _ in fields(data, *span)}
    return values.get(1, 0), values.get(2, 0)


def _decode_attribute(data: bytes, span: Span) -> tuple[str, str]:
    texts = {number: _text(data, value, inner) for number, value, inner in fields(data, *span)}
    return texts.get(1, ""), texts.get(2, "")


def _decode_length(data: bytes, span: Span) -> int:
    """The size of a buffer or workspace, which both have in their third field."""
    values = {number: value for number, value, _ in fields(data, *span)}
    return max(values.get(3, 0), 0)


_ORIGIN = _Kind(
    lambda number, origin: b"" if origin is None else bytes_field(number, _ORIGINAL_OP.encode(origin)),
    _decode_origin,
    None,
)
_RANGES = _repeated(lambda pair: number_field(1, pair[0]) + number_field(2, pair[1]), _decode_pair)
_LENGTHS = _repeated(lambda length: number_field(3, length), _decode_length)
_ATTRIBUTES = _repeated(lambda pair: text_field(1, pair[0]) + text_field(2, pair[1]), _decode_attribute)

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
