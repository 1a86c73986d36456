"""GE against FX, rule by rule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.dumps import open_dump
from acc_pytest.errors import FormatError, MappingError, NoPayload
from acc_pytest.mapping.pair import Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.mapping.torchair.operators import arrivals, readings
from acc_pytest.tensors.ge_message import OriginalOp
from acc_pytest.tensors.info_file import info_of, write_ge_info
from tests.tensors.ge_statistics_file import write_statistics_csv
from tests.tensors.ge_writer import GeValue

from .generated import Generated, Generator
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


# GE against FX without a graph text.


GELU, NORM = "aten.gelu.default", "aten.native_layer_norm.default"
ORDERED_A, ORDERED_B, ORDERED_C, D = (tensor(number) for number in range(4))


def test_operators_of_one_kind_and_shape_meet_in_the_order_they_ran(tmp_path: Path) -> None:
    fx = (
        Fx(tmp_path / "fx")
        .ran(f"gelu-{GELU}", {"0": ORDERED_A}, ORDERED_B)
        .ran(f"gelu_1-{GELU}", {"0": ORDERED_B}, ORDERED_C)
    )
    fx.ran(f"native_layer_norm-{NORM}", {"0": ORDERED_C}, D, ORDERED_A, ORDERED_B)
    ge = Ge(tmp_path / "ge")
    ge.ran("Gelu_4", [ORDERED_A], [ORDERED_B])
    ge.ran("Gelu_9", [ORDERED_B], [ORDERED_C])
    ge.ran("LayerNormV4", [ORDERED_C], [D, ORDERED_A, ORDERED_B])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == [
        f"Gelu_4 output[0] = gelu-{GELU} output[0]",
        f"Gelu_9 output[0] = gelu_1-{GELU} output[0]",
        *(f"LayerNormV4 output[{k}] = native_layer_norm-{NORM} output[{k}]" for k in range(3)),
    ]
    assert {pair.policy for pair in found.pairs} == {"order"}
    assert "there is no graph text" in reasons(found, "Gelu_4")[0]
    assert any("no graph text (dynamo_original_graph_1" in note for note in found.notes)


def test_kinds_that_one_side_ran_more_often_stay_alone(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(f"gelu-{GELU}", {"0": ORDERED_A}, ORDERED_B)
    ge = Ge(tmp_path / "ge")
    ge.ran("Gelu", [ORDERED_A], [ORDERED_B])
    ge.ran("Gelu_1", [ORDERED_B], [ORDERED_C])
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == []


def test_kinds_that_torchair_builds_for_other_calls_or_fusion_hides_stay_alone(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran("mul-aten.mul.Tensor", {"0": ORDERED_A}, ORDERED_B).ran(
        f"gelu-{GELU}", {"0": ORDERED_A}, ORDERED_B
    )
    ge = Ge(tmp_path / "ge")
    ge.ran("Mul", [ORDERED_A], [ORDERED_B])
    ge.ran("Gelu", [ORDERED_A], [ORDERED_B])
    ge.ran("Gelu_1Sub_3", [ORDERED_A], [ORDERED_B], kind="ElementWise")
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == []


# Every match is right: on tensors of noise, a pair that is none differs in its values.


SEEDS = range(12)


def planned(golden: Path, mine: Path) -> Plan:
    return plan(open_dump(str(golden)), open_dump(str(mine)))


def is_right(pair: Pair) -> bool:
    """Whether mine is golden, rounded to float16."""
    try:
        golden, mine = pair.golden.refs[0].open(), pair.mine.refs[0].open()
    except NoPayload:
        return True
    if golden.is_floating_point():
        golden, mine = golden.half(), mine.half()
    return torch.equal(golden.reshape(-1), mine.reshape(-1).to(golden.dtype))


@pytest.fixture(scope="module", params=SEEDS)
def generated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return Generator(request.param).make(tmp_path_factory.mktemp("generated"))


def test_ge_against_fx_has_no_false_match_and_misses_nothing(generated: Generated) -> None:
    found = planned(generated.golden, generated.mine)
    wrong = [(pair.mine.node, pair.mine.slot, pair.golden.node) for pair in found.pairs if not is_right(pair)]
    assert wrong == []
    matched = {(pair.mine.node, pair.mine.slot) for pair in found.pairs}
    assert generated.expected - matched == set()


def test_every_dumped_tensor_is_a_pair_or_has_a_reason(generated: Generated) -> None:
    mine = open_dump(str(generated.mine))
    found = plan(open_dump(str(generated.golden)), mine)
    step, rank = mine.steps[0], mine.ranks[0]
    dumped = Counter(
        (node.path, str(slot)) for node in step.tree.walk() for slot in mine.tensors(step, rank, node)
    )
    told = Counter((pair.mine.node, pair.mine.slot) for pair in found.pairs)
    # A self-check is one pair for both tensors of its operator.
    told += Counter((pair.mine.node, pair.golden.slot) for pair in found.pairs if pair.policy == "self")
    told += Counter((alone.node, alone.slot) for alone in found.unmapped if alone.side == "mine")
    assert told == dumped
    assert all(alone.reason and alone.ref is not None for alone in found.unmapped)


def test_fused_against_unfused_has_no_false_match(generated: Generated) -> None:
    found = planned(generated.unfused, generated.mine)
    assert [pair.mine.node for pair in found.pairs if not is_right(pair)] == []
    outputs = {pair.mine.node for pair in found.pairs if pair.mine.slot == "output[0]"}
    every = {node.path for node in open_dump(str(generated.mine)).steps[0].tree.root.children}
    assert every - outputs == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_graph_text_nothing_false_is_matched_either(seed: int, tmp_path: Path) -> None:
    generated = Generator(seed).make(tmp_path)
    for home in (generated.mine, generated.unfused):
        next(home.glob("dynamo_*.txt")).unlink()
    for golden in (generated.golden, generated.unfused):
        found = planned(golden, generated.mine)
        assert any("no graph text" in note for note in found.notes)
        wrong = [(p.mine.node, p.mine.slot, p.golden.node) for p in found.pairs if not is_right(p)]
        assert wrong == [], golden


# Names taken apart, and inputs told apart: the two small searches of the mapping.


NAMES = {"Add", "Add_1", "Add_12", "Mul", "Mul_1", "MulAdd"}


def test_a_fused_name_is_read_to_its_end() -> None:
    assert readings("Mul_1Add_12", NAMES) == [("Mul_1", "Add_12")]
    assert readings("Add", NAMES) == [("Add",)]


def test_a_beginning_that_is_a_name_is_no_reading() -> None:
    assert readings("Add_25", NAMES) == []
    assert readings("Add_1_ub_fusion", NAMES) == []
    assert readings("Add_12x", NAMES) == []


def test_the_fewest_names_win() -> None:
    assert readings("MulAdd_1", NAMES) == [("Mul", "Add_1")]
    assert readings("MulAddAdd", NAMES) == [("MulAdd", "Add")]


def test_readings_of_equal_length_are_all_told() -> None:
    assert sorted(readings("aab", {"a", "ab", "aa", "b"})) == [("a", "ab"), ("aa", "b")]


def test_a_name_with_thousands_of_readings_is_bounded() -> None:
    assert len(readings("a" * 400, {"a" * size for size in range(3, 8)})) <= 16


@given(st.lists(st.sampled_from(sorted(NAMES)), min_size=1, max_size=6))
def test_what_was_put_together_is_among_the_readings_or_beaten_by_fewer(parts: list[str]) -> None:
    found = readings("".join(parts), NAMES)
    assert tuple(parts) in found or len(found[0]) < len(parts)


def test_equal_numbers_leave_no_choice() -> None:
    assert arrivals("ab", [[True, False], [False, True]], 2) == ["a", "b"]


def test_an_input_left_out_is_found_by_its_shape_or_not_at_all() -> None:
    # Of a, b, c one was not dumped; only c may be the second input, so a or b is the first.
    assert arrivals("abc", [[True, False], [True, False], [False, True]], 2) == [None, "c"]
    assert arrivals("abc", [[True, True]] * 3, 2) == [None, None]


def test_one_tensor_twice_is_no_choice() -> None:
    assert arrivals("aa", [[True], [True]], 1) == ["a"]


def test_more_inputs_than_edges_are_none_of_them() -> None:
    assert arrivals("a", [[True, True]], 2) == [None, None]
    assert arrivals("", [], 2) == [None, None]


# FX against FX: call by call.


FX_ADD, MUL = "add-aten.add.Tensor", "mul-aten.mul.Tensor"


def test_every_argument_and_result_of_a_call_is_compared(tmp_path: Path) -> None:
    for side in ("g", "m"):
        Fx(tmp_path / side).ran("cat-aten.cat.default", {"0.0": A, "0.1": B, "1": -1}, C)
    assert pairs(mapped(tmp_path / "g", tmp_path / "m")) == [
        f"cat-aten.cat.default {slot} = cat-aten.cat.default {slot}"
        for slot in ("input[0][0]", "input[0][1]", "input[1]", "output[0]")
    ]


def test_arguments_that_are_no_tensors_are_told_and_never_opened(tmp_path: Path) -> None:
    for side in ("g", "m"):
        Fx(tmp_path / side).ran(FX_ADD, {"0": A, "1": None, "2": "[None, tensor(1)]"}, B)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert len(found.pairs) == 2
    told = [reason for reason in reasons(found, FX_ADD) if reason.startswith("input")]
    assert sum("pickled object, which is never opened" in reason for reason in told) == 2
    assert sum("stored as text" in reason for reason in told) == 2


def test_names_of_symbolic_arithmetic_are_mapped_and_selectable(tmp_path: Path) -> None:
    call = "mul_15-<built-in function mul>"
    for side in ("g", "m"):
        Fx(tmp_path / side).ran(call, {"0": 3, "1": 4}, 12)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert found.pairs[-1].mine.node == call
    assert found.pairs[-1].id == "mul_15-_built-in_function_mul_"


def test_keyword_arguments_of_one_side_only_are_told(tmp_path: Path) -> None:
    Fx(tmp_path / "g").ran(FX_ADD, {"0": A}, B)
    Fx(tmp_path / "m").ran(FX_ADD, {"0": A, "KWARG.alpha": 2}, B)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert len(found.pairs) == 2
    assert reasons(found, FX_ADD) == [f"input[alpha]: golden's {FX_ADD} has no input[alpha]"]


def test_a_call_more_on_one_side_does_not_shift_the_names_of_the_others(tmp_path: Path) -> None:
    """Mine computes one `mul` more, so `mul_1` of mine is `mul` of golden and so on."""
    golden, mine = Fx(tmp_path / "g"), Fx(tmp_path / "m")
    mine.ran(MUL, {"0": A}, tensor(9, (5,)))
    for number in range(4):
        values = [tensor(10 * number + place) for place in range(3)]
        tail = f"_{number}" if number else ""
        golden.ran(f"mul{tail}-aten.mul.Tensor", {"0": values[0]}, values[1])
        golden.ran(f"add{tail}-aten.add.Tensor", {"0": values[1]}, values[2])
        mine.ran(f"mul_{number + 1}-aten.mul.Tensor", {"0": values[0]}, values[1])
        mine.ran(f"add{tail}-aten.add.Tensor", {"0": values[1]}, values[2])
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert len(found.pairs) == 16
    for pair in found.pairs:
        assert torch.equal(pair.golden.refs[0].open(), pair.mine.refs[0].open())
    assert {pair.policy for pair in found.pairs if "mul" in pair.mine.node} == {"order"}
    assert "golden calls aten.mul.Tensor 4 times, mine 5 times" in reasons(found, MUL)[0]


def test_a_view_on_one_side_and_a_reshape_on_the_other_are_one_call(tmp_path: Path) -> None:
    Fx(tmp_path / "g").ran("view-aten.view.default", {"0": A}, A)
    Fx(tmp_path / "m").ran("view-aten.reshape.default", {"0": A}, A)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert len(found.pairs) == 2
    assert "view->reshape" in found.pairs[0].reason


def test_calls_of_one_side_only_have_a_reason(tmp_path: Path) -> None:
    Fx(tmp_path / "g").ran(FX_ADD, {"0": A}, B).ran("exp-aten.exp.default", {"0": A}, C)
    Fx(tmp_path / "m").ran(FX_ADD, {"0": A}, B).ran("log-aten.log.default", {"0": A}, C)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert reasons(found, "log-aten.log.default")[0] == "input[0]: golden dumped no call of aten.log.default"
    assert "no call of mine is known to be this one" in reasons(found, "exp-aten.exp.default")[0]
    assert (found.golden_mapped, found.golden_total) == (1, 2)


def test_what_no_call_made_comes_first_and_is_told_by_the_calls_that_read_it(tmp_path: Path) -> None:
    x, weight, bias = tensor(1, (2, 4)), tensor(2, (3, 4)), tensor(3, (3,))
    for side in ("one", "other"):
        fx = Fx(tmp_path / side)
        fx.ran("relu-aten.relu.default", {"0": x}, x + 1)
        fx.ran("t-aten.t.default", {"0": weight}, weight.t().contiguous())
        fx.ran(
            "addmm-aten.addmm.default", {"0": bias, "1": x + 1, "2": weight.t().contiguous()}, x @ weight.t()
        )
    found = mapped(tmp_path / "one", tmp_path / "other")
    fed = [(pair.id, pair.fed) for pair in found.pairs if pair.fed]
    assert fed == [("t-aten.t.default[in0]", "weight"), ("addmm-aten.addmm.default[in0]", "weight")]
    assert [pair.fed for pair in found.pairs[:2]] == ["weight", "weight"]
    assert found.parents[:2] == ((), ())
