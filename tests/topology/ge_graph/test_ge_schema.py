"""The schema: read from the `.proto` whole, and consistent in itself."""

from __future__ import annotations

from pathlib import Path

from acc_pytest.topology.ge_graph import text_format as schema_module
from acc_pytest.topology.ge_graph.text_format import READ, SPELL, Field, schema

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
    assert READ.keys() == SPELL.keys()
    for fields in tables.messages.values():
        for field in fields.values():
            assert field.type in READ or field.type in tables.messages or field.type in tables.enums
        assert len({field.number for field in fields.values()}) == len(fields)
