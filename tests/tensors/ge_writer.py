"""GE records of every kind, serialised by protobuf's own library, with the layouts of the device."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from acc_pytest.errors import AccError, FormatError
from acc_pytest.lab.demo.torchair.records import hashed_name
from acc_pytest.tensors import hifloat8
from acc_pytest.tensors.device_layouts import _CHANNELS_FIRST, _NZ_COLUMNS, _TILED, TILE, _tiles, conversion
from acc_pytest.tensors.dtypes import DType, by_name, by_torch
from acc_pytest.tensors.ge_message import GeRecord, GeTensor, OriginalOp, ge_code, ge_layout_code
from acc_pytest.tensors.ge_record import MAPPING_FILE
from acc_pytest.tensors.packed import _VALUES, _shifts, is_packed
from acc_pytest.tensors.whole_file import whole_file

Shape = tuple[int, ...]
DYNAMIC = (1 << 64) - 1
"""The offset that the executor of dynamic shapes writes: the address is that of the tensor itself."""
_UNKNOWN_INDEX = (1 << 32) - 1
_LENGTH = 8
_LONGEST_NAME = 255
_FIRST_ADDRESS = 0x1000


@dataclass(frozen=True, slots=True)
class GeValue:
    """A logical tensor, and how a record shall hold it.

    `c0` is the width of the device's tiles, 0 for what fits the type. `channels` is the order of the
    logical dimensions, as in `stored_shape`. `dtype` names a type that torch has not, such as
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
    version: str = "2.0",
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
        tuple(tensor for tensor, _ in entries[:split]),
        tuple(tensor for tensor, _ in entries[split:]),
        tuple(map(len, buffers)),
        tuple(map(len, spaces)),
    )
    header = serialise(record, version, attrs)
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


def serialise(record: GeRecord, version: str = "2.0", attrs: Sequence[tuple[str, str]] = ()) -> bytes:
    """The bytes of the message, as protobuf writes them."""
    message = DumpData(version=version, dump_time=record.dump_time, op_name=record.op_name)
    for tensor in record.outputs:
        described = message.output.add()
        _fill(described, tensor)
        if (origin := tensor.original_op) is not None:
            index = _UNKNOWN_INDEX if origin.output_index is None else origin.output_index
            described.original_op.name, described.original_op.output_index = origin.name, index
            described.original_op.data_type, described.original_op.format = 1, ge_layout_code(origin.layout)
    for tensor in record.inputs:
        _fill(message.input.add(), tensor)
    for size in record.buffers:
        message.buffer.add(size=size)
    for size in record.spaces:
        message.space.add(size=size)
    for name, value in attrs:
        message.attr.add(name=name, value=value)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _fill(described: Any, tensor: GeTensor) -> None:
    described.data_type, described.format = ge_code(tensor.dtype), ge_layout_code(tensor.layout)
    described.shape.dim.extend(tensor.shape)
    described.shape.SetInParent()
    if tensor.original_shape is not None:
        described.original_shape.dim.extend(tensor.original_shape)
        described.original_shape.SetInParent()
    described.size, described.sub_format = tensor.nbytes, tensor.sub_format
    described.address, described.offset = tensor.address, tensor.address_offset


# `DumpData` for protobuf's own library, made from the facts of the format (onnx brings the library along).
_TYPES = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _TYPES.TYPE_STRING,
    "bytes": _TYPES.TYPE_BYTES,
    "uint64": _TYPES.TYPE_UINT64,
    "uint32": _TYPES.TYPE_UINT32,
    "int32": _TYPES.TYPE_INT32,
}
_MESSAGES: dict[str, list[tuple[int, str, str]]] = {
    "Shape": [(1, "repeated uint64", "dim")],
    "DimRange": [(1, "uint64", "dim_start"), (2, "uint64", "dim_end")],
    "OriginalOp": [
        (1, "string", "name"),
        (2, "uint32", "output_index"),
        (3, "int32", "data_type"),
        (4, "int32", "format"),
    ],
    "OpOutput": [
        (1, "int32", "data_type"),
        (2, "int32", "format"),
        (3, "Shape", "shape"),
        (4, "OriginalOp", "original_op"),
        (5, "bytes", "data"),
        (6, "uint64", "size"),
        (7, "Shape", "original_shape"),
        (8, "int32", "sub_format"),
        (9, "uint64", "address"),
        (10, "repeated DimRange", "dim_range"),
        (11, "uint64", "offset"),
        (12, "uint32", "arg_index"),
    ],
    "OpInput": [
        (1, "int32", "data_type"),
        (2, "int32", "format"),
        (3, "Shape", "shape"),
        (4, "bytes", "data"),
        (5, "uint64", "size"),
        (6, "Shape", "original_shape"),
        (7, "int32", "sub_format"),
        (8, "uint64", "address"),
        (9, "uint64", "offset"),
        (10, "uint32", "arg_index"),
        (11, "uint32", "input_type"),
    ],
    "OpBuffer": [(1, "int32", "buffer_type"), (2, "bytes", "data"), (3, "uint64", "size")],
    "Workspace": [(1, "int32", "type"), (2, "bytes", "data"), (3, "uint64", "size")],
    "OpAttr": [(1, "string", "name"), (2, "string", "value")],
    "DumpData": [
        (1, "string", "version"),
        (2, "uint64", "dump_time"),
        (3, "repeated OpOutput", "output"),
        (4, "repeated OpInput", "input"),
        (5, "repeated OpBuffer", "buffer"),
        (6, "string", "op_name"),
        (7, "repeated OpAttr", "attr"),
        (8, "repeated Workspace", "space"),
        (9, "string", "dfx_message"),
    ],
}


def _message() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="dump.proto", package="dumpdata", syntax="proto3")
    for name, described in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, kind, field in described:
            repeated, _, plain = kind.rpartition(" ")
            added = message.field.add(
                name=field, number=number, label=_TYPES.LABEL_REPEATED if repeated else _TYPES.LABEL_OPTIONAL
            )
            if plain in _SCALARS:
                added.type = _SCALARS[plain]
            else:
                added.type, added.type_name = _TYPES.TYPE_MESSAGE, f".dumpdata.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("dumpdata.DumpData"))


DumpData = _message()


def pack(values: torch.Tensor, dtype: DType) -> torch.Tensor:
    """The bytes of `values`, 1-D; each value must be one of the type's own, as `unpack` gives them."""
    if dtype.name == "hifloat8":
        return hifloat8.encode(values.detach().reshape(-1))
    flat = values.detach().reshape(-1).to(torch.float32)
    name, choices = _VALUES[dtype.name]
    bits = dtype.bits
    codes = torch.zeros(flat.numel(), dtype=torch.uint8)
    for code, value in enumerate(choices):
        codes[flat == value] = code
    if name.startswith("float"):  # of which -0 is another code than 0
        codes[flat == 0] = torch.signbit(flat[flat == 0]).to(torch.uint8) << (bits - 1)
    per_byte = 8 // bits
    rows = torch.nn.functional.pad(codes, (0, -codes.numel() % per_byte)).view(-1, per_byte)
    return (rows << torch.tensor(_shifts(dtype.name, bits), dtype=torch.uint8)).sum(1).to(torch.uint8)


def stored_shape(layout: str, shape: Sequence[int], c0: int = 16, channels: str = "nchw") -> Shape:
    """The shape in which a logical tensor is stored, sizes rounded up to whole tiles of `c0`.

    `channels` is the order of the logical dimensions where they stand for channels and windows: `nchw`
    (which `ncdhw` is for 3-D layouts), `nhwc` or `hwcn`. Raises `FormatError` for a layout that has no
    tiles known here, or a shape it cannot hold.
    """
    sizes = tuple(shape)
    if layout.startswith("fractal_nz"):
        c0 = _NZ_COLUMNS.get(layout, c0)
        *lead, rows, columns = (1,) * (2 - len(sizes)) + sizes
        return (*lead, _tiles(columns, c0), _tiles(rows, TILE), TILE, c0)
    if layout not in _TILED:
        return sizes
    c0 = 4 if layout == "nc1hwc0_c04" else c0
    deep = layout in ("ndc1hwc0", "fractal_z_3d")
    plain = channels.replace("d", "")
    places = _CHANNELS_FIRST.get(plain.replace("h", "dh") if deep else plain, ())
    if len(sizes) != len(places):
        raise FormatError(f"a tensor {list(sizes)} of order {channels} cannot be stored as {layout}")
    n, c, *d, h, w = (sizes[place] for place in places)
    c1 = _tiles(c, c0)
    if layout.startswith("nc1hwc0"):
        return (n, c1, h, w, c0)
    if layout == "ndc1hwc0":
        return (n, *d, c1, h, w, c0)
    return (math.prod(d) * c1 * h * w, _tiles(n, TILE), TILE, c0)
