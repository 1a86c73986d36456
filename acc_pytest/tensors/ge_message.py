"""What a GE record says of itself: the protobuf message `DumpData`, parsed and serialised.

Types, layouts, shapes and sizes of all tensors of one operator, in a few hundred bytes. Fields nobody here
needs are skipped. The serialised text is that of protobuf itself: fields in rising order, zeros left out,
shapes there even when empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .dtypes import DType, by_ge_code, ge_code, ge_layout_code, ge_layout_name
from .wire import Span, WireError, bytes_field, encoded, fields, number_field, signed, text_field, varint

VERSION = "2.0"
DYNAMIC = (1 << 64) - 1
"""The offset that the executor of dynamic shapes writes: the address is that of the tensor itself."""

_FLOAT = by_ge_code(1)
_MOST_DIMS = 64
_UNKNOWN_INDEX = (1 << 32) - 1

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OriginalOp:
    """The operator of the graph, as it was before fusion, that computes an output of a fused one.

    `output_index` is `None` where the compiler did not know it.
    """

    name: str
    output_index: int | None = 0
    dtype: DType = _FLOAT
    layout: str = "nd"


@dataclass(frozen=True, slots=True)
class GeTensor:
    """One input or output in a record, as its header describes it.

    `shape` is that of the bytes, in the layout of the device; `original_shape` the logical one, `None` where
    the record has none. `nbytes` is what the record declares, padding included. `sub_format` counts the
    groups of a convolution's weights. `place` is where in the file its bytes begin, `None` for a tensor
    whose values are not there.
    """

    dtype: DType
    layout: str
    shape: Shape
    original_shape: Shape | None
    nbytes: int
    address: int = 0
    sub_format: int = 0
    address_offset: int = 0
    original_op: OriginalOp | None = None
    dim_range: tuple[tuple[int, int], ...] = ()
    arg_index: int = 0
    place: int | None = None

    @property
    def address_null(self) -> bool:
        """Whether the device gave no memory to the tensor, so that there was nothing to copy."""
        return self.address == 0

    @property
    def dynamic(self) -> bool:
        """Whether the executor of dynamic shapes wrote the record."""
        return self.address_offset == DYNAMIC


@dataclass(frozen=True, slots=True)
class GeRecord:
    """One record: an operator that ran once. `dump_time` is in microseconds since 1970.

    `buffers` and `spaces` are the lengths of what lies after the outputs: no tensors. `start` and `end` are
    where in the file the declared values begin and end, `size` is what the file has: less when it is cut.
    """

    op_name: str
    dump_time: int
    version: str
    inputs: tuple[GeTensor, ...]
    outputs: tuple[GeTensor, ...]
    attrs: tuple[tuple[str, str], ...] = ()
    buffers: tuple[int, ...] = ()
    spaces: tuple[int, ...] = ()
    dfx_message: str = ""
    start: int = 0
    end: int = 0
    size: int = 0


def parse(data: bytes) -> GeRecord:
    """The message in `data`. Raises `WireError` for bytes that are none."""
    name = version = dfx = ""
    time = 0
    inputs: list[GeTensor] = []
    outputs: list[GeTensor] = []
    attrs: list[tuple[str, str]] = []
    buffers: list[int] = []
    spaces: list[int] = []
    for number, value, span in fields(data, 0, len(data)):
        if number == 4:
            inputs.append(_input(data, span))
        elif number == 3:
            outputs.append(_output(data, span))
        elif number == 1:
            version = _text(data, span)
        elif number == 2:
            time = value
        elif number == 6:
            name = _text(data, span)
        elif number == 7:
            attrs.append(_attribute(data, span))
        elif number == 5:
            buffers.append(_length(data, span))
        elif number == 8:
            spaces.append(_length(data, span))
        elif number == 9:
            dfx = _text(data, span)
    return GeRecord(
        name,
        max(time, 0),
        version,
        tuple(inputs),
        tuple(outputs),
        tuple(attrs),
        tuple(buffers),
        tuple(spaces),
        dfx,
    )


def _output(data: bytes, span: Span) -> GeTensor:
    dtype = layout = nbytes = sub_format = address = offset = arg = 0
    shape: list[int] = []
    original: list[int] | None = None
    ranges: list[tuple[int, int]] = []
    origin: OriginalOp | None = None
    for number, value, inner in fields(data, *span):
        if number == 1:
            dtype = value
        elif number == 2:
            layout = value
        elif number == 3:
            _dims(data, inner, shape)
        elif number == 4:
            origin = _original(data, inner)
        elif number == 6:
            nbytes = value
        elif number == 7:
            original = original if original is not None else []
            _dims(data, inner, original)
        elif number == 8:
            sub_format = value
        elif number == 9:
            address = value
        elif number == 10:
            ranges.append(_range(data, inner))
        elif number == 11:
            offset = value
        elif number == 12:
            arg = value
    return _tensor(
        dtype, layout, shape, original, nbytes, address, sub_format, offset, origin, tuple(ranges), arg
    )


def _input(data: bytes, span: Span) -> GeTensor:
    dtype = layout = nbytes = sub_format = address = offset = arg = 0
    shape: list[int] = []
    original: list[int] | None = None
    for number, value, inner in fields(data, *span):
        if number == 1:
            dtype = value
        elif number == 2:
            layout = value
        elif number == 3:
            _dims(data, inner, shape)
        elif number == 5:
            nbytes = value
        elif number == 6:
            original = original if original is not None else []
            _dims(data, inner, original)
        elif number == 7:
            sub_format = value
        elif number == 8:
            address = value
        elif number == 9:
            offset = value
        elif number == 10:
            arg = value
    return _tensor(dtype, layout, shape, original, nbytes, address, sub_format, offset, None, (), arg)


def _tensor(
    dtype: int,
    layout: int,
    shape: list[int],
    original: list[int] | None,
    nbytes: int,
    address: int,
    sub_format: int,
    offset: int,
    origin: OriginalOp | None,
    ranges: tuple[tuple[int, int], ...],
    arg: int,
) -> GeTensor:
    # A field of bytes where a number belongs has the value -1.
    if min(nbytes, address, offset, arg) < 0:
        raise WireError("a size, address or offset is no number")
    # Writers on the host leave C0 and the groups in the bits above the layout.
    groups = signed(sub_format) or (layout >> 8 & 0xFFFF if layout > 0xFF else 0)
    return GeTensor(
        by_ge_code(signed(dtype)),
        ge_layout_name(max(signed(layout), -1)),
        tuple(shape),
        None if original is None else tuple(original),
        nbytes,
        address,
        groups,
        offset,
        origin,
        ranges,
        arg,
    )


def _dims(data: bytes, span: Span, into: list[int]) -> None:
    """The dimensions of a `Shape`, packed as proto3 writes them or one by one."""
    for number, value, (at, stop) in fields(data, *span):
        if number != 1:
            continue
        if value >= 0:
            into.append(value)
        while at < stop and len(into) <= _MOST_DIMS:
            size, at = varint(data, at, stop)
            into.append(size)
        if len(into) > _MOST_DIMS:
            raise WireError(f"a shape of more than {_MOST_DIMS} dimensions")


def _original(data: bytes, span: Span) -> OriginalOp:
    name, index, dtype, layout = "", 0, 0, 0
    for number, value, inner in fields(data, *span):
        if number == 1:
            name = _text(data, inner)
        elif number == 2:
            index = value
        elif number == 3:
            dtype = value
        elif number == 4:
            layout = value
    known = None if not 0 <= index < _UNKNOWN_INDEX else index
    return OriginalOp(name, known, by_ge_code(signed(dtype)), ge_layout_name(max(signed(layout), -1)))


def _range(data: bytes, span: Span) -> tuple[int, int]:
    found = {number: value for number, value, _ in fields(data, *span)}
    return found.get(1, 0), found.get(2, 0)


def _attribute(data: bytes, span: Span) -> tuple[str, str]:
    found = {number: _text(data, inner) for number, _, inner in fields(data, *span)}
    return found.get(1, ""), found.get(2, "")


def _length(data: bytes, span: Span) -> int:
    """The size of a buffer or workspace, which both have in their third field."""
    found = {number: value for number, value, _ in fields(data, *span)}
    return max(found.get(3, 0), 0)


def _text(data: bytes, span: Span) -> str:
    return data[span[0] : span[1]].decode("utf-8", "replace")


def serialise(record: GeRecord) -> bytes:
    """The bytes of the message, equal to those of protobuf's own serialisation."""
    return b"".join(
        (
            text_field(1, record.version),
            number_field(2, record.dump_time),
            *(bytes_field(3, _output_bytes(tensor)) for tensor in record.outputs),
            *(bytes_field(4, _input_bytes(tensor)) for tensor in record.inputs),
            *(bytes_field(5, number_field(3, length)) for length in record.buffers),
            text_field(6, record.op_name),
            *(bytes_field(7, text_field(1, name) + text_field(2, value)) for name, value in record.attrs),
            *(bytes_field(8, number_field(3, length)) for length in record.spaces),
            text_field(9, record.dfx_message),
        )
    )


def _output_bytes(tensor: GeTensor) -> bytes:
    origin = tensor.original_op
    return b"".join(
        (
            _described(tensor),
            bytes_field(4, _original_bytes(origin)) if origin is not None else b"",
            number_field(6, tensor.nbytes),
            _shape_field(7, tensor.original_shape),
            number_field(8, tensor.sub_format),
            number_field(9, tensor.address),
            *(
                bytes_field(10, number_field(1, low) + number_field(2, high))
                for low, high in tensor.dim_range
            ),
            number_field(11, tensor.address_offset),
            number_field(12, tensor.arg_index),
        )
    )


def _input_bytes(tensor: GeTensor) -> bytes:
    return b"".join(
        (
            _described(tensor),
            number_field(5, tensor.nbytes),
            _shape_field(6, tensor.original_shape),
            number_field(7, tensor.sub_format),
            number_field(8, tensor.address),
            number_field(9, tensor.address_offset),
            number_field(10, tensor.arg_index),
        )
    )


def _described(tensor: GeTensor) -> bytes:
    layout = ge_layout_code(tensor.layout)
    return number_field(1, ge_code(tensor.dtype)) + number_field(2, layout) + _shape_field(3, tensor.shape)


def _original_bytes(origin: OriginalOp) -> bytes:
    index = _UNKNOWN_INDEX if origin.output_index is None else origin.output_index
    return b"".join(
        (
            text_field(1, origin.name),
            number_field(2, index),
            number_field(3, ge_code(origin.dtype)),
            number_field(4, ge_layout_code(origin.layout)),
        )
    )


def _shape_field(number: int, shape: Sequence[int] | None) -> bytes:
    if shape is None:
        return b""
    dims = b"".join(map(encoded, shape))
    return bytes_field(number, bytes_field(1, dims) if dims else b"")
