"""GE records: all inputs and outputs of one operator in one file, as the device writes them. Both ways.

Eight bytes with the length of the header, the header (`ge_message`), then the values: inputs, outputs,
buffers, workspaces, back to back. A tensor to which the device gave no memory (a null address) is
described and has no values.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import AccError, CannotDecode, FormatError
from ..lazy_torch import torch
from .device_layouts import conversion, stored_shape
from .dtypes import DType, by_name, by_torch
from .file_bytes import opened
from .ge_fields import parse, serialise
from .ge_message import DYNAMIC, VERSION, GeRecord, GeTensor, OriginalOp
from .header import version_of
from .packed import is_packed, pack
from .whole_file import whole_file
from .wire import WireError

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


def read_record(path: str | os.PathLike[str]) -> GeRecord:
    """The record, read from its header alone; the values are not touched.

    Remembered until the file changes. Raises `FormatError` for what is no record or ends inside its header,
    `CannotDecode` for a record of a nano device. A record whose values are cut can be read.
    """
    name = os.fspath(path)
    return _record_as_of(name, version_of(name))


# A step of a large graph has some ten thousand records.
@functools.lru_cache(maxsize=32768)
def _record_as_of(path: str, _version: tuple[int, ...]) -> GeRecord:
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
        shape = stored_shape(value.layout, logical, value.c0 or _columns(dtype), value.channels)
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


def _columns(dtype: DType) -> int:
    """The width of a tile: 32 bytes' worth of 4 or 8 bit numbers, 16 of wider ones."""
    return {4: 64, 8: 32}.get(dtype.bits, 16)


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
