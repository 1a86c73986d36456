"""Graphs to GE graph text, byte for byte as protobuf prints them (in TorchAir: `str(graph)`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...tensors.whole_file import whole_file
from .graph import Edge, GeConstant, GeDesc, GeGraph, GeList, GeNode
from .schema import SPELL, schema
from .text_format import Message, Value, spell

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
            *(("input", SPELL["string"](_edge_text(edge))) for edge in node.inputs),
            *_attr_fields(node.attrs),
            *(("input_desc", _desc_message(desc)) for desc in node.input_descs),
            *(("output_desc", _desc_message(desc)) for desc in node.output_descs),
            *node.extra,
        ],
    )


def _edge_text(edge: Edge | None) -> str:
    return "" if edge is None else f"{edge.producer}:{edge.index}"


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
