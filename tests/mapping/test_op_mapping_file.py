"""The user's map: the old tool's grammar, with every mistake named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acc_pytest.dumps.base import Slot
from acc_pytest.errors import MappingError
from acc_pytest.mapping.tables import Endpoint, missing_file_note, read_op_mapping_file, type_rules


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("RMSNorm", Endpoint("RMSNorm")),
        ("Decoder_layer", Endpoint("Decoder_layer")),
        ("CommonLayer_outtensor0", Endpoint("CommonLayer", Slot("output", (0,)))),
        ("Decoder_layer_intensor12", Endpoint("Decoder_layer", Slot("input", (12,)))),
        ("GLMBlock_output_1", Endpoint("GLMBlock", Slot("output", (1,)))),
        ("GLMBlock_output_1_0", Endpoint("GLMBlock", Slot("output", (1, 0)))),
        ("GLMBlock_output", Endpoint("GLMBlock", Slot("output", (0,)))),
        ("LinearOperation_2_0_1", Endpoint("LinearOperation_2_0_1")),
        ("LinearOperation_2_0_1_outtensor1", Endpoint("LinearOperation_2_0_1", Slot("output", (1,)))),
        ("2_0_1", Endpoint("2_0_1")),
        ("root.model.layers.0.mlp", Endpoint("root.model.layers.0.mlp")),
        ("root.model.layers.0.mlp_output_1_0", Endpoint("root.model.layers.0.mlp", Slot("output", (1, 0)))),
        ("2_Layer/0_Attention", Endpoint("2_Layer/0_Attention")),
        ("a b", None),
        ("", None),
    ],
)
def test_types_with_and_without_a_tensor(text: str, endpoint: Endpoint | None) -> None:
    assert Endpoint.parse(text) == endpoint


def test_a_string_is_one_type_and_a_directory_will_do(tmp_path: Path) -> None:
    file = tmp_path / "op_mapping_file.json"
    file.write_text(json.dumps({"LayerNormOperation": "LayerNorm", "A": ["B", "C"]}))
    for where in (file, tmp_path):
        assert read_op_mapping_file(str(where)) == {"LayerNormOperation": ("LayerNorm",), "A": ("B", "C")}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not valid JSON"),
        ("[]", "one JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"A": [1]}', "'A' must map to a type name or a list"),
        ('{"A": []}', "'A' must map to"),
        ('{"A": "b c"}', "'b c' is neither a type"),
        ('{"A-B": "C"}', "'A-B' is neither a type"),
    ],
)
def test_a_wrong_file_is_one_error_that_names_it(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "op_mapping_file.json"
    file.write_text(content)
    with pytest.raises(MappingError) as caught:
        read_op_mapping_file(str(tmp_path))
    assert complaint in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["a_outtensor" + "9" * 5000, "1" * 5000, "a_in" + "1" * 40])
def test_long_numbers_cost_nothing(text: str) -> None:
    """A pattern that tries every division of the digits would take minutes."""
    assert Endpoint.parse(text) == Endpoint(text)


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    assert read_op_mapping_file(str(tmp_path)) == {}
    assert missing_file_note("") == ""
    assert missing_file_note(str(tmp_path)).startswith(f"{tmp_path} holds no op_mapping_file.json")
    with pytest.raises(MappingError, match=r"other\.json: no such mapping file"):
        read_op_mapping_file(str(tmp_path / "other.json"))
    (tmp_path / "x").write_bytes(b"\xff\xfe{")
    with pytest.raises(MappingError, match="x: not valid JSON: byte 0 is not UTF-8"):
        read_op_mapping_file(str(tmp_path / "x"))


def test_rules_from_a_config_table_are_checked_too() -> None:
    [rule] = type_rules({"A_outtensor1": ("B", "C_output_0")})
    assert rule.mine.slot == Slot("output", (1,))
    assert [golden.op_type for golden in rule.golden] == ["B", "C"]
    with pytest.raises(MappingError, match="not type names"):
        type_rules({"A": ("no type",)})
