"""One tensor of a GE record: its header and its values, out of the device's layout and types."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator

from ..base.imports import torch
from ..errors import FormatError, NoPayload
from .atb_bin import number
from .device_layouts import Conversion, conversion, is_tiled
from .dtypes import DType, by_name
from .file_bytes import byte_count, mapped
from .ge_message import GeRecord, GeTensor, by_ge_name, ge_layout_code
from .ge_record import is_record, read_record
from .header import Location, Statistics, TensorHeader, member_of
from .packed import decoded, is_packed, unpack


class GeFile:
    """The format object of GE records; `TensorRef.member` is `inputs/0`, `outputs/1`, ..."""

    name = "GE record"

    def matches(self, head: bytes) -> bool:
        """Whether these first bytes are the length of a header and the start of that header."""
        return is_record(head)

    def header(self, place: Location) -> TensorHeader:
        """Type and shape that opening gives, checked against the file. Raises `FormatError`.

        `layout` is that of the opened tensor: `nd` for one brought out of the device's layout, the name of
        the layout for one that could not be, which then has the stored shape.
        """
        record = read_record(place.path)
        tensor = _tensor(place, record)
        dtype, stored = _described(tensor)
        needed = byte_count(str(place), stored, dtype.bits)
        rule = rule_of(tensor)
        shape = stored if rule is None else rule.shape
        byte_count(str(place), shape, dtype.bits)
        layout = "nd" if rule is not None and (is_tiled(tensor.layout) or rule.moves) else tensor.layout
        if tensor.place is None and (needed or not dtype.bits):
            return TensorHeader(decoded(dtype), shape, "description", layout=layout)
        if record.end < record.size:
            raise FormatError(
                f"{place.path}: has {record.size - record.end} bytes more than its header declares; "
                "the header does not belong to these values"
            )
        if tensor.nbytes < needed:
            raise FormatError(
                f"{place}: declares {tensor.nbytes} bytes, but {dtype} {list(stored)} takes {needed}"
            )
        offset = tensor.place or record.start
        nbytes = needed if dtype.bits else tensor.nbytes
        if offset + nbytes > record.size:
            raise FormatError(
                f"{place}: is truncated: needs {nbytes} bytes at offset {offset}, the file has "
                f"{record.size}; was the dump interrupted or the disk full?"
            )
        plain = not is_packed(dtype) and (rule is None or rule.is_plain)
        return TensorHeader(decoded(dtype), shape, offset=offset, nbytes=nbytes, layout=layout, plain=plain)

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """The logical tensor, mapped; a view of the mapping where strides allow it.

        Raises `FormatError`, `CannotDecode`, or `NoPayload` for a tensor without memory on the device.
        """
        tensor = _tensor(place, read_record(place.path))
        if header.payload != "data":
            why = "had no memory on the device (null address)" if tensor.address_null else "has size 0"
            raise NoPayload(f"{place}: {why}, so the record holds no values")
        dtype, stored = _described(tensor)
        into = header.dtype.torch_dtype(place)
        if is_packed(dtype):
            values = mapped(place.path, torch.uint8, (header.nbytes,), header.offset)
            stored_values = unpack(values, dtype, math.prod(stored)).reshape(stored)
        else:
            stored_values = mapped(place.path, into, stored, header.offset)
        rule = rule_of(tensor)
        return stored_values if rule is None else rule.to_logical(stored_values)


FORMAT = GeFile()


def members(path: str) -> tuple[str, ...]:
    """The names of all tensors in a record, inputs first. Raises `FormatError`, `CannotDecode`."""
    return tuple(read_record(path).tensors)


def rule_of(tensor: GeTensor) -> Conversion | None:
    """The conversion of a tensor out of the device's layout; `None` for one that stays in it.

    That is so for layouts nobody here can undo, FRACTAL_Z of several groups among them, and for records
    whose logical shape is missing or does not fit the stored one.
    """
    _, stored = _described(tensor)
    if tensor.original_shape is None:
        return None
    hint = tensor.original_op.layout if tensor.original_op is not None else ""
    return conversion(tensor.layout, stored, tensor.original_shape, groups=tensor.sub_format, hint=hint)


def _described(tensor: GeTensor) -> tuple[DType, tuple[int, ...]]:
    """Type and stored shape; a tensor of no type is bytes, as CANN's own parser has it."""
    if tensor.dtype.name == "undefined":
        return by_name("int8"), (tensor.nbytes,)
    return tensor.dtype, tensor.shape


def _tensor(place: Location, record: GeRecord) -> GeTensor:
    if not place.member and len(record.outputs) == 1:
        return record.outputs[0]
    return member_of(place, record.tensors, "tensor")


# Statistics files of GE (`dump_data="stats"`): `{record name}.csv`, a row per input and output of a record.
#
# The first six columns are always there. Then come the values: seven of them from the host, or, from devices
# that let choose, `Count` and those that were chosen.


GE_COLUMNS = "Input/Output,Index,Data Size,Data Type,Format,Shape"
_SHAPE = re.compile(r"\d{1,19}(x\d{1,19})*")
_KINDS = {"Input": "inputs", "Output": "outputs"}


def ge_headers(path: str, lines: list[str]) -> Iterator[tuple[str, TensorHeader]]:
    """Member and header of every row of a file that was read. Raises `FormatError`."""
    try:
        table = list(csv.reader(lines))
    except csv.Error as error:
        raise FormatError(f"{path}: is not a valid CSV: {error}") from error
    first = [cell.strip() for cell in table[0]] if table else []
    if ",".join(first[:6]) != GE_COLUMNS:
        raise FormatError(
            f"{path}: is not a statistics file of GE: its first line is {','.join(first)[:60]!r}"
        )
    for line, cells in enumerate(table[1:], start=2):
        if not cells:
            continue
        if len(cells) != len(first):
            raise FormatError(
                f"{path}: line {line} has {len(cells)} columns instead of {len(first)}; "
                "was the dump interrupted?"
            )
        values = dict(zip(first[6:], cells[6:]))
        kind, index, nbytes, dtype, layout, shape = (cell.strip() for cell in cells[:6])
        are_numbers = all(re.fullmatch(r"\d{1,19}", text) for text in (index, nbytes))
        if kind not in _KINDS or not are_numbers or not (shape in ("", "-") or _SHAPE.fullmatch(shape)):
            raise FormatError(
                f"{path}: line {line} describes neither an input nor an output: {','.join(cells[:6])[:80]!r}"
            )
        element_type = by_ge_name(dtype)
        sizes = tuple(map(int, shape.split("x"))) if shape not in ("", "-") else ()
        byte_count(path, sizes, element_type.bits)
        statistics = Statistics(
            *(number(values.get(item, "")) for item in ("Max Value", "Min Value", "Avg Value", "l2norm"))
        )
        name = layout.lower() if ge_layout_code(layout) >= 0 else f"undefined({layout[:40]})"
        yield (
            f"{_KINDS[kind]}/{int(index)}",
            TensorHeader(element_type, sizes, "statistics", layout=name, statistics=statistics),
        )
