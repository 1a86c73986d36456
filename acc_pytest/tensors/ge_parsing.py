"""The header of a GE record, parsed: `DumpData` in protobuf's wire format to `GeRecord`.

Fields nobody here needs are skipped, whatever their number; a step has tens of thousands of records, so this
is the one place of the room where calls are counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from .dtypes import DType
from .ge_codes import by_ge_code, ge_layout_name
from .ge_message import UNKNOWN_INDEX, GeRecord, GeTensor, OriginalOp
from .wire import Span, WireError, fields, signed, varint

_MOST_DIMS = 64

Shape = tuple[int, ...]
_Ranges = tuple[tuple[int, int], ...]

# The fields of a `GeTensor` in their order, all but its place, which only the whole message tells.
_Fields = tuple[DType, str, Shape, "Shape | None", int, int, int, int, "OriginalOp | None", _Ranges, int]


def parse(data: bytes, start: int = 0, size: int | None = None) -> GeRecord:
    """The message in `data`; with the places of the values where a file of `size` has them from `start` on.

    Raises `WireError` for bytes that are no message.
    """
    name = version = dfx = ""
    time = 0
    inputs: list[_Fields] = []
    outputs: list[_Fields] = []
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
    tensors = [*inputs, *outputs]
    places: list[int | None] = [None] * len(tensors)
    end = start
    if size is not None:
        places, end = _places(tensors, sum(buffers) + sum(spaces), start, size)
    made = tuple(GeTensor(*described, place) for described, place in zip(tensors, places))
    return GeRecord(
        name,
        max(time, 0),
        version,
        made[: len(inputs)],
        made[len(inputs) :],
        tuple(attrs),
        tuple(buffers),
        tuple(spaces),
        dfx,
        start,
        end,
        size or 0,
    )


def _places(tensors: Sequence[_Fields], rest: int, start: int, size: int) -> tuple[list[int | None], int]:
    """Where the values of each tensor begin, and where all that is declared ends.

    Which of two rules the writer followed, values of null addresses there or not, shows in the file's
    size. Of a cut file it does not; then the rule of the device holds, unless no tensor has an address.
    """
    every = sum(described[4] for described in tensors)
    known = any(described[4] and described[5] for described in tensors)
    all_there = start + every + rest == size or not known
    places: list[int | None] = []
    for described in tensors:
        nbytes, address = described[4], described[5]
        there = nbytes and (address or all_there)
        places.append(start if there else None)
        start += nbytes if there else 0
    return places, start + rest


def _output(data: bytes, span: Span) -> _Fields:
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


def _input(data: bytes, span: Span) -> _Fields:
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
    ranges: _Ranges,
    arg: int,
) -> _Fields:
    # A field of bytes where a number belongs has the value -1.
    if min(nbytes, address, offset, arg) < 0:
        raise WireError("a size, address or offset is no number")
    # Writers on the host leave C0 and the groups in the bits above the layout.
    groups = signed(sub_format) or (layout >> 8 & 0xFFFF if layout > 0xFF else 0)
    return (
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
        elif stop - at <= _MOST_DIMS and max(data[at:stop], default=0) < 0x80:
            into.extend(data[at:stop])  # small sizes, each its own byte
            continue
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
    known = None if not 0 <= index < UNKNOWN_INDEX else index
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
    return data[span[0] : span[1]].decode("utf-8", "surrogateescape")
