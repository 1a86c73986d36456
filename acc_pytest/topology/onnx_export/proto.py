"""The part of ONNX's file format that a graph without weights needs, written as protobuf bytes.

Field numbers are those of `onnx.proto` (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto), the
encoding is https://protobuf.dev/programming-guides/encoding. The package `onnx` is not needed to write a
graph, only our tests use it: its checker and its reader judge what is written here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Union

from ...tensors.wire import FIXED32, VARINT, bytes_field, encoded

IR_VERSION = 8
DEFAULT_OPSET = 17
"""The operator set of ONNX itself that belongs to `IR_VERSION`; tools want it, no node of ours is in it."""
DOMAIN = "atb"
"""The domain of the operators of a graph; as this is not ONNX's own domain, any type is allowed."""

Value = Union[int, float, str, tuple[int, ...], tuple[float, ...], tuple[str, ...]]
"""Values of an attribute; the empty tuple is an empty list of integers."""

_UNDEFINED = 0
ELEMENT_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "string": 8,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "complex64": 14,
    "complex128": 15,
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
    "int4": 22,
    "float4_e2m1": 23,
    "float8_e8m0fnu": 24,
}
"""`TensorProto.DataType` by the names of `tensors.dtypes`; what is not here has no type in ONNX."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A named tensor: `dtype` is a name of `tensors.dtypes`; integers are sizes, texts name unknown ones."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class NodeProto:
    """One operator with the names of its tensors."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class GraphProto:
    """Nodes in topological order; `inner` are the tensors between them whose shapes are known."""

    name: str
    doc: str
    nodes: tuple[NodeProto, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    inner: tuple[TensorInfo, ...]


def model_bytes(graph: GraphProto, producer: str, version: str) -> bytes:
    """The content of an `.onnx` file."""
    opsets = ((DOMAIN, 1), ("", DEFAULT_OPSET))
    return b"".join(
        (
            _integer(1, IR_VERSION),
            _text(2, producer),
            _text(3, version),
            bytes_field(7, _graph(graph)),
            *(bytes_field(8, _text(1, domain) + _integer(2, number)) for domain, number in opsets),
        )
    )


def _graph(graph: GraphProto) -> bytes:
    fields = [bytes_field(1, _node(node)) for node in graph.nodes]
    fields += [_text(2, graph.name), _text(10, graph.doc)]
    for field, tensors in ((11, graph.inputs), (12, graph.outputs), (13, graph.inner)):
        fields += [bytes_field(field, _tensor_info(tensor)) for tensor in tensors]
    return b"".join(fields)


def _node(node: NodeProto) -> bytes:
    fields = [_text(1, name) for name in node.inputs]
    fields += [_text(2, name) for name in node.outputs]
    fields += [_text(3, node.name), _text(4, node.op_type)]
    fields += [bytes_field(5, _attribute(name, value)) for name, value in node.attributes]
    return b"".join([*fields, _text(7, DOMAIN)])


def _attribute(name: str, value: Value) -> bytes:
    """Name, value and kind: 1 float, 2 integer, 3 text, and 6, 7, 8 for lists of them."""
    if isinstance(value, float):
        kind, content = 1, _float(2, value)
    elif isinstance(value, int):
        kind, content = 2, _integer(3, value)
    elif isinstance(value, str):
        kind, content = 3, _text(4, value)
    elif any(isinstance(item, float) for item in value):
        kind, content = 6, b"".join(_float(7, float(item)) for item in value)
    elif any(isinstance(item, str) for item in value):
        kind, content = 8, b"".join(_text(9, str(item)) for item in value)
    else:
        kind, content = 7, b"".join(_integer(8, int(item)) for item in value)
    return _text(1, name) + content + _integer(20, kind)


def _tensor_info(tensor: TensorInfo) -> bytes:
    code = ELEMENT_TYPES.get(tensor.dtype, _UNDEFINED)
    sizes = (_integer(1, size) if isinstance(size, int) else _text(2, size) for size in tensor.shape)
    shape = b"".join(bytes_field(1, size) for size in sizes)
    kind = bytes_field(1, _integer(1, code) + bytes_field(2, shape))
    doc = tensor.doc
    if code == _UNDEFINED and tensor.dtype:
        doc = f"{doc}; " * bool(doc) + f"elements are {tensor.dtype}, for which ONNX has no type"
    return b"".join((_text(1, tensor.name), bytes_field(2, kind), *([_text(3, doc)] if doc else [])))


def _integer(field: int, number: int) -> bytes:
    return encoded(field << 3 | VARINT) + encoded(number)


def _float(field: int, number: float) -> bytes:
    return encoded(field << 3 | FIXED32) + struct.pack("<f", number)


def _text(field: int, text: str) -> bytes:
    # JSON may hold half a surrogate pair, which UTF-8 has no bytes for.
    return bytes_field(field, text.encode("utf-8", "backslashreplace"))
