"""Graphs of the Graph Engine, and `read_graph("dynamo_original_graph_1_rank_0_pid_7_ts_....txt")`.

TorchAir prints a graph in the protobuf text format, a field a line: `name: value`, or a message between
`name {` and `}`. Files are large (weights are written into them in octal), so they are read line by line,
and an operator is taken when it is complete. Fields that mean nothing here are passed over, whatever a newer
release adds. Format: https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ..errors import FormatError
from ..tensors.location import opened_text

FX_NAME = "_fx_tensor_name"
_FX_NAME = re.compile(r"(\w+)-(.+)\.OUTPUT\.(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Edge:
    """The origin of an input: output `index` of the operator named `producer`; -1 orders two operators."""

    producer: str
    index: int

    @property
    def is_control(self) -> bool:
        """Whether it carries no tensor."""
        return self.index == -1


@dataclass(frozen=True, slots=True)
class FxName:
    """The FX tensor that an output stands for: node `addmm`, target `aten.addmm.default`, output 0."""

    node: str
    target: str
    index: int


@dataclass(frozen=True, slots=True)
class GeDesc:
    """The description of a tensor. `shape` is () for a scalar and `None` where it is unknown; -1 stands for
    an unknown extent, (-2,) for an unknown rank. `dtype` is spelled `DT_FLOAT`, or "" where unknown."""

    name: str = ""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    layout: str = ""
    attrs: Mapping[str, object] = field(default_factory=dict)

    @property
    def fx_name(self) -> FxName | None:
        """The FX tensor this is, where TorchAir says so."""
        text = self.attrs.get(FX_NAME)
        match = _FX_NAME.fullmatch(text) if isinstance(text, str) else None
        return FxName(match[1], match[2], int(match[3])) if match else None


@dataclass(frozen=True, slots=True)
class GeConstant:
    """A constant tensor; `data` are its bytes, little-endian and without padding."""

    desc: GeDesc = GeDesc()
    data: bytes = b""


@dataclass(frozen=True)
class GeNode:
    """An operator. `inputs` are in the order of the file: an edge (of data, or of control: `is_control`), or
    `None` for an optional input that is absent. `attrs` are text, bytes, numbers, tuples of them, `GeDesc` or
    `GeConstant`; anything else is the message as it is written."""

    name: str
    op_type: str
    inputs: tuple[Edge | None, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=dict)
    input_descs: tuple[GeDesc, ...] = ()
    output_descs: tuple[GeDesc, ...] = ()

    @cached_property
    def data_inputs(self) -> tuple[Edge, ...]:
        """Edges that carry a tensor, absent and control inputs left out."""
        return tuple(edge for edge in self.inputs if edge is not None and not edge.is_control)

    @property
    def output_count(self) -> int:
        return len(self.output_descs)

    @cached_property
    def fx_names(self) -> tuple[FxName | None, ...]:
        """The FX tensor that each output is, or `None`."""
        return tuple(desc.fx_name for desc in self.output_descs)


@dataclass(frozen=True)
class GeGraph:
    """A graph; `nodes` are in the order of the file, in which producers come before their consumers."""

    name: str
    nodes: tuple[GeNode, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, GeNode]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def consumers(self) -> Mapping[Edge, tuple[GeNode, ...]]:
        """The readers of each output, in the order of the graph."""
        readers: dict[Edge, list[GeNode]] = {}
        for node in self.nodes:
            for edge in dict.fromkeys(node.data_inputs):
                readers.setdefault(edge, []).append(node)
        return {edge: tuple(nodes) for edge, nodes in readers.items()}


def read_graph(path: str | os.PathLike[str]) -> GeGraph:
    """The graph of a `dynamo_original_graph_*.txt` or `dynamo_optimized_graph_*.txt`.

    Raises `FormatError` for a file that is cut or no GE graph, naming the line or the operator.
    """
    source = os.fspath(path)
    try:
        with opened_text(source, newline="\n") as file:
            return graph_of(file, source)
    except OSError as error:
        raise FormatError(f"{source}: cannot be read: {error.strerror or error}") from error


def graph_of(lines: Iterable[str], source: str) -> GeGraph:
    """The graph of a text that has been opened; `source` is named by errors. Raises `FormatError`."""
    fields: Message = {}
    nodes: dict[str, GeNode] = {}
    for name, value in _fields(lines, source):
        if name != "op":
            fields.setdefault(name, []).append(value)
            continue
        where = f"{source}: operator {len(nodes)}"
        (message,) = _Fields({name: [value]}, source).all(name, _message)
        node = _node(message, where)
        if nodes.setdefault(node.name, node) is not node:
            raise FormatError(f"{source}: two operators are named {_shown(node.name)}")
    if not nodes:
        raise FormatError(
            f"{source}: holds no operator; give the text of a GE graph (dynamo_original_graph_*.txt)"
        )
    return GeGraph(_Fields(fields, source).last("name", _text, ""), tuple(nodes.values()))


def _node(message: Message, where: str) -> GeNode:
    fields = _Fields(message, where)
    name, op_type = (fields.last(field, _text, "") for field in ("name", "type"))
    if not name or not op_type:
        raise FormatError(f"{where}: has no {'type' if name else 'name'}")
    fields = _Fields(message, f"{where} ({_shown(name)})")
    return GeNode(
        name,
        op_type,
        tuple(fields.all("input", _edge)),
        fields.attrs(),
        tuple(_desc(inner, fields.where) for inner in fields.all("input_desc", _message)),
        tuple(_desc(inner, fields.where) for inner in fields.all("output_desc", _message)),
    )


def _desc(message: Message, where: str) -> GeDesc:
    fields = _Fields(message, where)
    shape = fields.last("shape", _message, None)
    return GeDesc(
        fields.last("name", _text, ""),
        fields.last("dtype", str, ""),
        None if shape is None else tuple(_Fields(shape, where).all("dim", _integer)),
        fields.last("layout", _text, ""),
        fields.attrs(),
    )


def _attribute(message: Message, where: str) -> object:
    fields, kind = _Fields(message, where), "".join(message) if len(message) == 1 else ""
    if kind == "td":
        return _desc(fields.last(kind, _message, {}), where)
    if kind == "t":
        tensor = _Fields(fields.last(kind, _message, {}), where)
        descs = tensor.all("desc", _message)
        return GeConstant(_desc(descs[-1], where), tensor.last("data", _bytes, b"")) if descs else message
    if kind == "list":
        listed = fields.last(kind, _message, {})
        kinds = listed.keys() - {"val_type"}
        if len(kinds) > 1 or not kinds <= _SCALARS.keys():
            return message  # of messages, or of several kinds
        return tuple(item for kind in kinds for item in _Fields(listed, where).all(kind, _SCALARS[kind]))
    return fields.last(kind, _SCALARS[kind], None) if kind in _SCALARS else message


# The text format: fields of messages, whose scalars are the text that stands there, quotes included.


DEPTH = 100
"""Messages in messages; protobuf's own parsers refuse more."""
Message = dict[str, list[Any]]
"""The values of each field, in the order of the file: texts, or messages."""
_Value = TypeVar("_Value")
_LINE = re.compile(
    r'\s*(?:([A-Za-z_]\w*)\s*(?::\s*("[^"\\]*(?:\\.[^"\\]*)*"|[\w.+-]+)|(\{))|\})\s*', re.ASCII
)


def _fields(lines: Iterable[str], source: str) -> Iterator[tuple[str, Any]]:
    """The fields of the outermost message, each complete. Raises `FormatError` with the line's number."""
    opened: list[tuple[str, Message]] = []
    number = 0
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            if line.strip():
                raise _refusal(source, number, f"{_shown(line.strip())} is not protobuf text")
            continue
        name, value, begun = match.groups()
        if begun:
            if len(opened) == DEPTH:
                raise _refusal(source, number, f"messages are nested more than {DEPTH} deep")
            opened.append((name, {}))
            continue
        if name is None:
            if not opened:
                raise _refusal(source, number, "} closes nothing")
            name, value = opened.pop()
        if opened:
            opened[-1][1].setdefault(name, []).append(value)
        else:
            yield name, value
    if opened:
        raise _refusal(source, number, f"the file ends inside {_shown(opened[0][0])} {{")


def _refusal(source: str, line: int, problem: str) -> FormatError:
    return FormatError(f"{source}:{line}: {problem}; it is truncated or not a GE graph text")


def _shown(text: str) -> str:
    """A text for a message, cut where it is long."""
    return text if len(text) <= 40 else f"{text[:37]}..."


class _Fields:
    """The fields of one message, read by who knows what they are; `where` is named by errors."""

    def __init__(self, message: Message, where: str) -> None:
        self._message = message
        self.where = where

    def all(self, name: str, read: Callable[[Any], _Value]) -> list[_Value]:
        """All values of a field. Raises `FormatError` where `read` raises `ValueError`."""
        values = self._message.get(name, ())
        for value in values:
            if isinstance(value, dict) != (read is _message):
                what = (
                    "a message, not a value" if isinstance(value, dict) else f"{_shown(value)}, not a message"
                )
                raise FormatError(f"{self.where}: {name} is {what}")
        try:
            return [read(value) for value in values]
        except ValueError as error:
            raise FormatError(f"{self.where}: {name}: {error}") from None

    def last(self, name: str, read: Callable[[Any], _Value], default: Any) -> Any:
        """The last value, which counts for a field that is not repeated."""
        return self.all(name, read)[-1] if name in self._message else default

    def attrs(self) -> Mapping[str, object]:
        """The entries of the map `attr`; of two with one key the last counts, as everywhere in protobuf."""
        attrs: dict[str, object] = {}
        for entry in self.all("attr", _message):
            fields = _Fields(entry, self.where)
            key = fields.last("key", _text, "")
            attrs[key] = _attribute(fields.last("value", _message, {}), f"{self.where}, attr {_shown(key)}")
        return attrs


def _message(value: Message) -> Message:
    return value


_PRINTED = re.compile(rb"[^\\]*(?:\\(?:[0-3][0-7]{2}|[nrt'\"\\])[^\\]*)*", re.DOTALL)
"""Escapes of protobuf's printer, which Python's own decoder knows too."""
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)
_FLOAT = re.compile(r"-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)", re.ASCII)
_TRUTH = {"true": True, "false": False}


def _bytes(lexeme: str) -> bytes:
    if lexeme[0] != '"':
        raise ValueError(f"{_shown(lexeme)} is not a quoted string")
    content = lexeme[1:-1].encode("utf-8", "surrogateescape")
    if not _PRINTED.fullmatch(content):
        raise ValueError(f"{_shown(lexeme)} has an escape that protobuf does not print")
    return content.decode("unicode_escape").encode("latin-1") if b"\\" in content else content


def _text(lexeme: str) -> str:
    return _bytes(lexeme).decode("utf-8", "surrogateescape")


def _integer(lexeme: str) -> int:
    if not _INTEGER.fullmatch(lexeme):
        raise ValueError(f"{_shown(lexeme)} is not a whole number")
    return int(lexeme)


def _float(lexeme: str) -> float:
    """A float32."""
    if not _FLOAT.fullmatch(lexeme):
        raise ValueError(f"{_shown(lexeme)} is not a number")
    value = float(lexeme)
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def _truth(lexeme: str) -> bool:
    if lexeme not in _TRUTH:
        raise ValueError(f"{_shown(lexeme)} is neither true nor false")
    return _TRUTH[lexeme]


def _edge(lexeme: str) -> Edge | None:
    text = _text(lexeme)
    producer, _, index = text.rpartition(":")
    if text and (not producer or not index.lstrip("-").isdecimal() or len(index) > 10):
        raise ValueError(f'"{_shown(text)}" is not written producer:output')
    return Edge(producer, int(index)) if text else None


_SCALARS: Mapping[str, Callable[[str], Any]] = {
    "s": _text,
    "i": _integer,
    "f": _float,
    "b": _truth,
    "bt": _bytes,
}
"""Kinds of attributes that are Python values."""
