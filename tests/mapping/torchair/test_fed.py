"""What a graph was given comes first, under its own name, and everything that reads it comes from there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.tensors.ge_record import GeValue
from acc_pytest.topology.ge_graph import GeDesc, GeNode

from .hand_made import Fx, Ge, constant, op, pairs, reasons, tensor

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
