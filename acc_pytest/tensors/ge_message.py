"""What a GE record says of itself, the protobuf message `DumpData`: as data, and serialised.

Types, layouts, shapes and sizes of all tensors of one operator, in a few hundred bytes. The serialised bytes
are those of protobuf itself: fields in rising order, zeros left out, shapes there even when empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .dtypes import DType
from .ge_codes import by_ge_code, ge_code, ge_layout_code
from .wire import bytes_field, encoded, number_field, text_field

VERSION = "2.0"
DYNAMIC = (1 << 64) - 1
"""The offset that the executor of dynamic shapes writes: the address is that of the tensor itself."""

_FLOAT = by_ge_code(1)
UNKNOWN_INDEX = (1 << 32) - 1

Shape = tuple[int, ...]
_Ranges = tuple[tuple[int, int], ...]


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
    dim_range: _Ranges = ()
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
    index = UNKNOWN_INDEX if origin.output_index is None else origin.output_index
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
