"""The published dumps: FX and graph texts by the real TorchAir, GE records made for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.ge import GeDump
from acc_pytest.dumps.torchair import FxDump
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.torchair.graph import GraphIndex
from acc_pytest.topology.ge_graph import Edge, read_graph

DATA = Path(__file__).resolve().parents[4] / "shared" / "conformance" / "torchair"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/conformance/torchair here")


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(open_dump(str(DATA / "ge_and_fx/fx")), open_dump(str(DATA / "ge_and_fx/ge")))


def test_every_operator_that_has_a_golden_is_matched_to_the_right_tensor(found: Plan) -> None:
    for pair in found.pairs:
        golden, mine = pair.golden.refs[0].open(), pair.mine.refs[0].open()
        assert torch.allclose(golden.double(), mine.double(), rtol=1e-5, atol=1e-6), pair.id
    outputs = {
        (pair.mine.node, pair.mine.slot): (pair.golden.name, pair.golden.slot)
        for pair in found.pairs
        if pair.step == 0 and pair.mine.slot.startswith("output")
    }
    one, two, three = "output[0]", "output[1]", "output[2]"
    assert outputs == {
        ("Transpose", one): ("t", one),
        ("Transpose_1", one): ("t_1", one),
        ("Add", one): ("addmm", one),
        ("Gelu", one): ("gelu", one),
        ("Add_1", one): ("addmm_1", one),
        ("Add_2", one): ("add", one),
        ("LayerNormV4", one): ("native_layer_norm", one),
        ("LayerNormV4", two): ("native_layer_norm", two),
        ("LayerNormV4", three): ("native_layer_norm", three),
        ("SplitV", one): ("split", one),
        ("SplitV", two): ("split", two),
        ("ConcatV2", one): ("cat", one),
        ("Mul_2", one): ("mul", one),
        ("TopKV2", one): ("topk", one),
        ("TopKV2", two): ("topk", two),
        ("Cast_2", one): ("topk", two),
        ("SoftmaxV2", one): ("_softmax", one),
    }


def test_both_steps_are_mapped_alike_and_nothing_is_silent(found: Plan) -> None:
    first, second = ([p.id for p in found.pairs if p.step == step] for step in (0, 1))
    assert first == second
    assert len(first) == 39
    dump = open_dump(str(DATA / "ge_and_fx/ge"))
    assert isinstance(dump, GeDump)
    for step in dump.steps:
        dumped = sum(len(dump.tensors(step, dump.ranks[0], node)) for node in step.tree.walk())
        told = sum(p.step == step.label for p in found.pairs)
        alone = sum(u.step == step.label and u.side == "mine" for u in found.unmapped)
        assert told + alone == dumped


def test_operators_without_a_name_of_fx_say_whose_inner_value_they_are(found: Plan) -> None:
    inner = {u.node: u.reason for u in found.unmapped if u.step == 0 and u.slot == "output[0]"}
    assert inner["MatMulV2"] == "a value inside of addmm, which FX computes in one go"
    assert inner["Pack"] == "a value inside of split, which FX computes in one go"


def test_the_tree_of_the_real_torchair_is_read() -> None:
    dump = open_dump(str(DATA / "real_fx"))
    assert isinstance(dump, FxDump)
    assert [(step.graph, step.label) for step in dump.steps] == [("graph_1", 0), ("graph_1", 1)]
    names = [node.name for node in dump.steps[0].tree.root.children]
    assert names[:4] == ["t", "addmm", "gelu", "t_1"]
    assert len(names) == 12


def test_the_real_fx_dump_against_itself_is_all_pairs_but_for_objects() -> None:
    found = plan(open_dump(str(DATA / "real_fx")), open_dump(str(DATA / "real_fx")))
    files = len(list((DATA / "real_fx").rglob("*.npy")))
    objects = [alone for alone in found.unmapped if alone.side == "mine"]
    assert len(found.pairs) + len(objects) == files
    assert all("non-tensor argument" in alone.reason for alone in objects)
    assert all(pair.golden.refs == pair.mine.refs for pair in found.pairs)


@pytest.mark.parametrize("form", ["original", "optimized"])
def test_the_real_graph_texts_say_what_tensors_are(form: str) -> None:
    index = GraphIndex(read_graph(next((DATA / "real_ge_graphs").glob(f"dynamo_{form}_*.txt"))))
    meaning = index.meaning(Edge("Mul_2", 0))
    assert meaning.fx is not None
    assert (meaning.fx.node, meaning.through) == ("mul", "Cast Cast_1")
    assert index.meaning(Edge("MatMulV2", 0)).kind == "inner"
    assert index.meaning(Edge("arg0_1", 0)).kind == "given"
    assert index.meaning(Edge("Const", 0)).kind == "constant"
