"""atb_json: model and layer reports of the probe, whole and broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acc_pytest.errors import FormatError
from acc_pytest.topology.atb import MAX_DEPTH, read_layer, read_model

LAYER = (
    '{"inTensors":["Layer_1_input_0"],"nodes":[{"inTensors":["Layer_1_input_0"],"opName":"Norm_1_0",'
    '"opType":"Norm","outTensors":["Layer_1_output_0"],"param":{"epsilon":NaN,"scale":-Infinity,"k":1e-05}}],'
    '"opName":"Layer_1","opType":"Layer","outTensors":["Layer_1_output_0"],"param":""}'
)


def saved(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "Model.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_layer_report_with_sorted_keys_and_constants_that_are_no_json(tmp_path: Path) -> None:
    layer = read_layer(saved(tmp_path, LAYER))
    (norm,) = layer.children
    assert (layer.name, layer.op_type, dict(layer.param)) == ("Layer_1", "Layer", {})
    assert dict(norm.param) == {"epsilon": None, "scale": None, "k": 1e-05}
    assert (norm.inputs, norm.outputs) == (("Layer_1_input_0",), ("Layer_1_output_0",))


def test_a_model_report_whose_nodes_lack_param_and_empty_arrays(tmp_path: Path) -> None:
    nodes = [
        {"opName": "WordEmbedding_6", "opType": "WordEmbedding"},
        {"opName": "LmHead_7", "opType": "LmHead"},
    ]
    model = read_model(saved(tmp_path, {"modelName": "Decoder", "nodes": nodes}))
    assert (model.name, model.first_id) == ("Decoder", 6)
    first = model.operations[0]
    assert (first.param, first.inputs, first.outputs, first.children) == ({}, (), (), ())


def test_a_model_without_name_and_nodes_is_called_like_its_file(tmp_path: Path) -> None:
    model = read_model(saved(tmp_path, {}))
    assert (model.name, model.first_id, model.operations) == ("Model", 0, ())


def test_a_missing_type_is_the_name_without_its_id(tmp_path: Path) -> None:
    assert read_layer(saved(tmp_path, {"opName": "Gather_3"})).op_type == "Gather"


def test_the_last_id_ends_the_full_name(tmp_path: Path) -> None:
    assert read_layer(saved(tmp_path, {"opName": "Linear_1_1_0"})).last_id == 0
    assert read_layer(saved(tmp_path, {"opName": "Linear"})).last_id is None
    assert read_layer(saved(tmp_path, {"opName": "Linear_" + "9" * 5000})).last_id is None


def test_tensors_are_renamed_at_every_depth(tmp_path: Path) -> None:
    layer = read_layer(saved(tmp_path, LAYER)).renamed({"Layer_1_input_0": "x"})
    assert layer.inputs == layer.children[0].inputs == ("x",)
    assert layer.outputs == ("Layer_1_output_0",)


def nested(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"opName": "Op_0"}
    for _ in range(depth):
        node = {"opName": "Op_0", "nodes": [node]}
    return node


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LAYER[:-9], "not a readable JSON topology"),
        ("", "not a readable JSON topology"),
        ("[" * 100_000, "not a readable JSON topology"),
        ([], "must be|is a JSON object, found a list"),
        ({"opName": "A_0", "nodes": {}}, r"`nodes` of A_0 must be a list, got an object"),
        ({"opName": "A_0", "nodes": [3]}, r"nodes\[0\] of A_0 must be an object, got a number"),
        ({"opName": "A_0", "nodes": [None]}, r"nodes\[0\] of A_0 must be an object, got null"),
        ({"opName": 4}, r"`opName` of the root must be a string, got a number"),
        ({"opType": "A"}, r"`opName` of the root must be a string, got nothing"),
        ({"opName": ""}, r"`opName` of the root must be a string, got an empty string"),
        ({"opName": "A_0", "opType": True}, r"`opType` of the root must be a string, got true or false"),
        (
            {"opName": "A_0", "opType": "../../etc"},
            r"opType of the root is '\.\./\.\./etc', which cannot be the name of a directory",
        ),
        ({"opName": "A_0", "opType": ".."}, "cannot be the name of a directory"),
        ({"opName": "A_0", "inTensors": "x"}, r"`inTensors` of A_0 must be a list of strings"),
        ({"opName": "A_0", "outTensors": [1]}, r"`outTensors` of A_0 must be a list of strings"),
        ({"opName": "A_0", "param": [1]}, r"`param` of A_0 must be an object, got a list"),
        (nested(MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} deep"),
    ],
)
def test_broken_reports_name_the_file_and_the_place(tmp_path: Path, content: Any, message: str) -> None:
    path = saved(tmp_path, content)
    with pytest.raises(FormatError, match=message) as error:
        read_layer(path)
    assert str(path) in str(error.value)


def test_a_report_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        read_model(tmp_path)


def test_bytes_that_are_no_text_are_a_format_error(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(FormatError, match="not a readable JSON topology"):
        read_model(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["opName", "opType", "nodes", "param", "inTensors", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(JSON)
def test_any_json_is_read_or_refused_with_a_format_error(tmp_path: Path, content: Any) -> None:
    try:
        layer = read_layer(saved(tmp_path, content))
    except FormatError:
        return
    assert layer.name
