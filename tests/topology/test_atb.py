"""atb_json: model and layer reports of the probe, whole and broken."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acc_pytest.errors import FormatError
from acc_pytest.topology.atb import (
    MAX_DEPTH,
    KnownOperations,
    ModelFile,
    ReportedOperation,
    TopLevel,
    build_tree,
    joined,
    operation_ids,
    read_layer,
    read_model,
    settle_ids,
    top_level,
)
from acc_pytest.topology.tree import Node, Tree

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


# atb_tree: base ids settled by evidence, graphs repaired, nodes that only disk knows.


def op(
    name: str,
    *children: ReportedOperation,
    param: Mapping[str, object] | None = None,
    tensors: Sequence[str] = ("x", "y"),
) -> ReportedOperation:
    kind = name.partition("_")[0]
    return ReportedOperation(name, kind, param or {}, (tensors[0],), (tensors[1],), children)


def model(*operations: ReportedOperation) -> ModelFile:
    return ModelFile("Toy", "Toy.json", operations)


def evidence(reports: Sequence[TopLevel] = (), directories: Sequence[TopLevel] = ()) -> KnownOperations:
    return KnownOperations(frozenset(reports), frozenset(directories))


def tree(
    source: ModelFile,
    ids: Sequence[int],
    *,
    strays: Sequence[TopLevel] = (),
    layers: Mapping[str, ReportedOperation] | None = None,
    disk: Mapping[str, Collection[str]] | None = None,
) -> Tree:
    return build_tree(source, ids, strays, (layers or {}).get, lambda path: (disk or {}).get(path, ()))


TOY = model(op("Embed_0"), op("Layer_1"), op("Layer_2"), op("Head_3"))
OWN = [(0, "Embed"), (1, "Layer"), (2, "Layer"), (3, "Head")]


def moved(by: int) -> list[TopLevel]:
    return [(number + by, kind) for number, kind in OWN]


def test_ids_that_exist_stay() -> None:
    assert settle_ids(TOY, evidence(directories=OWN)) == [0, 1, 2, 3]


def test_without_any_evidence_the_report_is_believed() -> None:
    assert settle_ids(TOY, evidence()) == [0, 1, 2, 3]


def test_a_stray_operation_before_the_model_shifts_all_ids() -> None:
    assert settle_ids(TOY, evidence(reports=[(0, "Transdata"), *moved(1)])) == [1, 2, 3, 4]
    assert settle_ids(TOY, evidence(directories=[(0, "Transdata"), *moved(1)])) == [1, 2, 3, 4]


def test_reports_outweigh_what_filtered_directories_suggest() -> None:
    assert settle_ids(TOY, evidence(reports=OWN, directories=[(2, "Layer")])) == [0, 1, 2, 3]


def test_one_directory_of_a_filtered_dump_does_not_shift_a_repeated_layer() -> None:
    assert settle_ids(TOY, evidence(directories=[(2, "Layer")])) == [0, 1, 2, 3]


def test_of_two_equal_models_each_keeps_the_nearer_ids() -> None:
    both = evidence(reports=[(0, "Transdata"), *moved(1), *moved(5)])
    second = model(op("Embed_4"), op("Layer_5"), op("Layer_6"), op("Head_7"))
    assert settle_ids(TOY, both) == [1, 2, 3, 4]
    assert settle_ids(second, both) == [5, 6, 7, 8]


def test_a_stray_in_the_middle_is_stepped_over() -> None:
    reports = [(0, "Embed"), (1, "Layer"), (2, "Transdata"), (3, "Layer"), (4, "Head")]
    assert settle_ids(TOY, evidence(reports=reports)) == [0, 1, 3, 4]


def test_reports_that_do_not_cover_the_model_leave_its_ids() -> None:
    assert settle_ids(TOY, evidence(reports=[(0, "Embed"), (1, "Layer")])) == [0, 1, 2, 3]


def test_names_without_ids_count_by_position() -> None:
    assert settle_ids(model(op("Embed"), op("Head")), evidence()) == [0, 1]


def test_paths_are_directories_and_levels_nest() -> None:
    source = model(op("Embed_0"), op("Layer_1", op("Attn_1_0", op("Linear_1_0_0")), op("Mlp_1_1")))
    built = tree(source, [0, 1])
    assert list(built.by_path) == [
        "",
        "0_Embed",
        "1_Layer",
        "1_Layer/0_Attn",
        "1_Layer/0_Attn/0_Linear",
        "1_Layer/1_Mlp",
    ]
    assert built.by_path["1_Layer/0_Attn/0_Linear"].name == "Linear_1_0_0"


def test_a_level_1_leaf_takes_its_param_from_its_own_report() -> None:
    built = tree(model(op("Norm_4")), [4], layers={"Norm_4": op("Norm_4", param={"epsilon": 1e-5})})
    assert built.by_path["4_Norm"].param == {"epsilon": 1e-5}


def test_a_neighbours_graph_is_replaced_and_its_tensors_are_the_models() -> None:
    wrong = op("Layer_2", op("Linear_2_0", param={"of": "neighbour"}), tensors=("m1", "m2"))
    right = op("Layer_3", op("Linear_3_0", tensors=("in", "out")), tensors=("in", "out"))
    built = tree(model(wrong), [3], layers={"Layer_3": right})
    assert built.by_path["3_Layer"].name == "Layer_3"
    linear = built.by_path["3_Layer/0_Linear"]
    assert (linear.name, linear.inputs, linear.outputs) == ("Linear_3_0", ("m1",), ("m2",))


def test_a_neighbours_graph_without_replacement_is_dropped() -> None:
    assert list(tree(model(op("Layer_2", op("Linear_2_0"))), [3]).by_path) == ["", "3_Layer"]


def test_strays_join_in_the_order_of_their_ids() -> None:
    disk = {"0_Transdata": ["0_Inner", "after"], "0_Transdata/0_Inner": ["0_TransKernel", "before"]}
    layers = {"Copy_2": op("Copy_2", param={"a": 1})}
    built = tree(model(op("Embed_1")), [1], strays=[(2, "Copy"), (0, "Transdata")], layers=layers, disk=disk)
    assert list(built.by_path) == ["", "0_Transdata", "0_Transdata/0_Inner", "1_Embed", "2_Copy"]
    assert built.by_path["0_Transdata/0_Inner"].name == "Inner_0_0"
    assert built.by_path["2_Copy"].param == {"a": 1}


def test_an_operation_with_parameters_on_disk_runs_kernels() -> None:
    disk = {"0_Embed": ["0_Strange", "op_param.json"]}
    assert list(tree(model(op("Embed_0")), [0], disk=disk).by_path) == ["", "0_Embed"]


def test_a_wrapper_lives_in_the_directory_of_what_it_wraps() -> None:
    source = model(op("Layer_0", op("PluginOperation_0_0"), op("Linear_0_1")))
    built = tree(source, [0], disk={"0_Layer": ["0_CustomNorm", "1_Linear", "after"]})
    assert built.by_path["0_Layer/0_CustomNorm"].op_type == "PluginOperation"
    assert list(built.by_path)[2:] == ["0_Layer/0_CustomNorm", "0_Layer/1_Linear"]


def test_children_that_only_disk_knows_are_added_in_place() -> None:
    source = model(op("Layer_0", op("Linear_0_0"), op("Linear_0_2")))
    built = tree(source, [0], disk={"0_Layer": ["0_Linear", "1_Extra", "2_Linear"]})
    assert [node.name for node in built.by_path["0_Layer"].children] == [
        "Linear_0_0",
        "Extra_0_1",
        "Linear_0_2",
    ]


def test_children_without_usable_ids_count_by_position() -> None:
    built = tree(model(op("Layer_0", op("Linear"), op("Add"))), [0])
    assert list(built.by_path)[2:] == ["0_Layer/0_Linear", "0_Layer/1_Add"]


def test_a_joined_tree_holds_copies() -> None:
    first, second = tree(model(op("A_0", op("B_0_0"))), [0]), tree(model(op("C_1")), [1])
    whole = joined("both", [first, second])
    assert list(whole.by_path) == ["", "0_A", "0_A/0_B", "1_C"]
    assert whole.by_path["0_A"] is not first.by_path["0_A"]
    assert first.by_path["0_A"].parent is first.root


def test_directory_names_and_id_lists() -> None:
    assert top_level("2_Prefill_layer") == (2, "Prefill_layer")
    assert top_level("after") is None
    assert operation_ids("2_Prefill_layer/0_Attention/10_Linear") == "2_0_10"


# tree: completion order, depth and leaves.


def test_a_node_comes_after_everything_inside_it() -> None:
    root = Node("root", "M", "")
    layer = root.add(Node("layer", "L", "layer"))
    linear = layer.add(Node("linear", "Linear", "layer/linear"))
    head = root.add(Node("head", "H", "head"))
    tree = Tree(root, "m")
    assert [node.name for node in sorted(tree.walk(), key=lambda node: node.order)] == [
        "linear",
        "layer",
        "head",
        "root",
    ]
    assert [node.depth for node in (root, layer, linear, head)] == [0, 1, 2, 1]
    assert [node.is_leaf for node in (layer, linear)] == [False, True]
    assert tree.by_path["layer/linear"] is linear
