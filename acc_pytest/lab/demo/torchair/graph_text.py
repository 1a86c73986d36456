"""Graphs of the Graph Engine as text, byte for byte as protobuf prints them (in TorchAir: `str(graph)`)."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping

from ....tensors.whole_file import whole_file
from ....topology.ge_graph import GeConstant, GeDesc, GeGraph, GeNode


def write_graph(graph: GeGraph, path: str | os.PathLike[str]) -> None:
    """Write a graph, whole or not at all. Raises `AccError` where the system refuses."""
    with whole_file(path) as file:
        file.writelines(line.encode("utf-8", "surrogateescape") for line in graph_lines(graph))


def graph_lines(graph: GeGraph) -> Iterator[str]:
    """The lines of a graph's text, with their ends. Raises `TypeError` for what no attribute can be."""
    yield from _texts(name=graph.name)
    for node in graph.nodes:
        yield from _message("op", _node(node))


def _message(name: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"{name} {{\n"
    yield from (f"  {line}" for line in lines)
    yield "}\n"


def _texts(**texts: str) -> Iterator[str]:
    """Fields of text; empty ones are not written."""
    return (f'{name}: "{text.translate(_CONTROLS)}"\n' for name, text in texts.items() if text)


def _node(node: GeNode) -> Iterator[str]:
    yield from _texts(name=node.name, type=node.op_type)
    for edge in node.inputs:
        text = "" if edge is None else f"{edge.producer}:{edge.index}"
        yield f'input: "{text.translate(_CONTROLS)}"\n'
    yield from _attrs(node.attrs)
    for name, descs in (("input_desc", node.input_descs), ("output_desc", node.output_descs)):
        for desc in descs:
            yield from _message(name, _desc(desc))


def _desc(desc: GeDesc) -> Iterator[str]:
    yield from _texts(name=desc.name)
    if desc.dtype:
        yield f"dtype: {desc.dtype}\n"
    if desc.shape is not None:
        yield from _message("shape", (f"dim: {extent}\n" for extent in desc.shape))
    yield from _texts(layout=desc.layout)
    yield from _attrs(desc.attrs)


def _attrs(attrs: Mapping[str, object]) -> Iterator[str]:
    for key, value in attrs.items():
        lines = (f'key: "{key.translate(_CONTROLS)}"\n', *_message("value", _value(value)))
        yield from _message("attr", lines)


def _value(value: object) -> Iterator[str]:
    if isinstance(value, GeDesc):
        yield from _message("td", _desc(value))
    elif isinstance(value, GeConstant):
        data = (_scalar("data", value.data),) if value.data else ()
        yield from _message("t", (*_message("desc", _desc(value.desc)), *data))
    elif isinstance(value, (list, tuple)):
        yield from _message("list", map(_plain, value))
    else:
        yield _plain(value)


_KINDS = {bool: "b", int: "i", float: "f", str: "s", bytes: "bt"}


def _plain(value: object) -> str:
    if type(value) not in _KINDS:
        raise TypeError(f"{type(value).__name__} {value!r} cannot be an attribute of a GE graph")
    return _scalar(_KINDS[type(value)], value)


def _scalar(name: str, value: object) -> str:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")  # of type bytes in the schema
    if isinstance(value, bytes):
        return f'{name}: "{value.decode("latin-1").translate(_BYTES)}"\n'
    return f"{name}: {_float32(value) if isinstance(value, float) else str(value).lower()}\n"


_SPELLED = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"} | {
    ord(mark): f"\\{mark}" for mark in "\"'\\"
}
_CONTROLS = {code: f"\\{code:03o}" for code in (*range(32), 127)} | _SPELLED
_BYTES = _CONTROLS | {code: f"\\{code:03o}" for code in range(128, 256)}


def _float32(value: float) -> str:
    """A float32, as short as it can be without becoming another one."""
    short = f"{value:.6g}"
    if not math.isfinite(value):
        return short
    return short if struct.pack("<f", float(short)) == struct.pack("<f", value) else f"{value:.9g}"
