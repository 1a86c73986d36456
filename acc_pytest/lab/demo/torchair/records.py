"""GE records of tensors that lie as they are, or in tiles, byte for byte as the device writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ....tensors.device_layouts import TILE, conversion
from ....tensors.dtypes import by_torch
from ....tensors.ge_message import OriginalOp, ge_code, ge_layout_code
from ....tensors.whole_file import whole_file
from ....tensors.wire import bytes_field, encoded, number_field, text_field

_FIRST_ADDRESS = 0x1000


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A logical tensor, and how a record shall hold it: `tiled`, or `null` without its values."""

    tensor: torch.Tensor
    tiled: bool = False
    null: bool = False
    original_op: OriginalOp | None = None


def write_record(
    path: Path,
    op_name: str,
    inputs: Sequence[WrittenTensor],
    outputs: Sequence[WrittenTensor],
    dump_time: int,
) -> None:
    """Write a record, whole or not at all; `dump_time` is in microseconds since 1970.

    Raises `AccError` where it cannot be.
    """
    stored = [_stored(value) for value in (*inputs, *outputs)]
    messages = [
        _described(value, tensor, _FIRST_ADDRESS * place, is_output=place > len(inputs))
        for place, (value, tensor) in enumerate(zip((*inputs, *outputs), stored), start=1)
    ]
    header = text_field(1, "2.0") + number_field(2, dump_time)
    header += b"".join(bytes_field(3, message) for message in messages[len(inputs) :])
    header += b"".join(bytes_field(4, message) for message in messages[: len(inputs)])
    header += text_field(6, op_name)
    with whole_file(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for value, tensor in zip((*inputs, *outputs), stored):
            if not value.null:
                file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _stored(value: WrittenTensor) -> torch.Tensor:
    """The tensor as the device has it."""
    if not value.tiled:
        return value.tensor
    *lead, rows, columns = value.tensor.shape
    stored = (*lead, -(-columns // TILE), -(-rows // TILE), TILE, TILE)
    rule = conversion("fractal_nz", stored, tuple(value.tensor.shape))
    assert rule is not None
    return rule.to_stored(value.tensor)


def _described(value: WrittenTensor, stored: torch.Tensor, address: int, *, is_output: bool) -> bytes:
    """The message of a tensor. Fields of an output are numbered one higher behind the shapes."""
    code = ge_code(by_torch(value.tensor.dtype))
    message = number_field(1, code) + number_field(2, ge_layout_code("fractal_nz" if value.tiled else "nd"))
    message += _shape(3, stored.shape)
    if value.original_op is not None:
        origin = text_field(1, value.original_op.name) + number_field(2, value.original_op.output_index or 0)
        message += bytes_field(
            4, origin + number_field(3, ge_code(by_torch(torch.float32))) + number_field(4, 2)
        )
    size = 6 if is_output else 5
    message += number_field(size, stored.nbytes) + _shape(size + 1, value.tensor.shape)
    return message + number_field(size + 3, 0 if value.null else address)


def _shape(number: int, shape: Sequence[int]) -> bytes:
    dims = b"".join(map(encoded, shape))
    return bytes_field(number, bytes_field(1, dims) if dims else b"")


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
