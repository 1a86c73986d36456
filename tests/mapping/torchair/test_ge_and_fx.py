"""GE against FX, rule by rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.errors import FormatError, MappingError
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.tensors.ge_record import GeValue, OriginalOp
from acc_pytest.tensors.info_file import info_of, write_ge_info
from tests.tensors.ge_statistics_file import write_statistics_csv

from .hand_made import Fx, Ge, mapped, op, pairs, reasons, tensor

A, B, C = tensor(1), tensor(2), tensor(3)
ADD = "add-aten.add.Tensor"
MM = "mm-aten.mm.default"


def test_the_output_that_a_name_says_is_compared_not_the_one_at_its_place(tmp_path: Path) -> None:
    places = torch.tensor([2, 0, 1])
    Fx(tmp_path / "fx").ran("topk-aten.topk.default", {"0": A}, B, places)
    top = "topk-aten.topk.default.OUTPUT"
    ge = Ge(tmp_path / "ge").graph(
        op("arg0_1", kind="Data"),
        op("TopKV2", "arg0_1", f"{top}.0", ""),
        op("Cast_2", "TopKV2:1", f"{top}.1"),
    )
    ge.ran("TopKV2", [A], [B, places.int()])
    ge.ran("Cast_2", [places.int()], [places])
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == [
        "TopKV2 input[0] = topk-aten.topk.default input[0]",
        "TopKV2 output[0] = topk-aten.topk.default output[0]",
        "TopKV2 output[1] = topk-aten.topk.default output[1]",
        "Cast_2 input[0] = topk-aten.topk.default output[1]",
        "Cast_2 output[0] = topk-aten.topk.default output[1]",
    ]


def test_an_alias_through_a_cast_that_changes_the_kind_of_number_is_no_golden(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran("floor-aten.floor.default", {"0": A}, torch.tensor([[1, 2, 3]]))
    ge = Ge(tmp_path / "ge").graph(
        op("arg0_1", kind="Data"),
        op("RealDiv", "arg0_1"),
        op("Cast", "RealDiv", "floor-aten.floor.default.OUTPUT.0"),
    )
    ge.ran("RealDiv", [A], [torch.tensor([[1.5, 2.5, 3.5]])])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    (why,) = [reason for reason in reasons(found, "RealDiv") if reason.startswith("output")]
    assert "one holds integer numbers, the other floating point ones" in why


def test_a_view_that_became_a_reshape_is_compared_and_noted(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran("view-aten.view.default", {"0": A}, A.reshape(6))
    ge = Ge(tmp_path / "ge").graph(
        op("arg0_1", kind="Data"), op("Reshape", "arg0_1", "view-aten.reshape.default.OUTPUT.0")
    )
    ge.ran("Reshape", [A], [A.reshape(6)])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found)[-1] == "Reshape output[0] = view-aten.view.default output[0]"
    assert "aten.view.default was optimised to aten.reshape.default (view->reshape)" in found.pairs[-1].reason


def test_names_that_files_cannot_hold_are_found(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B)
    ge = Ge(tmp_path / "ge").graph(op("layer.0/Add 1", "", f"{ADD}.OUTPUT.0", kind="Add"))
    ge.ran("layer_0_Add_1", [], [B], kind="Add", real="layer.0/Add 1")
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == [f"layer_0_Add_1 output[0] = {ADD} output[0]"]


def test_of_two_operators_with_one_file_name_the_header_decides(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B).ran("mul-aten.mul.Tensor", {"0": A}, C)
    ge = Ge(tmp_path / "ge").graph(
        op("a/b", "", f"{ADD}.OUTPUT.0", kind="Add"),
        op("a.b", "", "mul-aten.mul.Tensor.OUTPUT.0", kind="Add"),
    )
    ge.ran("a_b", [], [C], kind="Add", real="a.b")
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == [
        "a_b output[0] = mul-aten.mul.Tensor output[0]"
    ]


def test_a_name_that_begins_like_another_is_unknown(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B)
    ge = Ge(tmp_path / "ge").graph(op("Add_2", "", f"{ADD}.OUTPUT.0"))
    ge.ran("Add_25", [A], [B])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == []
    assert all("in no graph text under this name" in reason for reason in reasons(found, "Add_25"))


def test_a_fused_name_with_two_readings_is_told_unless_the_graph_links_one(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B)
    nodes = [op(name, "", "", kind="Add") for name in ("a", "ab", "aa")]
    ge = Ge(tmp_path / "ge").graph(*nodes, op("b", "", f"{ADD}.OUTPUT.0", kind="Add"))
    ge.ran("aab", [], [B], kind="Fused")
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == []
    assert "can be read in several ways" in reasons(found, "aab")[0]
    Ge(tmp_path / "ge").graph(*nodes, op("b", "aa", f"{ADD}.OUTPUT.0", kind="Add"))
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == [f"aab output[0] = {ADD} output[0]"]


def test_outputs_of_a_made_up_name_are_those_of_their_origin(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B)
    ge = Ge(tmp_path / "ge").graph(op("arg0_1", kind="Data"), op("Add_7", "arg0_1", f"{ADD}.OUTPUT.0"))
    ge.ran("some_pass_1", [A], [GeValue(B, original_op=OriginalOp("Add_7", 0))], kind="AddN")
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == [f"some_pass_1 output[0] = {ADD} output[0]"]
    assert found.pairs[0].policy == "origin"
    assert "not known which input this is" in reasons(found, "some_pass_1")[0]


def test_arguments_of_a_call_are_compared_where_only_one_can_be_meant(tmp_path: Path) -> None:
    weight = tensor(4, (3,))
    Fx(tmp_path / "fx").ran(ADD, {"0": A, "1": weight, "2": 1}, B)
    ge = Ge(tmp_path / "ge").graph(
        op("arg0_1", kind="Data"), op("arg1_1", kind="Data"), op("Add", "arg1_1 arg0_1", f"{ADD}.OUTPUT.0")
    )
    ge.ran("Add", [weight, A], [B])
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == [
        f"Add input[1] = {ADD} input[0]",
        f"Add input[0] = {ADD} input[1]",
        f"Add output[0] = {ADD} output[0]",
    ]


@pytest.mark.parametrize(
    ("shape", "ran", "met"), [((3, 3), False, False), ((2, 3), False, True), ((3, 3), True, True)]
)
def test_a_transpose_that_its_reader_may_have_swallowed_is_no_golden_of_an_input(
    tmp_path: Path, shape: tuple[int, int], ran: bool, met: bool
) -> None:
    weight = tensor(4, shape)
    Fx(tmp_path / "fx").ran("t-aten.t.default", {"0": weight.t()}, weight).ran(MM, {"0": A, "1": weight}, B)
    ge = Ge(tmp_path / "ge").graph(
        op("arg0_1", kind="Data"),
        op("Transpose", "arg0_1", "t-aten.t.default.OUTPUT.0"),
        op("MatMulV2", "arg0_1 Transpose", f"{MM}.OUTPUT.0"),
    )
    if ran:
        ge.ran("Transpose", [weight.t()], [weight])
    ge.ran("MatMulV2", [A, weight], [B])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert ("MatMulV2 input[1] = t-aten.t.default output[0]" in pairs(found)) == met
    assert any("may transpose by itself" in reason for reason in reasons(found, "MatMulV2")) != met


def test_an_inserted_cast_is_checked_against_itself(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B)
    ge = Ge(tmp_path / "ge").graph(op("Add", "", f"{ADD}.OUTPUT.0"))
    ge.ran("Add", [], [B])
    ge.ran("trans_Cast_3", [B], [B.half()], kind="Cast")
    ge.ran("trans_Cast_4", [B], [B.int()], kind="Cast")
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    (check,) = [pair for pair in found.pairs if pair.policy == "self"]
    assert (check.id, check.golden.slot, check.mine.slot) == ("trans_Cast_3[self]", "input[0]", "output[0]")
    assert "self-check" in check.reason
    assert "one holds floating point numbers" in reasons(found, "trans_Cast_4")[0]


def test_a_slice_of_an_operator_is_not_compared_with_the_whole(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B)
    ge = Ge(tmp_path / "ge").graph(op("Add", "", f"{ADD}.OUTPUT.0"))
    ge.ran("Add", [], [GeValue(B, original_op=OriginalOp("Add", 0))], fields=".4.1.0.0")
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == []
    assert "a slice of an operator that ran in threads" in reasons(found, "Add/thread0")[0]


def test_a_cut_record_fails_its_own_test_alone(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B).ran("mul-aten.mul.Tensor", {"0": A}, C)
    ge = Ge(tmp_path / "ge").graph(
        op("Add", "", f"{ADD}.OUTPUT.0"), op("Mul", "Add", "mul-aten.mul.Tensor.OUTPUT.0")
    )
    broken = ge.ran("Add", [], [B])
    broken.write_bytes(broken.read_bytes()[:20])
    ge.ran("Mul", [B], [C])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == [
        f"Add output[0] = {ADD} output[0]",
        f"Mul input[0] = {ADD} output[0]",
        "Mul output[0] = mul-aten.mul.Tensor output[0]",
    ]
    with pytest.raises(FormatError, match=r"is truncated: declares a header of 42 bytes, 12"):
        open_pair(found.pairs[0])
    open_pair(found.pairs[2])


def test_an_output_of_another_shape_is_a_test_that_fails(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B)
    ge = Ge(tmp_path / "ge").graph(op("Add", "", f"{ADD}.OUTPUT.0"))
    ge.ran("Add", [], [tensor(2, (3, 3))])
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == [f"Add output[0] = {ADD} output[0]"]


def test_statistics_and_info_files_stand_for_their_records(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B).ran("mul-aten.mul.Tensor", {"0": A}, C)
    ge = Ge(tmp_path / "ge").graph(
        op("Add", "", f"{ADD}.OUTPUT.0"), op("Mul", "Add", "mul-aten.mul.Tensor.OUTPUT.0")
    )
    add, mul = ge.ran("Add", [], [B]), ge.ran("Mul", [B], [C])
    for path in (add, mul):
        path.unlink()
    write_statistics_csv(add.with_name(add.name + ".csv"), [], [B])
    write_ge_info(mul.with_name(mul.name + "_min_max.npz"), [info_of(B)], [info_of(C)])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert [pair.id for pair in found.pairs] == ["Add", "Mul[in0]", "Mul"]
    assert all(pair.mine.refs[0].header().payload == "statistics" for pair in found.pairs)


def test_fx_may_be_the_side_under_test(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B)
    ge = Ge(tmp_path / "ge").graph(op("Add", "", f"{ADD}.OUTPUT.0"))
    ge.ran("Add", [], [B])
    found = mapped(tmp_path / "ge", tmp_path / "fx")
    assert (found.golden_kind, found.mine_kind) == ("ge", "fx")
    assert pairs(found) == [f"{ADD} output[0] = Add output[0]"]


def test_what_fx_never_computes_and_what_it_did_not_dump_has_its_own_reason(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, None)
    ge = Ge(tmp_path / "ge").graph(
        op("Mul", ""), op("Add", "Mul", f"{ADD}.OUTPUT.0"), op("Sub", "Add", "sub-aten.sub.Tensor.OUTPUT.0")
    )
    for name, inputs in (("Mul", []), ("Add", [A]), ("Sub", [B])):
        ge.ran(name, inputs, [C])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == []
    assert reasons(found, "Mul") == ["output[0]: a value inside of add, which FX computes in one go"]
    assert "stored as a pickled object, which is never opened" in reasons(found, "Add")[1]
    assert reasons(found, "Sub")[1] == "output[0]: FX dumped no call sub (aten.sub.Tensor)"


def test_tests_follow_the_graph_not_the_clock(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B).ran("mul-aten.mul.Tensor", {"0": A}, C)
    ge = Ge(tmp_path / "ge").graph(
        op("Add", "", f"{ADD}.OUTPUT.0"), op("Mul", "Add", "mul-aten.mul.Tensor.OUTPUT.0")
    )
    ge.ran("Mul", [B], [C])
    ge.ran("Add", [], [B])
    assert [pair.id for pair in mapped(tmp_path / "fx", tmp_path / "ge").pairs] == ["Add", "Mul[in0]", "Mul"]


def test_levels_of_a_graph_are_operators_and_its_last_output(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B).ran("mul-aten.mul.Tensor", {"0": A}, C)
    ge = Ge(tmp_path / "ge").graph(
        op("Add", "", f"{ADD}.OUTPUT.0"), op("Mul", "Add", "mul-aten.mul.Tensor.OUTPUT.0")
    )
    ge.ran("Add", [], [B])
    ge.ran("Mul", [B], [C])
    both = (tmp_path / "fx", tmp_path / "ge")
    assert [pair.id for pair in mapped(*both, "logits").pairs] == ["Mul"]
    assert len(mapped(*both, "op").pairs) == 3
    layers = mapped(*both, "layer")
    assert layers.pairs == ()
    assert any("have operators only" in note for note in layers.notes)


def test_a_dump_of_another_kind_is_refused(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B)
    torch.save(A, tmp_path / "x.pth")
    with pytest.raises(MappingError, match="can only be compared with a GE or FX dump"):
        mapped(tmp_path / "fx", tmp_path / "x.pth")


def test_a_fused_operator_with_more_outputs_gives_those_that_others_read(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B).ran("mul-aten.mul.Tensor", {"0": B}, C)
    ge = Ge(tmp_path / "ge").graph(
        op("Add", "", f"{ADD}.OUTPUT.0"),
        op("Mul", "Add", "mul-aten.mul.Tensor.OUTPUT.0"),
        op("Sub", "Add Mul"),
    )
    ge.ran("AddMul", [], [B, C], kind="ElementWise")
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == [
        f"AddMul output[0] = {ADD} output[0]",
        "AddMul output[1] = mul-aten.mul.Tensor output[0]",
    ]


def test_outputs_that_nobody_can_tell_apart_are_told(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(ADD, {"0": A}, B)
    ge = Ge(tmp_path / "ge").graph(op("Mul"), op("Add", "Mul", f"{ADD}.OUTPUT.0"), op("Sub", "Add"))
    ge.ran("MulAdd", [], [B, C, A], kind="ElementWise")
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == []
    assert "not known which tensor of the graph this output is" in reasons(found, "MulAdd")[0]


def test_calls_and_outputs_that_fx_lacks_are_told(tmp_path: Path) -> None:
    fx = Fx(tmp_path / "fx").ran("add-aten.add.Scalar", {"0": A}, B).ran("add-aten.add_.Tensor", {"0": A}, B)
    fx.ran("topk-aten.topk.default", {"0": A}, B)
    ge = Ge(tmp_path / "ge").graph(
        op("Add", "", f"{ADD}.OUTPUT.0"), op("TopKV2", "lost_op", "", "topk-aten.topk.default.OUTPUT.1")
    )
    ge.ran("Add", [], [B])
    ge.ran("TopKV2", [A], [B, C])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert reasons(found, "Add") == [
        "output[0]: FX dumped several calls named add, none of target aten.add.Tensor"
    ]
    assert reasons(found, "TopKV2") == [
        "input[0]: made by an operator that is not in the graph text (lost_op)",
        "output[0]: a value inside of topk, which FX computes in one go",
        "output[1]: FX dumped no output 1 of topk",
    ]


def test_a_layout_that_stays_the_devices_is_told_instead_of_compared(tmp_path: Path) -> None:
    stored = torch.zeros(2, 1, 16, 16)
    Fx(tmp_path / "fx").ran("conv-aten.conv.default", {"0": A}, stored)
    ge = Ge(tmp_path / "ge").graph(op("Conv2D", "", "conv-aten.conv.default.OUTPUT.0"))
    value = GeValue(stored, "fractal_z", sub_format=2, shape=(8, 4, 4, 4), stored=True)
    ge.ran("Conv2D", [], [value])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == []
    assert "stored as fractal_z, a layout of the device" in reasons(found, "Conv2D")[0]
