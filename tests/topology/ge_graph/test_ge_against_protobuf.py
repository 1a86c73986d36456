"""protobuf itself, given our schema, judges what we read and write: the same text, the same values."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.lab.demo.torchair.graph_text import graph_lines
from acc_pytest.topology.ge_graph import (
    Edge,
    GeConstant,
    GeDesc,
    GeGraph,
    GeNode,
    graph_of,
    read_graph,
)

from .schema import schema

pytest.importorskip("google.protobuf")
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

REAL = Path(__file__).parents[3] / ".." / "shared" / "conformance" / "torchair" / "real_ge_graphs"
FAST = settings(max_examples=30, deadline=None)


@functools.cache
def graph_class() -> Any:
    """protobuf's class of a graph, made of our schema."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="ge_ir.proto", package="ge.proto", syntax="proto3")
    for name, values in schema().enums.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for name, fields in schema().messages.items():
        message = file.message_type.add(name=name)
        if name == "AttrDef":
            message.oneof_decl.add(name="value")
        for field in fields.values():
            label = kinds.LABEL_REPEATED if field.repeated or field.map else kinds.LABEL_OPTIONAL
            made = message.field.add(name=field.name, number=field.number, label=label)
            if name == "AttrDef":
                made.oneof_index = 0
            if field.map:
                entry = message.nested_type.add(name="AttrEntry")
                entry.options.map_entry = True
                optional = kinds.LABEL_OPTIONAL
                entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=optional)
                value = entry.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, label=optional)
                value.type_name = f".ge.proto.{field.type}"
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".ge.proto.{name}.AttrEntry"
            elif field.type in schema().messages or field.type in schema().enums:
                made.type = kinds.TYPE_MESSAGE if field.type in schema().messages else kinds.TYPE_ENUM
                made.type_name = f".ge.proto.{field.type}"
            else:
                made.type = getattr(kinds, f"TYPE_{field.type.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ge.proto.GraphDef"))


def parsed(text: str) -> Any:
    return text_format.Parse(text, graph_class()())


def read(text: str) -> GeGraph:
    """As from a file: a line ends at a line feed and nowhere else."""
    return graph_of(io.StringIO(text, newline="\n"), "graph")


def text_of(graph: GeGraph) -> str:
    return "".join(graph_lines(graph))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.from_regex(r"[A-Za-z][\w/.]{0,8}", fullmatch=True)
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32, allow_nan=False)
plain = texts | integers | floats | st.booleans()
lists = st.one_of(*(st.lists(kind, max_size=4) for kind in (texts, integers, floats, st.booleans())))
shapes = st.none() | st.lists(st.integers(-2, 2**40), max_size=4).map(tuple)


def described(attributes: Any) -> Any:
    return st.builds(
        GeDesc,
        name=texts,
        dtype=st.sampled_from(["", "DT_FLOAT", "DT_BF16", "DT_INT64"]),
        shape=shapes,
        layout=st.sampled_from(["", "ND", "NCHW"]),
        attrs=st.dictionaries(texts, attributes, max_size=2),
    )


bare = described(plain)
attributes = st.one_of(
    plain,
    lists.map(tuple),
    st.binary(max_size=12),
    bare,
    st.builds(GeConstant, bare, st.binary(max_size=12)),
)
edges = st.none() | st.builds(Edge, names, st.integers(-1, 9))
nodes = st.builds(
    GeNode,
    name=names,
    op_type=names,
    inputs=st.lists(edges, max_size=4).map(tuple),
    attrs=st.dictionaries(texts, attributes, max_size=3),
    input_descs=st.lists(described(attributes), max_size=2).map(tuple),
    output_descs=st.lists(described(attributes), max_size=2).map(tuple),
)
some_graphs = st.builds(
    GeGraph,
    name=texts,
    nodes=st.lists(nodes, min_size=1, max_size=4, unique_by=lambda node: node.name).map(tuple),
)


@FAST
@given(some_graphs)
def test_a_graph_written_is_read_as_it_was(graph: GeGraph) -> None:
    assert read(text_of(graph)) == graph


@FAST
@given(some_graphs)
def test_protobuf_reads_what_we_write_and_prints_it_alike(graph: GeGraph) -> None:
    message = parsed(text_of(graph))
    assert [op.name for op in message.op] == [node.name for node in graph.nodes]
    for op, node in zip(message.op, graph.nodes):
        assert list(op.input) == [f"{e.producer}:{e.index}" if e else "" for e in node.inputs]
        for key, value in node.attrs.items():
            assert_same(op.attr[key], value)
        for desc, ours in zip(op.output_desc, node.output_descs):
            assert (list(desc.shape.dim) if desc.HasField("shape") else None) == (
                None if ours.shape is None else list(ours.shape)
            )
    # Maps have no order in protobuf, so the printed text is compared after one more reading.
    again = read(str(message))
    assert again == graph


def assert_same(attribute: Any, value: object) -> None:
    """Protobuf's attribute and ours are one value of one kind."""
    kind = attribute.WhichOneof("value")
    got = getattr(attribute, kind)
    if isinstance(value, str):
        assert (kind, got) == ("s", value.encode())
    elif isinstance(value, bool):
        assert (kind, got) == ("b", value)
    elif isinstance(value, int):
        assert (kind, got) == ("i", value)
    elif isinstance(value, float):
        assert (kind, got) == ("f", value)
    elif isinstance(value, bytes):
        assert (kind, got) == ("bt", value)
    elif isinstance(value, tuple):
        assert kind == "list"
        items = [*got.s, *got.i, *got.f, *got.b]
        assert items == [item.encode() if isinstance(item, str) else item for item in value]
    elif isinstance(value, GeConstant):
        assert (kind, got.data) == ("t", value.data)
    else:
        assert kind == "td"


def test_graphs_of_torchair_are_read_as_protobuf_reads_them() -> None:
    files = sorted(REAL.glob("*.txt"))
    if not files:
        pytest.skip("conformance data (../shared/conformance) is not here")
    for file in files:
        message, graph = parsed(file.read_text(encoding="utf-8")), read_graph(file)
        assert [op.name for op in message.op] == [node.name for node in graph.nodes]
        for op, node in zip(message.op, graph.nodes):
            assert list(op.input) == [f"{e.producer}:{e.index}" if e else "" for e in node.inputs]
            assert [desc.dtype for desc in node.output_descs] == [
                schema_name(desc.dtype) for desc in op.output_desc
            ]
            assert node.attrs.keys() == op.attr.keys()
            for key, value in node.attrs.items():
                if value != {}:  # an attribute without a value
                    assert_same(op.attr[key], value)


def schema_name(number: int) -> str:
    names = {code: name for name, code in schema().enums["DataType"].items()}
    return names[number] if number else ""


PRINTED = {
    "braces in strings": 'op {\n  name: "a {"\n  type: "}: {"\n  attr {\n    key: "x: y"\n    value {\n'
    '      s: "{"\n    }\n  }\n}\n',
    "escapes": 'op {\n name: "\\101\\n\\r\\t\\\\\\\'\\""\n type: "é"\n}\n',
    "numbers": 'op {\n name: "a"\n type: "T"\n attr {\n key: "f"\n value {\n list {\n'
    "f: 1.5\nf: 2\nf: -inf\nf: 1e+30\nf: nan\n}\n}\n}\n}\n",
}


@pytest.mark.parametrize("text", PRINTED.values(), ids=PRINTED.keys())
def test_text_means_what_protobuf_says(text: str) -> None:
    graph = read(text)
    ours, theirs = parsed(text_of(graph)), parsed(text)
    assert str(ours) == str(theirs)  # nan is not equal to itself, its text is
