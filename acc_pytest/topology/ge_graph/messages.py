"""Messages of a GE graph text to graphs: the fields that mean something to us, decoded by the schema."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import FormatError
from ...tensors.location import opened_text
from ...tensors.whole_file import whole_file
from .graph import Edge, GeConstant, GeDesc, GeGraph, GeList, GeNode
from .text_format import READ, SPELL, Message, Value, parse, schema, shown, spell

_LISTED = {"s": "s", "i": "i", "f": "f", "b": "b"}
"""Kinds of list items that Python values stand for."""


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
    fields = Message()
    nodes: list[GeNode] = []
    for name, value in parse(lines, source):
        if name == "op":
            nodes.append(_node(_message(value, name, source), f"{source}: operator {len(nodes)}"))
        else:
            fields.add(name, value)
    values, extra = _split(fields, "GraphDef", ("name", "attr"), source)
    if not nodes:
        raise FormatError(
            f"{source}: holds no operator; give the text of a GE graph (dynamo_original_graph_*.txt)"
        )
    names: set[str] = set()
    for node in nodes:
        if node.name in names:
            raise FormatError(f"{source}: two operators are named {shown(node.name)}")
        names.add(node.name)
    return GeGraph(_last(values["name"], ""), tuple(nodes), _attrs(values["attr"], source), extra)


def _node(message: Message, where: str) -> GeNode:
    values, extra = _split(
        message, "OpDef", ("name", "type", "input", "attr", "input_desc", "output_desc"), where
    )
    name, op_type = _last(values["name"], ""), _last(values["type"], "")
    if not name or not op_type:
        raise FormatError(f"{where}: has no {'type' if name else 'name'}")
    where = f"{where} ({shown(name)})"
    return GeNode(
        name,
        op_type,
        tuple(_edge(text, where) for text in values["input"]),
        _attrs(values["attr"], where),
        tuple(_desc(inner, where) for inner in values["input_desc"]),
        tuple(_desc(inner, where) for inner in values["output_desc"]),
        extra,
    )


def _edge(text: str, where: str) -> Edge | None:
    if not text:
        return None
    producer, colon, index = text.rpartition(":")
    if not colon or not producer or not index.lstrip("-").isdecimal() or len(index) > 10:
        raise FormatError(f'{where}: input "{shown(text)}" is not written producer:output')
    return Edge(producer, int(index))


def _desc(message: Message, where: str) -> GeDesc:
    names = ("name", "dtype", "shape", "layout", "attr", "device_type")
    values, extra = _split(message, "TensorDescriptor", names, where)
    shape, unknown = _shape(_last(values["shape"], None), where)
    return GeDesc(
        _last(values["name"], ""),
        _last(values["dtype"], ""),
        shape,
        _last(values["layout"], ""),
        _attrs(values["attr"], where),
        _last(values["device_type"], ""),
        (*extra, *unknown),
    )


def _shape(
    message: Message | None, where: str
) -> tuple[tuple[int, ...] | None, tuple[tuple[str, Value], ...]]:
    """The extents, and the whole field where it holds more than extents."""
    if message is None:
        return None, ()
    values, extra = _split(message, "ShapeDef", ("dim",), where)
    shape = tuple(values["dim"])
    return (None, (("shape", message),)) if extra else (shape, ())


def _attrs(entries: Sequence[Message], where: str) -> Mapping[str, object]:
    """The entries of a map; of two with one key the last counts, as everywhere in protobuf."""
    attrs: dict[str, object] = {}
    for entry in entries:
        key, value = "", Message()
        for name, content in entry.fields:
            if name == "key":
                key = _scalar("string", content, name, where)
            elif name == "value":
                value = _message(content, name, where)
        attrs[key] = _attribute(value, f"{where}, attr {shown(key)}")
    return attrs


def _attribute(value: Message, where: str) -> object:
    if len(value.fields) != 1:
        return value
    ((name, content),) = value.fields
    field = schema().messages["AttrDef"].get(name)
    if field is None:
        return value
    if name in ("s", "i", "f", "b", "bt"):
        scalar = _scalar(field.type, content, name, where)
        return _as_text(scalar) if name == "s" else scalar
    if name == "td":
        return _desc(_message(content, name, where), where)
    if name == "t":
        return _constant(_message(content, name, where), value, where)
    if name == "list":
        return _list(_message(content, name, where), value, where)
    return value


def _constant(message: Message, attribute: Message, where: str) -> GeConstant | Message:
    values, extra = _split(message, "TensorDef", ("desc", "data"), where)
    if extra or not values["desc"]:
        return attribute
    return GeConstant(_desc(values["desc"][-1], where), _last(values["data"], b""))


def _list(message: Message, attribute: Message, where: str) -> GeList | Message:
    """Items of one kind; a list of messages or of several kinds stays as it is written."""
    kinds = {name for name, _ in message.fields if name != "val_type"}
    if len(kinds) > 1 or not kinds <= _LISTED.keys():
        return attribute
    values, _ = _split(message, "ListValue", (*kinds, "val_type"), where)
    items = tuple(_as_text(item) for kind in kinds for item in values[kind])
    return GeList(items, _last(values["val_type"], ""))


def _split(
    message: Message, kind: str, names: tuple[str, ...], where: str
) -> tuple[dict[str, list[Any]], tuple[tuple[str, Value], ...]]:
    """The values of the fields asked for, decoded, and all other fields as they are."""
    table = schema().messages[kind]
    values: dict[str, list[Any]] = {name: [] for name in names}
    extra: list[tuple[str, Value]] = []
    for name, value in message.fields:
        if name not in values:
            extra.append((name, value))
        elif table[name].map or table[name].type in schema().messages:
            values[name].append(_message(value, name, where))
        else:
            values[name].append(_scalar(table[name].type, value, name, where))
    return values, tuple(extra)


def _message(value: Value, name: str, where: str) -> Message:
    if isinstance(value, str):
        raise FormatError(f"{where}: {shown(name)} is {shown(value)}, not a message in braces")
    return value


def _scalar(kind: str, value: Value, name: str, where: str) -> Any:
    if isinstance(value, Message):
        raise FormatError(f"{where}: {shown(name)} is a message, not a value")
    if kind in schema().enums:
        return value
    try:
        return READ[kind](value)
    except ValueError as error:
        raise FormatError(f"{where}: {shown(name)}: {error}") from None


def _as_text(scalar: Any) -> Any:
    """Attributes that hold text are of type bytes in the schema."""
    return scalar.decode("utf-8", "surrogateescape") if isinstance(scalar, bytes) else scalar


def _last(values: Sequence[Any], default: Any) -> Any:
    """The last value, which counts for a field that is not repeated."""
    return values[-1] if values else default


# Graphs to GE graph text, byte for byte as protobuf prints them (in TorchAir: `str(graph)`).


_UNKNOWN = 1 << 30
"""Fields without a number come last."""
_KINDS: Mapping[type, str] = {bool: "b", int: "i", float: "f", str: "s"}


def write_graph(graph: GeGraph, path: str | os.PathLike[str]) -> None:
    """Write a graph, whole or not at all. Raises `AccError` where the system refuses."""
    with whole_file(path) as file:
        for line in graph_lines(graph):
            file.write(line.encode("utf-8", "surrogateescape"))


def graph_lines(graph: GeGraph) -> Iterator[str]:
    """The lines of a graph's text, with their ends."""
    fields: list[tuple[str, Value]] = [
        *_texts("GraphDef", name=graph.name),
        *_attr_fields(graph.attrs),
        *graph.extra,
    ]
    numbered = _numbered("GraphDef", fields)
    operators = schema().messages["GraphDef"]["op"].number
    before = [pair for number, pair in numbered if number < operators]
    for name, value in before:
        yield from spell(name, value)
    for node in graph.nodes:
        yield from spell("op", _node_message(node))
    for _, (name, value) in numbered[len(before) :]:
        yield from spell(name, value)


def _node_message(node: GeNode) -> Message:
    return _sorted_message(
        "OpDef",
        [
            *_texts("OpDef", name=node.name, type=node.op_type),
            *(
                ("input", SPELL["string"]("" if edge is None else f"{edge.producer}:{edge.index}"))
                for edge in node.inputs
            ),
            *_attr_fields(node.attrs),
            *(("input_desc", _desc_message(desc)) for desc in node.input_descs),
            *(("output_desc", _desc_message(desc)) for desc in node.output_descs),
            *node.extra,
        ],
    )


def _desc_message(desc: GeDesc) -> Message:
    fields: list[tuple[str, Value]] = [
        *_texts("TensorDescriptor", name=desc.name, layout=desc.layout, device_type=desc.device_type),
        *_attr_fields(desc.attrs),
        *desc.extra,
    ]
    if desc.dtype:
        fields.append(("dtype", desc.dtype))
    if desc.shape is not None:
        fields.append(("shape", Message([("dim", str(extent)) for extent in desc.shape])))
    return _sorted_message("TensorDescriptor", fields)


def _attr_fields(attrs: Mapping[str, object]) -> Iterator[tuple[str, Value]]:
    for key, value in attrs.items():
        yield "attr", Message([("key", SPELL["string"](key)), ("value", _value_message(value))])


def _value_message(value: object) -> Message:
    """The `value` of an attribute. Raises `TypeError` for what no attribute can be."""
    if isinstance(value, Message):
        return value
    if isinstance(value, bytes):
        return Message([("bt", SPELL["bytes"](value))])
    if isinstance(value, GeDesc):
        return Message([("td", _desc_message(value))])
    if isinstance(value, GeConstant):
        fields: list[tuple[str, Value]] = [("desc", _desc_message(value.desc))]
        if value.data:
            fields.append(("data", SPELL["bytes"](value.data)))
        return Message([("t", Message(fields))])
    if isinstance(value, (list, tuple)):
        value = GeList(tuple(value))
    if isinstance(value, GeList):
        items: list[tuple[str, Value]] = [_plain(item) for item in value.items]
        return Message(
            [("list", Message([*items, *([("val_type", value.val_type)] if value.val_type else [])]))]
        )
    return Message([_plain(value)])


def _plain(value: object) -> tuple[str, str]:
    kind = _KINDS.get(type(value))
    if kind is None:
        raise TypeError(f"{type(value).__name__} {value!r} cannot be an attribute of a GE graph")
    if isinstance(value, str):
        return kind, SPELL["bytes"](value.encode("utf-8", "surrogateescape"))
    return kind, SPELL[schema().messages["AttrDef"][kind].type](value)


def _texts(kind: str, **texts: str) -> Iterator[tuple[str, Value]]:
    """Fields of text; empty ones are not written."""
    for name, text in texts.items():
        if text:
            yield name, SPELL[schema().messages[kind][name].type](text)


def _sorted_message(kind: str, fields: Iterable[tuple[str, Value]]) -> Message:
    return Message([pair for _, pair in _numbered(kind, fields)])


def _numbered(kind: str, fields: Iterable[tuple[str, Value]]) -> list[tuple[int, Any]]:
    """Fields by number, each with it; equal numbers keep their order."""
    table = schema().messages[kind]
    numbered = [(table[pair[0]].number if pair[0] in table else _UNKNOWN, pair) for pair in fields]
    return sorted(numbered, key=lambda item: item[0])
