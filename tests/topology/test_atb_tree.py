"""atb_tree: base ids settled by evidence, graphs repaired, nodes that only disk knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from acc_pytest.topology.atb import (
    KnownOperations,
    ModelFile,
    ReportedOperation,
    TopLevel,
    build_tree,
    joined,
    operation_ids,
    settle_ids,
    top_level,
)
from acc_pytest.topology.tree import Tree


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
