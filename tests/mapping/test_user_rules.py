"""What a user's `op_mapping_file.json` pairs, and what it leaves to roles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.dumps import open_dump
from acc_pytest.lab.demo.make import DemoSpec, make_demo
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.views import LastToken
from acc_pytest.topology.tree import Node, Tree

from .test_planner import FLAT, HIDDEN, atb_layer, operator, torch_layer
from .trees import MemoryDump, Shapes, atb_tree, by_mine, torch_node

PROBE = Path(__file__).parents[2].parent / "shared" / "conformance" / "probe"
GUIDE = {
    "LayerNormOperation": "LayerNorm",
    "LinearOperation": "Linear",
    "CommonLayer_outtensor0": ["GLMBlock_output_0", "BloomBlock_output_0"],
    "MlpGateLayerV2": ["BloomMLP", "MLP"],
    "RmsNormOperation": ["RMSNorm"],
    "SelfAttentionOperation": ["CoreAttention"],
}
"""The table that the old tool's guide prints as an example."""
SPECS = [
    DemoSpec(family=family, layers=1, decode_steps=1, ranks=ranks, warmup=False)
    for ranks, families in (
        (1, ("llama", "bloom", "chatglm", "qwen", "moe", "llama-separate", "llama-int8")),
        (2, ("llama", "bloom", "moe")),
    )
    for family in families
]
SETS = [
    ("A/golden", "A/atb"),
    ("A_bf16/golden", "A_bf16/atb"),
    ("B_e2/golden", "B_e2/atb"),
    ("A/golden", "C/atb"),
    ("D_stats/golden", "D_stats/atb"),
    ("A/golden", "D_e4/atb"),
    ("A/golden", "D_e4/atb_named"),
    ("A/golden", "D_misc/time2"),
]


def write(tmp_path: Path, entries: Any) -> str:
    file = tmp_path / "op_mapping_file.json"
    file.write_text(json.dumps(entries))
    return str(file)


def pairs(golden_path: Path, mine_path: Path, file: str = "") -> set[tuple[Any, ...]]:
    """What is compared with what, and how it is read."""
    golden = open_dump(str(golden_path))
    made = plan(golden, open_dump(str(mine_path), golden=golden), op_mapping_file=file)
    return {(pair.step, pair.rank, pair.id, pair.golden, pair.mine) for pair in made.pairs}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.family}-{spec.ranks}")
def test_the_guides_map_changes_no_pair_of_a_clean_demo(spec: DemoSpec, tmp_path: Path) -> None:
    paths = make_demo(tmp_path, spec)
    without = pairs(paths.golden, paths.mine)
    assert without
    assert pairs(paths.golden, paths.mine, write(tmp_path, GUIDE)) == without


@pytest.mark.skipif(not PROBE.is_dir(), reason="no conformance data at ../shared/conformance/probe")
@pytest.mark.parametrize(("golden", "mine"), SETS, ids=lambda name: name.replace("/", "-"))
def test_the_guides_map_changes_no_pair_of_a_real_dump(golden: str, mine: str, tmp_path: Path) -> None:
    without = pairs(PROBE / golden, PROBE / mine)
    assert without
    assert pairs(PROBE / golden, PROBE / mine, write(tmp_path, GUIDE)) == without


def torch_side(
    tmp_path: Path,
    *more: tuple[str, str],
    shapes: Shapes | None = None,
    head: Sequence[Node] = (),
) -> MemoryDump:
    """One layer of linears with `more` modules at its end, and `head` outside of it."""
    layer = torch_layer("root.model.layers.0")
    for name, op_type in more:
        layer.add(torch_node(f"{layer.path}.{name}", op_type))
    layers = torch_node("root.model.layers", "ModuleList", layer)
    model = torch_node("root.model", "LlamaModel", layers)
    tree = Tree(torch_node("root", "LlamaForCausalLM", model, *head), "m")
    return MemoryDump(tmp_path / "g", "torch", tree, shapes or {}, HIDDEN)


def atb_side(
    tmp_path: Path,
    *more: list[Any],
    shapes: Shapes | None = None,
    head: Sequence[list[Any]] = (),
) -> MemoryDump:
    """The same of mine."""
    name, op_type, inputs, outputs, param, children = atb_layer(0)
    layer = [name, op_type, inputs, outputs, param, [*children, *more]]
    return MemoryDump(tmp_path / "m", "atb", atb_tree([layer, *head]), shapes or {}, FLAT)


def test_a_rule_of_types_pairs_what_nothing_else_knows(tmp_path: Path) -> None:
    golden = torch_side(tmp_path, ("mixer", "StateMixer"))
    mine = atb_side(tmp_path, operator("Scan", "0_8", "x2", "s"))
    assert "layers.0/ScanOperation_0_8" not in by_mine(plan(golden, mine))
    found = by_mine(plan(golden, mine, op_mapping_file=write(tmp_path, {"ScanOperation": "StateMixer"})))
    expected = ("root.model.layers.0.mixer", "output[0]", "op-mapping-file")
    assert found["layers.0/ScanOperation_0_8"] == expected


def test_a_rule_of_types_takes_nothing_from_roles(tmp_path: Path) -> None:
    golden, mine = torch_side(tmp_path), atb_side(tmp_path)
    without = by_mine(plan(golden, mine))
    entries = {
        "ElewiseOperation": "LlamaAttention",
        "RmsNormOperation": "Linear",
        "LinearOperation": "Linear",
    }
    assert by_mine(plan(golden, mine, op_mapping_file=write(tmp_path, entries))) == without


def test_a_rule_that_roles_contradict_is_a_note(tmp_path: Path) -> None:
    file = write(tmp_path, {"LinearOperation": "LlamaRMSNorm"})
    [note] = plan(torch_side(tmp_path), atb_side(tmp_path), op_mapping_file=file).notes
    assert note.startswith(
        "op_mapping_file.json: LinearOperation is LlamaRMSNorm: not followed, for roles pair"
    )


def test_a_rule_of_types_against_the_shapes_is_a_note(tmp_path: Path) -> None:
    shapes = {("root.model.layers.0.mixer", "output[0]"): (1, 3, 9)}
    golden = torch_side(tmp_path, ("mixer", "StateMixer"), shapes=shapes)
    mine = atb_side(tmp_path, operator("Scan", "0_8", "x2", "s"))
    made = plan(golden, mine, op_mapping_file=write(tmp_path, {"ScanOperation": "StateMixer"}))
    assert "layers.0/ScanOperation_0_8" not in by_mine(made)
    [note] = made.notes
    assert "ScanOperation is StateMixer: not followed, for data shape doesn't match" in note


def test_a_rule_of_types_decides_among_equals(tmp_path: Path) -> None:
    """Two linears of one shape in another order: the sequence alone pairs the first with the first."""
    golden = torch_side(tmp_path, ("b", "LinearB"), ("a", "LinearA"))
    kinds = [
        operator(f"Linear{name}", f"0_{8 + n}", f"x2 weight_{name}", name) for n, name in enumerate("AB")
    ]
    mine = atb_side(tmp_path, *kinds)
    tables = {"kinds": {"linear": ["LinearAOperation", "LinearBOperation", "LinearA", "LinearB"]}}
    first = by_mine(plan(golden, mine, tables=tables))["layers.0/LinearAOperation_0_8"]
    assert (first[0], first[2]) == ("root.model.layers.0.b", "sequence")
    file = write(tmp_path, {"LinearAOperation": "LinearA"})
    found = by_mine(plan(golden, mine, tables=tables, op_mapping_file=file))
    assert found["layers.0/LinearAOperation_0_8"][::2] == ("root.model.layers.0.a", "op-mapping-file")
    assert found["layers.0/LinearBOperation_0_9"][::2] == ("root.model.layers.0.b", "sequence")


def test_a_rule_that_names_both_tensors_comes_before_roles(tmp_path: Path) -> None:
    block = "root.model.layers.0"
    shapes = {(block, "output[0]"): HIDDEN, (block, "output[1]"): HIDDEN}
    golden, mine = torch_side(tmp_path, shapes=shapes), atb_side(tmp_path)
    file = write(tmp_path, {"Layer_outtensor0": "LlamaDecoderLayer_output_1"})
    assert by_mine(plan(golden, mine))["layers.0/Layer_0"][1] == "output[0]"
    found = by_mine(plan(golden, mine, op_mapping_file=file))
    assert found["layers.0/Layer_0"] == (block, "output[1]", "op-mapping-file")


@pytest.mark.parametrize("mine_end", ["ElewiseOperation_0_6", "0_Layer/6_ElewiseOperation", "0_6"])
def test_an_entry_that_names_nodes_is_obeyed_whatever_the_shapes(tmp_path: Path, mine_end: str) -> None:
    attention = "root.model.layers.0.self_attn"
    golden = torch_side(tmp_path, shapes={(attention, "output[0]"): (1, 3, 9)})
    found = by_mine(plan(golden, atb_side(tmp_path), op_mapping_file=write(tmp_path, {mine_end: attention})))
    assert found["layers.0/ElewiseOperation_0_6"] == (attention, "output[0]", "op-mapping-file")
    assert found["layers.0/LinearOperation_0_5"][0] == f"{attention}.o_proj"


def test_a_named_node_meets_the_nodes_of_a_type_in_its_layer(tmp_path: Path) -> None:
    golden = torch_side(tmp_path, head=[torch_node("root.norm", "StateMixer")])
    golden.steps[0].tree.by_path["root.model.layers.0"].add(
        torch_node("root.model.layers.0.mixer", "StateMixer")
    )
    mine = atb_side(tmp_path, operator("Scan", "0_8", "x2", "s"))
    found = by_mine(plan(golden, mine, op_mapping_file=write(tmp_path, {"ScanOperation_0_8": "StateMixer"})))
    assert found["layers.0/ScanOperation_0_8"][0] == "root.model.layers.0.mixer"


def test_a_named_head_may_have_the_last_token_only(tmp_path: Path) -> None:
    """Of a prefill, mine has the logits of every token and golden of the last one."""
    golden = torch_side(
        tmp_path, head=[torch_node("root.out", "Linear")], shapes={("root.out", "output[0]"): (1, 1, 128)}
    )
    head = operator("Linear", "1", "x2 weight_9", "logits")
    mine = atb_side(tmp_path, head=[head], shapes={("1_LinearOperation", "output[0]"): (3, 128)})
    made = plan(golden, mine, op_mapping_file=write(tmp_path, {"LinearOperation_1": "root.out"}))
    [pair] = [pair for pair in made.pairs if pair.id == "LinearOperation_1"]
    assert (pair.policy, pair.golden.view) == ("op-mapping-file", LastToken())


def test_a_directory_without_the_file_is_a_note(tmp_path: Path) -> None:
    golden, mine = torch_side(tmp_path), atb_side(tmp_path)
    made = plan(golden, mine, op_mapping_file=str(tmp_path))
    assert by_mine(made) == by_mine(plan(golden, mine))
    assert f"{tmp_path} holds no op_mapping_file.json; mapped by the built-in tables alone" in made.notes


def test_where_nothing_is_mapped_by_types_the_file_is_said_to_be_unused(tmp_path: Path) -> None:
    paths = make_torchair_demo(tmp_path, TorchairSpec(tokens=(3,), steps=1))
    golden, mine = open_dump(str(paths.golden)), open_dump(str(paths.mine))
    without = plan(golden, mine)
    made = plan(golden, mine, op_mapping_file=write(tmp_path, GUIDE))
    assert [pair.id for pair in made.pairs] == [pair.id for pair in without.pairs]
    [note] = set(made.notes) - set(without.notes)
    assert note.startswith("op_mapping_file.json is not used")
