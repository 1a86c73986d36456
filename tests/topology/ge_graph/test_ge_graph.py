"""Graphs: what is read of operators and edges, what is written, and what is refused in one sentence."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from acc_pytest.errors import AccError, FormatError
from acc_pytest.lab.demo.torchair.graph_text import write_graph
from acc_pytest.topology.ge_graph import (
    DEPTH,
    Edge,
    FxName,
    GeConstant,
    GeDesc,
    GeGraph,
    GeNode,
    read_graph,
)

from . import schema as schema_module
from .schema import SCALARS, Field, schema

REAL = Path(__file__).parents[3] / ".." / "shared" / "conformance" / "torchair" / "real_ge_graphs"

SMALL = GeGraph(
    "graph_1",
    (
        GeNode("arg0_1", "Data", (), {"index": 0}, (GeDesc("x"),), (GeDesc("y", "DT_FLOAT", (2, -1)),)),
        GeNode(
            "Const", "Const", (), {"value": GeConstant(GeDesc(dtype="DT_INT32", shape=()), b"\x01\0\0\0")}
        ),
        GeNode(
            "MatMulV2",
            "MatMulV2",
            (Edge("arg0_1", 0), Edge("arg0_1", 0), None, Edge("Const", -1)),
            {"transpose_x1": False, "offset_x": 0, "eps": 0.5, "perm": (1, 0)},
            (GeDesc("x1"), GeDesc("x2"), GeDesc("bias")),
            (
                GeDesc("y", attrs={"_fx_tensor_name": "mm-aten.mm.default.OUTPUT.0", "_meta": "Tensor(...)"}),
                GeDesc("z", attrs={"_fx_tensor_name": "mul_1-<built-in function mul>.OUTPUT.11"}),
                GeDesc("w"),
            ),
        ),
    ),
)

TEXT = """\
name: "graph_1"
op {
  name: "Cast"
  type: "Cast"
  input: "x:0"
  attr {
    key: "dst_type"
    value {
      i: 27
    }
  }
  attr {
    key: "func"
    value {
      func {
        name: "f"
      }
    }
  }
  id: 7
  output_desc {
    name: "y"
    dtype: DT_BF16
    shape {
    }
    layout: "ND"
    size: 2
    new_field {
      a: 1
    }
    device_type: "NPU"
  }
  from_the_future: 1
}
later: "kept"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dynamo_original_graph_1_rank_0_pid_7_ts_20260102030405678901.txt"


def read_text(path: Path, text: str) -> GeGraph:
    path.write_text(text, encoding="utf-8")
    return read_graph(path)


def test_a_graph_made_by_hand_survives_a_file(path: Path) -> None:
    write_graph(SMALL, path)
    assert read_graph(path) == SMALL


def test_inputs_are_edges_in_the_order_of_the_operator() -> None:
    node = SMALL.by_name["MatMulV2"]
    assert node.inputs == (Edge("arg0_1", 0), Edge("arg0_1", 0), None, Edge("Const", -1))
    assert node.data_inputs == (Edge("arg0_1", 0), Edge("arg0_1", 0))
    assert [edge.is_control for edge in node.inputs if edge] == [False, False, True]
    assert [desc.name for desc in node.input_descs] == ["x1", "x2", "bias"]


def test_outputs_carry_the_names_of_fx_tensors() -> None:
    node = SMALL.by_name["MatMulV2"]
    assert node.output_count == 3
    first, second, third = node.fx_names
    assert first == FxName("mm", "aten.mm.default", 0)
    assert second == FxName("mul_1", "<built-in function mul>", 11)
    assert third is None


@pytest.mark.parametrize("name", ["", "mm", "mm-aten.mm.default.OUTPUT.", "mm.OUTPUT.0", "-x.OUTPUT.0", 3])
def test_what_is_no_fx_name_is_none(name: object) -> None:
    assert GeDesc(attrs={"_fx_tensor_name": name}).fx_name is None


def test_consumers_are_found_by_the_output_they_read() -> None:
    assert SMALL.consumers == {Edge("arg0_1", 0): (SMALL.nodes[2],)}


def test_what_is_not_known_is_passed_over(path: Path) -> None:
    graph = read_text(path, TEXT)
    (node,) = graph.nodes
    assert node.attrs == {"dst_type": 27, "func": {"func": [{"name": ['"f"']}]}}
    assert node.output_descs == (GeDesc("y", "DT_BF16", (), "ND"),)


def test_plain_lists_are_written_as_lists(path: Path) -> None:
    write_graph(GeGraph("g", (GeNode("a", "T", attrs={"k": [1, 2], "none": ()}),)), path)
    assert read_graph(path).nodes[0].attrs == {"k": (1, 2), "none": ()}


def test_what_is_no_attribute_is_refused(path: Path) -> None:
    with pytest.raises(TypeError, match="NoneType None cannot be an attribute of a GE graph"):
        write_graph(GeGraph("g", (GeNode("a", "T", attrs={"k": None}),)), path)
    assert not path.exists()


def operator(field: str) -> str:
    return f'op {{\nname: "a"\ntype: "T"\n{field}\n}}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no operator"),
        ('name: "g"\n', "holds no operator"),
        ("\x93NUMPY\x01", r":1: .* is not protobuf text"),
        ("op {\n", r":1: the file ends inside op \{"),
        (operator("") + "}\n", r":6: \} closes nothing"),
        ('op { name: "a" >', r":1: .* is not protobuf text"),
        ("op {\n  name:\n", r":2: name: is not protobuf text"),
        ('op {\n  name: "a\n}\n', r":2: .* is not protobuf text"),
        ("op {\n  = 3\n}\n", r":2: = 3 is not protobuf text"),
        ("op: 3\n", "op is 3, not a message"),
        ('op {\ntype: "T"\n}\n', r"operator 0: has no name"),
        ('op {\nname: "a"\n}\n', r"operator 0: has no type"),
        ('op {\nname {\n}\ntype: "T"\n}\n', r"operator 0: name is a message, not a value"),
        ('op {\nname: 3\ntype: "T"\n}\n', r"operator 0: name: 3 is not a quoted string"),
        ('op {\nname: "\\q"\ntype: "T"\n}\n', r'name: "\\q" has an escape that protobuf does not print'),
        (operator('input: "x"'), r'operator 0 \(a\): input: "x" is not written producer:output'),
        (operator('input: "x:y"'), r'input: "x:y" is not written'),
        (operator('input: ":0"'), r'input: ":0" is not written'),
        (operator("output_desc: 1"), r"output_desc is 1, not a message"),
        (operator("output_desc {\nshape {\ndim: x\n}\n}"), r"dim: x is not a whole number"),
        (operator('attr {\nkey: "k"\nvalue {\nf: x\n}\n}'), r"attr k: f: x is not a number"),
        (operator('attr {\nkey: "k"\nvalue {\nb: 2\n}\n}'), r"b: 2 is neither true nor false"),
        (operator("") * 2, r"two operators are named a"),
        ("op {\n" * (DEPTH + 1), f"messages are nested more than {DEPTH} deep"),
    ],
)
def test_bad_text_is_one_error_that_says_where(text: str, message: str, path: Path) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_text(path, text)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_an_error(path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        read_graph(path)


def test_long_values_are_cut_in_messages(path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        read_text(path, operator(f'input: "{"x" * 10_000}"'))
    assert len(str(caught.value)) < len(str(path)) + 200


def test_damage_ends_in_a_graph_or_one_error(path: Path) -> None:
    write_graph(SMALL, path)
    sound, dice = path.read_bytes(), random.Random(7)
    outcomes: set[type] = set()
    for _ in range(400):
        damaged = bytearray(sound)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        path.write_bytes(damaged[: dice.randint(1, len(damaged))] if dice.random() < 0.3 else damaged)
        try:
            outcomes.add(type(read_graph(path)))
        except AccError as error:
            outcomes.add(type(error))
    assert outcomes == {GeGraph, FormatError}


@pytest.mark.parametrize(
    "line", ['"' * 200_000, "\\" * 200_000, "-" * 200_000, "a:" * 100_000, '"a' * 100_000, '"aa" ' * 100_000]
)
def test_hostile_lines_take_no_time(line: str, path: Path) -> None:
    started = time.perf_counter()
    with pytest.raises(FormatError):
        read_text(path, f"op {{\nname: {line}\n")
    assert time.perf_counter() - started < 10  # what grew with the square of a line took minutes


def test_the_graphs_of_torchair_say_what_the_specification_says() -> None:
    files = sorted(REAL.glob("dynamo_original*.txt"))
    if not files:
        pytest.skip("conformance data (../shared/conformance) is not here")
    graph = read_graph(files[0])
    assert graph.name == "graph_1"
    assert len(graph.nodes) == 41
    matmul = graph.by_name["MatMulV2"]
    assert matmul.inputs == (Edge("arg2_1", 0), Edge("Transpose", 0), None, None)
    assert matmul.fx_names == (None,)
    assert graph.by_name["Add"].fx_names == (FxName("addmm", "aten.addmm.default", 0),)
    topk, cast = graph.by_name["TopKV2"], graph.by_name["Cast_2"]
    assert topk.fx_names == (FxName("topk", "aten.topk.default", 0), None)
    assert cast.inputs == (Edge("TopKV2", 1),)
    assert cast.fx_names == (FxName("topk", "aten.topk.default", 1),)
    assert cast.attrs["dst_type"] == 9
    data = graph.by_name["arg2_1"]
    assert data.attrs["index"] == 2
    assert data.output_descs[0].shape == (3, 8)
    constant = graph.by_name["Const"].attrs["value"]
    assert isinstance(constant, GeConstant)
    assert constant.data == (1).to_bytes(8, "little") + bytes(8)
    seen: set[str] = set()
    for node in graph.nodes:
        assert {edge.producer for edge in node.inputs if edge} <= seen
        seen.add(node.name)


# The schema: read from the `.proto` whole, and consistent in itself.


PROTO = Path(schema_module.__file__).with_name("ge_ir.proto")


def test_every_line_of_the_proto_is_in_the_tables() -> None:
    lines = [line.split("//")[0].strip() for line in PROTO.read_text().splitlines()]
    declared = [line for line in lines if line.endswith(";") and not line.startswith(("syntax", "package"))]
    tables = schema()
    known = sum(map(len, tables.messages.values())) + sum(map(len, tables.enums.values()))
    assert known == len(declared) > 100


def test_a_field_is_what_its_line_says() -> None:
    operator = schema().messages["OpDef"]
    assert operator["name"] == Field("name", 1, "string")
    assert operator["input"] == Field("input", 5, "string", repeated=True)
    assert operator["attr"] == Field("attr", 10, "AttrDef", map=True)
    assert operator["output_desc"] == Field("output_desc", 34, "TensorDescriptor", repeated=True)
    assert schema().enums["DataType"]["DT_BF16"] == 27


def test_every_type_is_known_and_every_number_is_used_once() -> None:
    tables = schema()
    for fields in tables.messages.values():
        for field in fields.values():
            assert field.type in SCALARS or field.type in tables.messages or field.type in tables.enums
        assert len({field.number for field in fields.values()}) == len(fields)
