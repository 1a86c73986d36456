"""What a graph was given comes first, under its own name, and everything that reads it comes from there."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.base import keep_rank
from acc_pytest.dumps.torchair import TorchairDump
from acc_pytest.errors import DumpError, FormatError, MappingError
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.tensors.ge_message import OriginalOp
from acc_pytest.topology.ge_graph import GeDesc, GeNode
from tests.slow import slow
from tests.tensors.ge_writer import GeValue, write_record

from .hand_made import Fx, Ge, constant, mapped, op, pairs, reasons, tensor

PROGRAMS = Path(__file__).resolve().parents[4] / "shared" / "conformance" / "torchair" / "real_programs"
needs_data = pytest.mark.skipif(not PROGRAMS.is_dir(), reason="no ../shared/conformance/torchair here")


MM = "mm-aten.mm.default"
X, SQUARE, OTHER = tensor(1, (2, 4)), tensor(2, (4, 4)), tensor(3, (4, 4))


def given(name: str) -> GeNode:
    return op(name, kind="Data")


def planned(golden: Path, mine: Path) -> Plan:
    return plan(open_dump(str(golden)), open_dump(str(mine)))


def above(found: Plan, test: str, step: int = 0) -> list[str]:
    """The parents of a pair, by their ids."""
    number = next(n for n, pair in enumerate(found.pairs) if (pair.id, pair.step) == (test, step))
    return [found.pairs[parent].id for parent in found.parents[number]]


def fed(found: Plan, graph: str = "graph_1", step: int = 0) -> dict[str, str]:
    return {p.id: p.fed for p in found.pairs if p.fed and (p.graph, p.step) == (graph, step)}


@needs_data
def test_weights_and_the_input_of_a_real_program_come_first() -> None:
    found = planned(PROGRAMS / "mlp/fx", PROGRAMS / "mlp/ge32")
    assert [pair.id for pair in found.pairs[:7]] == [f"arg{number}_1" for number in range(7)]
    assert fed(found) == {f"arg{number}_1": "input" if number == 2 else "weight" for number in range(7)}
    assert above(found, "Transpose_2") == ["arg5_1"]
    # Read a second time: a pair as any other, from the one that stands for it.
    assert above(found, "Add_1[in0]") == ["arg2_1"]
    assert found.unseen == {}


@needs_data
def test_caches_masks_and_positions_are_told_by_the_calls_that_read_them() -> None:
    found = planned(PROGRAMS / "attn/fx", PROGRAMS / "attn/ge32")
    kinds = fed(found, "graph_2")
    assert kinds["arg0_1"] == "input"
    assert kinds["arg6_1"] == kinds["arg8_1"] == "cache"
    assert kinds["arg7_1"] == "positions"
    assert kinds["arg9_1"] == "mask"
    assert {kinds[f"arg{number}_1"] for number in (1, 2, 3, 4, 5, 10, 11)} == {"weight"}
    assert above(found, "Add") == ["arg2_1", "MatMulV2[in0]", "MatMulV2[in1]"]


def test_records_of_data_operators_stand_for_the_inputs(tmp_path: Path) -> None:
    paths = make_torchair_demo(tmp_path, TorchairSpec(tokens=(5,), steps=1))
    found = planned(paths.golden, paths.mine)
    kinds = fed(found)
    assert sorted(kinds.values()) == ["input", *["weight"] * (len(kinds) - 1)]
    assert all(pair.mine.op_type == "Data" for pair in found.pairs if pair.fed)
    are_fed = [pair.fed != "" for pair in found.pairs]
    assert are_fed == sorted(are_fed, reverse=True)


def test_ge_against_ge_is_fed_too(tmp_path: Path) -> None:
    paths = make_torchair_demo(tmp_path, TorchairSpec(tokens=(5,), steps=1))
    found = planned(paths.unfused, paths.mine)
    assert set(fed(found)) == {pair.id for pair in found.pairs if pair.mine.op_type == "Data"} != set()
    assert all(not found.parents[number] for number, pair in enumerate(found.pairs) if pair.fed)


def two_products(root: Path, *calls: str) -> Ge:
    """A GE dump of two products of `X` with transposed square weights, and an FX dump that ran `calls`."""
    values = {
        "t": ({"0": SQUARE}, SQUARE.T.contiguous()),
        "t_1": ({"0": OTHER}, OTHER.T.contiguous()),
        "mm": ({"0": X, "1": SQUARE.T.contiguous()}, X @ SQUARE.T),
        "mm_1": ({"0": X, "1": OTHER.T.contiguous()}, X @ OTHER.T),
    }
    fx = Fx(root / "fx")
    for call in calls:
        fx.ran(f"{call}-aten.{call.partition('_')[0]}.default", *values[call])
    ge = Ge(root / "ge").graph(
        *(given(name) for name in ("x", "one", "other")),
        constant("Const", 1, 0),
        op("Transpose", "one Const"),
        op("MatMul", "x Transpose", f"{MM}.OUTPUT.0"),
        op("Transpose_1", "other Const"),
        op("MatMul_1", "x Transpose_1", "mm_1-aten.mm.default.OUTPUT.0"),
    )
    ge.ran("Transpose", [SQUARE, torch.tensor([1, 0])], [SQUARE.T.contiguous()])
    ge.ran("MatMul", [X, SQUARE.T.contiguous()], [X @ SQUARE.T])
    ge.ran("Transpose_1", [OTHER, torch.tensor([1, 0])], [OTHER.T.contiguous()])
    ge.ran("MatMul_1", [X, OTHER.T.contiguous()], [X @ OTHER.T])
    return ge


def test_a_stored_weight_is_what_the_call_before_its_product_turned(tmp_path: Path) -> None:
    two_products(tmp_path, "t", "mm", "t_1", "mm_1")
    found = planned(tmp_path / "fx", tmp_path / "ge")
    stored = {pair.id: f"{pair.golden.node} {pair.golden.slot}" for pair in found.pairs}
    assert stored["one"] == "t-aten.t.default input[0]"
    assert stored["other"] == "t_1-aten.t.default input[0]"
    assert stored["Transpose_1"] == "t_1-aten.t.default output[0]"


def test_where_several_calls_could_have_turned_it_the_product_itself_tells(tmp_path: Path) -> None:
    two_products(tmp_path, "t_1", "t", "mm", "mm_1")
    found = planned(tmp_path / "fx", tmp_path / "ge")
    (weight,) = (pair for pair in found.pairs if pair.id == "one")
    assert f"{weight.golden.node} {weight.golden.slot}" == f"{MM} input[1]"
    opened = open_pair(weight)
    assert torch.equal(opened.golden.read(0, 16), opened.mine.read(0, 16))


def test_a_product_that_read_the_weight_as_it_is_stored_is_not_compared_with_the_turned_one(
    tmp_path: Path,
) -> None:
    ge = two_products(tmp_path, "t", "mm")
    for path in ge.home().glob("Transpose.Transpose.*"):
        path.unlink()
    found = planned(tmp_path / "fx", tmp_path / "ge")
    assert not any(pair.mine.node == "MatMul" and pair.mine.slot == "input[1]" for pair in found.pairs)


def test_what_nothing_stands_for_is_named(tmp_path: Path) -> None:
    ge = two_products(tmp_path, "t", "mm")
    for path in ge.home().glob("*"):
        if not path.name.startswith("MatMul.MatMul."):
            path.unlink()
    found = planned(tmp_path / "fx", tmp_path / "ge")
    (number,) = (n for n, pair in enumerate(found.pairs) if pair.id == "MatMul")
    assert found.unseen[number] == ("Transpose's input 0 (one)",)


def test_arguments_that_a_call_does_not_have_are_not_taken_from_the_table(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran("addmm-aten.addmm.default", {"0": X, "1": X + 1}, X + 2)
    ge = Ge(tmp_path / "ge").graph(
        given("x"),
        given("y"),
        op("MatMulV2", "x y"),
        op("Add", "MatMulV2 x", "addmm-aten.addmm.default.OUTPUT.0"),
    )
    ge.ran("MatMulV2", [X, X + 1], [X])
    found = planned(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == []


def assigned(root: Path, *, shared: bool) -> Ge:
    """A cache that is read, written, and read again."""
    cache, news = tensor(1), tensor(2)
    fx = Fx(root / "fx").ran("add-aten.add.Tensor", {"0": cache, "1": news}, cache + news)
    fx.ran("copy_-aten.copy_.default", {"0": cache, "1": news}, news)
    fx.ran("mul-aten.mul.Tensor", {"0": news, "1": news}, news * news)
    writes = GeNode(
        "Assign",
        "Assign",
        op("", "cache news").inputs,
        {},
        (GeDesc("ref"), GeDesc("value")),
        (GeDesc("ref", attrs={"_fx_tensor_name": "copy_-aten.copy_.default.OUTPUT.0"}),),
    )
    ge = Ge(root / "ge").graph(
        given("cache"),
        given("news"),
        op("Add", "cache news", "add-aten.add.Tensor.OUTPUT.0"),
        writes,
        op("Mul", "cache news", "mul-aten.mul.Tensor.OUTPUT.0"),
    )
    ge.ran("Add", [cache, news], [cache + news])
    address = 4096 if shared else 0
    ge.ran("Assign", [GeValue(cache, address=address), news], [GeValue(news, address=address)])
    ge.ran("Mul", [news, news], [news * news])
    return ge


def test_a_cache_is_not_compared_where_it_was_written_already(tmp_path: Path) -> None:
    assigned(tmp_path, shared=False)
    found = planned(tmp_path / "fx", tmp_path / "ge")
    assert "Mul input[0] = mul-aten.mul.Tensor input[0]" not in pairs(found)
    assert "Assign input[0] = add-aten.add.Tensor input[0]" in pairs(found)
    assert fed(found)["cache"] == "cache"


def test_an_input_that_its_operator_wrote_over_is_not_compared(tmp_path: Path) -> None:
    assigned(tmp_path, shared=True)
    found = planned(tmp_path / "fx", tmp_path / "ge")
    assert reasons(found, "Assign") == [
        "input[0]: the operator writes its result over it, so that the record may hold either"
    ]


@needs_data
def test_what_a_later_step_was_given_may_come_from_the_step_before_of_whatever_graph() -> None:
    found = planned(PROGRAMS / "attn/fx", PROGRAMS / "attn/ge32")
    numbers = {(p.graph, p.step, p.id): n for n, p in enumerate(found.pairs)}

    def parents(graph: str, step: int, test: str) -> list[tuple[str, object, str]]:
        pairs = [found.pairs[one] for one in found.parents[numbers[graph, step, test]]]
        return [(pair.graph, pair.step, pair.id) for pair in pairs]

    assert parents("graph_1", 0, "arg1_1") == []
    assert parents("graph_2", 0, "arg1_1") == [("graph_1", 0, "arg1_1")]
    assert parents("graph_2", 1, "arg1_1") == [("graph_2", 0, "arg1_1")]
    # The hidden state of a decode step: what came out before, or the same mistake again.
    assert parents("graph_2", 0, "arg0_1") == [("graph_1", 0, "arg0_1"), ("graph_1", 0, "Reshape_15")]
    assert parents("graph_2", 0, "arg6_1") == [("graph_1", 0, "Assign"), ("graph_1", 0, "Assign_1")]
    stored = [("graph_2", 0, name) for name in ("arg6_1", "Assign", "Assign_1")]
    assert parents("graph_2", 1, "arg6_1") == stored


# How much of what FX holds too is compared, and that nothing else is: counted by value on clean dumps.
#
# The planner never reads a value. This does: a tensor of GE that has one of FX's with its shape and its
# values
# could have been mapped, and a pair of two clean dumps whose values differ is wrong.


DATA = Path(__file__).resolve().parents[4] / "shared" / "conformance" / "torchair"
RECALLED_PROGRAMS = {
    "mlp": ("real_programs/mlp/fx", "real_programs/mlp/ge32"),
    "attn": ("real_programs/attn/fx", "real_programs/attn/ge32"),
    "topk": ("ge_and_fx/fx", "ge_and_fx/ge"),
}
LEAST = 6
"""Elements below which equal values prove little."""
MISSED = 0.05
"""What may be missed, of the tensors that FX holds too."""

needs_programs = pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/conformance/torchair here")


@dataclass
class Recall:
    """Tensors of GE that FX holds too, and those of them that no pair compares; pairs that are wrong."""

    held: int
    missed: list[str]
    wrong: list[str]


def recall(golden: Path, mine: Path, tolerance: float) -> Recall:
    found = plan(open_dump(str(golden)), open_dump(str(mine)))
    fx = values_of_fx(golden)
    ge = open_dump(str(mine))
    assert isinstance(ge, TorchairDump)
    compared = {(p.graph, p.step, p.mine.node, p.mine.slot) for p in found.pairs}
    held, missed = 0, []
    for step in ge.steps:
        for node in ge.nodes(step, ge.ranks[0]):
            for slot, ref in ge.tensors(step, ge.ranks[0], node).items():
                place = (step.graph, step.label, node.path, str(slot))
                header = ref.header()
                if header.payload != "data" or header.dtype.kind != "float" or header.numel < LEAST:
                    continue
                value = ref.open()
                there = fx[step.graph, step.label, tuple(value.shape)]
                if any(torch.allclose(one, value.float(), rtol=tolerance, atol=tolerance) for one in there):
                    held += 1
                    missed += [] if place in compared else [" ".join(map(str, place))]
    return Recall(held, missed, wrong_pairs(found, tolerance))


def values_of_fx(golden: Path) -> defaultdict[tuple[object, ...], list[torch.Tensor]]:
    dump = open_dump(str(golden))
    assert isinstance(dump, TorchairDump)
    found: defaultdict[tuple[object, ...], list[torch.Tensor]] = defaultdict(list)
    for step in dump.steps:
        for node in dump.nodes(step, dump.ranks[0]):
            for ref in dump.tensors(step, dump.ranks[0], node).values():
                if ref.header().dtype.kind == "float":
                    value = ref.open()
                    found[step.graph, step.label, tuple(value.shape)].append(value.float())
    return found


def wrong_pairs(found: Plan, tolerance: float) -> list[str]:
    wrong = []
    for pair in found.pairs:
        opened = open_pair(pair)
        size = math.prod(opened.golden.shape)
        one, other = (side.read(0, size).double() for side in (opened.golden, opened.mine))
        if not torch.allclose(one, other, rtol=tolerance, atol=tolerance):
            wrong.append(f"{pair.graph} {pair.step} {pair.id}")
    return wrong


@needs_programs
@pytest.mark.parametrize("program", RECALLED_PROGRAMS)
def test_what_fx_holds_too_is_compared_on_real_programs(program: str) -> None:
    golden, mine = (DATA / side for side in RECALLED_PROGRAMS[program])
    found = recall(golden, mine, 1e-4)
    assert found.wrong == []
    assert found.held > 20
    assert len(found.missed) < MISSED * found.held, found.missed


@needs_programs
@pytest.mark.parametrize("program", ["mlp", slow("attn")])
@pytest.mark.parametrize("rounded", ["ge16", "ge16_nz"])
def test_no_pair_of_a_rounded_run_is_wrong_and_none_is_lost(program: str, rounded: str) -> None:
    golden = DATA / "real_programs" / program / "fx"
    plans = [plan(open_dump(str(golden)), open_dump(str(golden.parent / side))) for side in ("ge32", rounded)]
    assert wrong_pairs(plans[1], 0.05) == []
    exact, other = ({(p.step, p.graph, p.golden.node, p.golden.slot) for p in one.pairs} for one in plans)
    assert exact <= other


def test_what_fx_holds_too_is_compared_on_the_demo(tmp_path: Path) -> None:
    """Written here: weights behind a Transpose, biases, and the prompt, which two operators read."""
    paths = make_torchair_demo(tmp_path, TorchairSpec(tokens=(5,), steps=1))
    for mine in (paths.mine, paths.unfused):
        found = recall(paths.golden, mine, 2e-2)
        assert found.wrong == []
        assert found.held > 20
        assert len(found.missed) < MISSED * found.held, found.missed


# Which rank, graph and step meets which, and what is said of the rest.


A, B = tensor(1), tensor(2)
ADD = "add-aten.add.Tensor"


def ranks(root: Path, numbers: tuple[int, ...], world: int = 4) -> Path:
    for number in numbers:
        Fx(root, rank=number, world=world).ran(ADD, {"0": A}, B)
    return root


def test_common_ranks_meet_and_the_others_are_told(tmp_path: Path) -> None:
    found = mapped(ranks(tmp_path / "g", (0, 1, 2)), ranks(tmp_path / "m", (1, 2, 3)))
    assert sorted({pair.rank for pair in found.pairs if pair.rank is not None}) == [1, 2]
    assert [(alone.side, alone.reason) for alone in found.unmapped] == [
        ("golden", "rank 0 was dumped by golden only"),
        ("mine", "rank 3 was dumped by mine only"),
    ]
    assert "ranks: 2 on both sides (1, 2), compared rank by rank" in found.notes


def test_one_rank_on_each_side_is_a_pair_whatever_its_number(tmp_path: Path) -> None:
    found = mapped(ranks(tmp_path / "g", (0,), 1), ranks(tmp_path / "m", (3,)))
    assert {pair.rank for pair in found.pairs} == {3}
    assert any("rank 0 of golden and rank 3 of mine are paired" in note for note in found.notes)


def test_no_rank_in_common_is_an_error_with_both_lists(tmp_path: Path) -> None:
    with pytest.raises(MappingError, match=r"no rank in common: golden .* has 0, 1, mine .* has 2, 3"):
        mapped(ranks(tmp_path / "g", (0, 1)), ranks(tmp_path / "m", (2, 3)))


def test_worlds_of_different_size_are_noted(tmp_path: Path) -> None:
    found = mapped(ranks(tmp_path / "g", (0, 1), 2), ranks(tmp_path / "m", (0, 1), 4))
    assert any("golden ran in worldsize2, mine in worldsize4" in note for note in found.notes)


def test_acc_rank_leaves_one_rank_of_both(tmp_path: Path) -> None:
    golden = open_dump(str(ranks(tmp_path / "g", (0, 1))))
    mine = open_dump(str(ranks(tmp_path / "m", (0, 1, 2))))
    keep_rank(golden, mine, 1)
    found = plan(golden, mine)
    assert {pair.rank for pair in found.pairs} == {1}
    assert any("--acc-rank 1 leaves out the ranks 0, 2" in note for note in found.notes)


def test_acc_rank_that_a_side_lacks_is_an_error(tmp_path: Path) -> None:
    golden = open_dump(str(ranks(tmp_path / "g", (0, 1))))
    mine = open_dump(str(ranks(tmp_path / "m", (0, 1, 2))))
    with pytest.raises(DumpError, match=r"--acc-rank 2: golden .* has no such rank; choose one of 0, 1"):
        keep_rank(golden, mine, 2)


def test_graphs_meet_by_number_not_by_place(tmp_path: Path) -> None:
    for number in (1, 2):
        Fx(tmp_path / "g").ran(ADD, {"0": A}, B, graph=number)
    for number in (2, 3):
        Fx(tmp_path / "m").ran(ADD, {"0": A}, B, graph=number)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert {pair.layer for pair in found.pairs} == {"graph_2"}
    assert [(alone.side, alone.reason) for alone in found.unmapped] == [
        ("golden", "graph_1 was dumped by golden only"),
        ("mine", "graph_3 was dumped by mine only"),
    ]


def test_one_graph_on_each_side_is_a_pair_whatever_its_number(tmp_path: Path) -> None:
    Fx(tmp_path / "g").ran(ADD, {"0": A}, B, graph=1)
    Fx(tmp_path / "m").ran(ADD, {"0": A}, B, graph=5)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert {pair.layer for pair in found.pairs} == {"graph_5"}
    assert any("graph_1 of golden and graph_5 of mine are paired" in note for note in found.notes)


def test_steps_meet_by_label_and_the_others_are_told(tmp_path: Path) -> None:
    for step in (0, 1, 2):
        Fx(tmp_path / "g").ran(ADD, {"0": A}, B, step=step)
    for step in (1, 5):
        Fx(tmp_path / "m").ran(ADD, {"0": A}, B, step=step)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert {pair.step for pair in found.pairs} == {1}
    assert [(alone.side, alone.step) for alone in found.unmapped] == [
        ("golden", 0),
        ("golden", 2),
        ("mine", 5),
    ]


def test_steps_that_were_both_named_meet_whatever_their_label(tmp_path: Path) -> None:
    Fx(tmp_path / "g").ran(ADD, {"0": A}, B, step=0)
    Fx(tmp_path / "m").ran(ADD, {"0": A}, B, step=4)
    below = "worldsize1_global_rank0/graph_1"
    found = mapped(tmp_path / "g" / below / "0", tmp_path / "m" / below / "4")
    assert {pair.step for pair in found.pairs} == {4}
    with pytest.raises(MappingError, match=r"nothing in common: golden .* has graph_1 step 0"):
        mapped(tmp_path / "g", tmp_path / "m")


def test_graphs_without_numbers_meet_in_their_order(tmp_path: Path) -> None:
    """Other front ends than TorchAir call their models as they like."""
    values = [tensor(1), tensor(2)]
    for side in ("g", "m"):
        for number, name in enumerate(("ge_default_20241114", "other_model")):
            home = tmp_path / side / "20241121145738/0" / name / str(number) / "0"
            write_record(home / f"Gelu.Gelu.1.6.{1763670000000000 + number}", "Gelu", [], [values[number]])
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert [pair.layer for pair in found.pairs] == ["ge_default_20241114", "other_model"]
    assert any("graphs meet in their order" in note for note in found.notes)


# GE against GE: a fused run against one that was not, with and without a graph text.


GE_A, GE_B, C, D, E = (tensor(number) for number in range(5))
GRAPH = (
    op("arg0_1", kind="Data"),
    op("arg1_1", kind="Data"),
    op("arg2_1", kind="Data"),
    op("Mul_1", "arg0_1 arg1_1"),
    op("Add_1", "Mul_1 arg2_1"),
)


def unfused(root: Path, *, text: bool = True) -> Path:
    ge = Ge(root).graph(*GRAPH) if text else Ge(root)
    ge.ran("Mul_1", [GE_A, GE_B], [D])
    ge.ran("Add_1", [D, C], [E])
    return root


def fused(root: Path, name: str = "Mul_1Add_1", *, text: bool = True, origin: bool = False) -> Path:
    ge = Ge(root).graph(*GRAPH) if text else Ge(root)
    output = GeValue(E, original_op=OriginalOp("Add_1", 0) if origin else None)
    ge.ran(name, [GE_A, GE_B, C], [output], kind="AutomaticBufferFusionOp")
    return root


def test_a_fused_operator_meets_the_parts_that_ran_alone(tmp_path: Path) -> None:
    found = mapped(unfused(tmp_path / "g"), fused(tmp_path / "m"))
    assert pairs(found) == [
        "Mul_1Add_1 input[0] = Mul_1 input[0]",
        "Mul_1Add_1 input[1] = Mul_1 input[1]",
        "Mul_1Add_1 input[2] = Add_1 input[1]",
        "Mul_1Add_1 output[0] = Add_1 output[0]",
    ]
    assert [pair.policy for pair in found.pairs] == ["edge", "edge", "edge", "fused"]
    assert found.pairs[-1].reason == "fused of Mul_1, Add_1"
    assert reasons(found, "Mul_1") == ["output[0]: no dumped operator of mine has this tensor"]


def test_golden_may_be_the_fused_side(tmp_path: Path) -> None:
    found = mapped(fused(tmp_path / "g"), unfused(tmp_path / "m"))
    assert pairs(found) == ["Add_1 output[0] = Mul_1Add_1 output[0]"]
    assert reasons(found, "Mul_1")[-1] == "output[0]: golden dumped no output Mul_1:0"


@pytest.mark.parametrize("name", ["Mul_1_ub_fusion", "Mul_1", "made_up"])
def test_names_that_lost_their_parts_are_known_by_the_origin_of_their_outputs(
    tmp_path: Path, name: str
) -> None:
    found = mapped(unfused(tmp_path / "g"), fused(tmp_path / "m", name, origin=True))
    assert pairs(found)[-1] == f"{name} output[0] = Add_1 output[0]"
    assert found.pairs[-1].policy == "origin"


def test_a_cut_name_without_an_origin_is_told(tmp_path: Path) -> None:
    found = mapped(unfused(tmp_path / "g"), fused(tmp_path / "m", "Mul_1_ub_fusion"))
    assert pairs(found) == []
    assert "only the first part is known (Mul_1)" in reasons(found, "Mul_1_ub_fusion")[0]


@pytest.mark.parametrize("origin", [False, True])
def test_without_texts_the_parts_of_a_name_are_looked_up_in_golden(tmp_path: Path, origin: bool) -> None:
    found = mapped(unfused(tmp_path / "g", text=False), fused(tmp_path / "m", text=False, origin=origin))
    assert pairs(found) == ["Mul_1Add_1 output[0] = Add_1 output[0]"]
    assert [reason.split(":")[0] for reason in reasons(found, "Mul_1Add_1")] == [
        "input[0]",
        "input[1]",
        "input[2]",
    ]
    assert any("no graph text" in note for note in found.notes)


def test_without_texts_equal_names_and_types_are_equal_operators(tmp_path: Path) -> None:
    found = mapped(unfused(tmp_path / "g", text=False), unfused(tmp_path / "m", text=False))
    assert len(found.pairs) == 6
    assert {pair.policy for pair in found.pairs} == {"name"}


def test_one_text_serves_both_runs(tmp_path: Path) -> None:
    found = mapped(unfused(tmp_path / "g"), fused(tmp_path / "m", text=False))
    assert len(found.pairs) == 4


def test_texts_of_two_scripts_are_noted(tmp_path: Path) -> None:
    Ge(unfused(tmp_path / "g")).graph(*GRAPH, op("Sub", "Add_1"))
    found = mapped(tmp_path / "g", fused(tmp_path / "m"))
    assert any("golden has 6 operators, mine 5, 5 in common" in note for note in found.notes)


def test_operators_that_ge_inserted_mean_nothing_in_the_other_run(tmp_path: Path) -> None:
    """`trans_TransData_1` counts what one compilation inserted; the other's first may be another one."""
    for side, value in (("g", GE_A), ("m", GE_B)):
        unfused(tmp_path / side)
        Ge(tmp_path / side).ran("trans_TransData_1", [value], [value], kind="TransData")
    found = mapped(tmp_path / "g", tmp_path / "m")
    (check,) = [pair for pair in found.pairs if pair.mine.name == "trans_TransData_1"]
    assert check.golden.refs[0].path == check.mine.refs[0].path
    assert reasons(found, "trans_TransData_1") == [
        f"{slot}: inserted by GE, so that its name means nothing in the other run"
        for slot in ("input[0]", "output[0]")
    ]


def test_a_cut_record_of_mine_fails_where_golden_has_its_operator(tmp_path: Path) -> None:
    golden, mine = unfused(tmp_path / "g"), unfused(tmp_path / "m")
    path = next(mine.rglob("Add.Add_1.*"))
    path.write_bytes(path.read_bytes()[:12])
    found = mapped(golden, mine)
    (broken,) = [pair for pair in found.pairs if pair.mine.name == "Add_1"]
    with pytest.raises(FormatError):
        open_pair(broken)


def test_a_transpose_that_only_one_run_has_is_no_golden_of_a_square_input(tmp_path: Path) -> None:
    square = tensor(1, (3, 3))
    graph = (op("arg0_1", kind="Data"), op("Transpose", "arg0_1"), op("MatMulV2", "arg0_1 Transpose"))
    golden, mine = Ge(tmp_path / "g").graph(*graph), Ge(tmp_path / "m").graph(*graph)
    golden.ran("Transpose", [square.t()], [square])
    golden.ran("MatMulV2", [GE_A, square], [E])
    mine.ran("MatMulV2", [GE_A, square.t().contiguous()], [E])
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert pairs(found) == [
        "MatMulV2 input[0] = MatMulV2 input[0]",
        "MatMulV2 output[0] = MatMulV2 output[0]",
    ]
    assert "Transpose ran on one side only" in reasons(found, "MatMulV2")[0]


def test_inputs_that_cannot_be_the_same_are_told(tmp_path: Path) -> None:
    golden, mine = Ge(tmp_path / "g").graph(*GRAPH), Ge(tmp_path / "m").graph(*GRAPH)
    golden.ran("Mul_1", [GE_A, GE_B], [D])
    mine.ran("Mul_1", [GE_A, tensor(1, (5,))], [D])
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert len(found.pairs) == 2
    assert "shapes [2, 3] and [5] do not agree" in reasons(found, "Mul_1")[0]


def test_records_that_cannot_be_read_on_one_side_only_are_told(tmp_path: Path) -> None:
    golden, mine = Ge(tmp_path / "g").graph(*GRAPH), Ge(tmp_path / "m").graph(*GRAPH)
    golden.ran("Mul_1", [GE_A, GE_B], [D]).write_bytes(b"cut")
    mine.ran("Add_1", [D, C], [E]).write_bytes(b"cut")
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert found.pairs == ()
    assert "not a GE record" in reasons(found, "Mul_1")[0]
    assert "not a GE record" in reasons(found, "Add_1")[0]


def test_without_texts_a_name_of_several_readings_or_none_is_told(tmp_path: Path) -> None:
    golden, mine = Ge(tmp_path / "g"), Ge(tmp_path / "m")
    for name in ("a", "ab", "aa", "b"):
        golden.ran(name, [], [GE_A], kind="Add")
    mine.ran("aab", [], [GE_A], kind="Fused")
    mine.ran("other", [], [GE_A], kind="Fused")
    mine.ran("trans_Data_3", [GE_A], [GE_A], kind="Data")
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert found.pairs == ()
    assert "can be read in several ways" in reasons(found, "aab")[0]
    assert "nor the parts of it" in reasons(found, "other")[0]
    assert "inserted by GE" in reasons(found, "trans_Data_3")[0]
