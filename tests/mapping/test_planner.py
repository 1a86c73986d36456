"""Plans of small trees: what is matched by which policy, what is left over, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.base import Slot
from acc_pytest.errors import MappingError, SettingsError
from acc_pytest.lab.demo.make import DemoSpec, make_demo
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.pair import explain
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.tables import (
    Endpoint,
    load_tables,
    missing_file_note,
    read_op_mapping_file,
    type_rules,
)
from acc_pytest.mapping.views import LastToken, Repeated, Whole
from acc_pytest.topology.tree import Node, Tree
from tests.slow import slow

from .trees import MemoryDump, Shapes, atb_tree, by_mine, torch_node

HIDDEN = (1, 3, 8)
FLAT = (3, 8)


def torch_layer(path: str, *, bias_free: bool = True) -> Node:
    return torch_node(
        path,
        "LlamaDecoderLayer",
        torch_node(f"{path}.input_layernorm", "LlamaRMSNorm"),
        torch_node(
            f"{path}.self_attn",
            "LlamaAttention",
            *[
                torch_node(f"{path}.self_attn.{name}", "Linear")
                for name in ("q_proj", "k_proj", "v_proj", "o_proj")
            ],
        ),
        torch_node(f"{path}.post_attention_layernorm", "LlamaRMSNorm"),
    )


def torch_model(count: int) -> Tree:
    layers = [torch_layer(f"root.model.layers.{n}") for n in range(count)]
    return Tree(
        torch_node(
            "root",
            "LlamaForCausalLM",
            torch_node("root.model", "LlamaModel", torch_node("root.model.layers", "ModuleList", *layers)),
            torch_node("root.lm_head", "Linear"),
        ),
        "m",
    )


def operator(op_type: str, ids: str, inputs: str, outputs: str, **param: Any) -> list[Any]:
    return [f"{op_type}Operation_{ids}", f"{op_type}Operation", inputs.split(), outputs.split(), param]


def atb_layer(n: int) -> list[Any]:
    """norm -> three linears -> attention -> linear -> residual add -> norm, all of one width."""
    linears = [
        operator("Linear", f"{n}_{i + 1}", f"a{n} weight_{i}", f"{role}{n}", hasBias=False)
        for i, role in enumerate("qkv")
    ]
    children = [
        operator("RmsNorm", f"{n}_0", "x weight_8", f"a{n}"),
        *linears,
        operator("SelfAttention", f"{n}_4", f"q{n} k{n} v{n}", f"c{n}"),
        operator("Linear", f"{n}_5", f"c{n} weight_9", f"o{n}", hasBias=False),
        operator("Elewise", f"{n}_6", f"o{n} x", f"r{n}", elewiseType=8),
        operator("RmsNorm", f"{n}_7", f"r{n} weight_10", "x2"),
    ]
    return [f"Layer_{n}", "Layer", ["x"], ["x2"], {}, children]


def dumps(
    tmp_path: Path,
    count: int = 2,
    golden_shapes: Shapes | None = None,
    mine_shapes: Shapes | None = None,
    **both: Any,
) -> tuple[MemoryDump, MemoryDump]:
    golden = MemoryDump(tmp_path / "g", "torch", torch_model(count), golden_shapes or {}, HIDDEN, **both)
    mine = MemoryDump(
        tmp_path / "m", "atb", atb_tree([atb_layer(n) for n in range(count)]), mine_shapes or {}, FLAT, **both
    )
    return golden, mine


def test_roles_by_dataflow_where_names_say_nothing(tmp_path: Path) -> None:
    golden, mine = dumps(tmp_path)
    found = by_mine(plan(golden, mine))
    layer = "root.model.layers.1"
    assert found["layers.1/LinearOperation_1_1"] == (f"{layer}.self_attn.q_proj", "output[0]", "role")
    assert found["layers.1/LinearOperation_1_2"] == (f"{layer}.self_attn.k_proj", "output[0]", "role")
    assert found["layers.1/LinearOperation_1_3"] == (f"{layer}.self_attn.v_proj", "output[0]", "role")
    assert found["layers.1/LinearOperation_1_5"] == (f"{layer}.self_attn.o_proj", "output[0]", "role")


def test_a_residual_add_is_not_taken_for_a_bias(tmp_path: Path) -> None:
    golden, mine = dumps(tmp_path)
    found = by_mine(plan(golden, mine))
    assert "layers.0/ElewiseOperation_0_6" not in found
    assert found["layers.0/LinearOperation_0_5"][0].endswith("o_proj")


def test_one_layer_of_another_shape_stays_a_pair(tmp_path: Path) -> None:
    path = "1_Layer/1_LinearOperation"
    golden, mine = dumps(tmp_path, count=3, mine_shapes={(path, "output[0]"): (3, 9)})
    found = by_mine(plan(golden, mine))
    assert "layers.1/LinearOperation_1_1" in found


def test_a_rule_that_fits_no_layer_is_dropped_and_the_nearest_named(tmp_path: Path) -> None:
    shapes = {(f"{n}_Layer/1_LinearOperation", "output[0]"): (3, 9) for n in range(3)}
    golden, mine = dumps(tmp_path, count=3, mine_shapes=shapes)
    mapped = plan(golden, mine)
    alone = [left for left in mapped.unmapped if left.side == "mine" and left.name == "LinearOperation_1_1"]
    assert len(alone) == 1
    assert "data shape doesn't match: golden [1, 3, 8], mine [3, 9]" in alone[0].nearest
    assert mapped.mine_mapped < mapped.mine_total


def test_pairs_are_in_execution_order_and_ids_unique(tmp_path: Path) -> None:
    golden, mine = dumps(tmp_path, count=12, labels=(0, 1))
    mapped = plan(golden, mine)
    assert [pair.order for pair in mapped.pairs] == list(range(len(mapped.pairs)))
    assert len({(p.step, p.rank, p.layer, p.id) for p in mapped.pairs}) == len(mapped.pairs)
    assert [p.layer for p in mapped.pairs if p.step == 1 and "SelfAttention" in p.id] == [
        f"layers.{n}" for n in range(12)
    ]
    assert {p.depth for p in mapped.pairs if p.layer == "layers.7"} == {7}


def test_equal_rank_counts_are_compared_rank_by_rank(tmp_path: Path) -> None:
    golden, mine = dumps(tmp_path, ranks=2)
    mapped = plan(golden, mine)
    assert {pair.rank for pair in mapped.pairs} == {0, 1}
    assert any("rank by rank" in note for note in mapped.notes)


def test_levels_choose_layers_modules_or_operators(tmp_path: Path) -> None:
    golden, mine = dumps(tmp_path)
    everything = len(plan(golden, mine).pairs)
    by_level = {level: plan(golden, mine, level=level).pairs for level in ("layer", "module", "op", "logits")}
    assert {pair.level for pair in by_level["op"]} == {"op"}
    assert sum(len(pairs) for level, pairs in by_level.items() if level != "logits") == everything


def test_no_step_in_common_lists_what_there_is(tmp_path: Path) -> None:
    golden = MemoryDump(tmp_path / "g", "torch", torch_model(1), labels=(0, 1))
    mine = MemoryDump(tmp_path / "m", "atb", atb_tree([atb_layer(0)]), labels=("warmup",))
    with pytest.raises(MappingError, match=r"golden .* has 0, 1, mine .* has warmup"):
        plan(golden, mine)
    golden.forced = mine.forced = True
    assert {pair.step for pair in plan(golden, mine).pairs} == {0}


def test_identical_torch_dumps_meet_by_name_only(tmp_path: Path) -> None:
    shapes = {
        ("root.model.layers.0", "output[0]"): HIDDEN,
        ("root.model.layers.0", "output[1][0]"): (1, 2, 3, 4),
    }
    one = MemoryDump(tmp_path / "g", "torch", torch_model(2), shapes, HIDDEN)
    other = MemoryDump(tmp_path / "m", "torch", torch_model(2), shapes, HIDDEN)
    mapped = plan(one, other)
    assert {pair.policy for pair in mapped.pairs} == {"name"}
    assert all((p.golden.node, p.golden.slot) == (p.mine.node, p.mine.slot) for p in mapped.pairs)
    assert not mapped.unmapped
    assert by_mine(mapped)["layers.0/self_attn.q_proj"][0] == "root.model.layers.0.self_attn.q_proj"


FLOAT = [["L_0", "Layer", [], [], {}, [
    ["RmsNormOperation_0_0", "RmsNormOperation", [], []],
    ["LinearOperation_0_1", "LinearOperation", [], []],
    ["LinearRowParallelAndAdd_0_2", "LinearRowParallelAndAdd", [], [], {}, [
        ["LinearOperation_0_2_0", "LinearOperation", [], []],
        ["ElewiseOperation_0_2_1", "ElewiseOperation", [], []]]],
    ["SplitOperation_0_3", "SplitOperation", [], []],
]]]  # fmt: skip
QUANT = [["L_0", "Layer", [], [], {}, [
    ["RmsNormOperation_0_0", "RmsNormOperation", [], []],
    ["ElewiseOperation_0_1", "ElewiseOperation", [], []],
    ["LinearQuantOperation_0_2", "LinearQuantOperation", [], []],
    ["LinearRowParallelNoAdd_0_3", "LinearRowParallelNoAdd", [], [], {}, [
        ["LinearQuantOperation_0_3_0", "LinearQuantOperation", [], []]]],
    ["SplitOperation_0_4", "SplitOperation", [], []],
    ["SplitOperation_0_5", "SplitOperation", [], []],
]]]  # fmt: skip


def test_quantised_against_float_is_aligned_by_type(tmp_path: Path) -> None:
    golden = MemoryDump(tmp_path / "g", "atb", atb_tree(FLOAT))
    mine = MemoryDump(tmp_path / "m", "atb", atb_tree(QUANT))
    found = {name: node for name, (node, _, _) in by_mine(plan(golden, mine)).items()}
    assert found["model/LinearQuantOperation_0_2"] == "0_Layer/1_LinearOperation"
    assert found["model/LinearQuantOperation_0_3_0"] == "0_Layer/2_LinearRowParallelAndAdd/0_LinearOperation"
    assert found["model/LinearRowParallelNoAdd_0_3"] == "0_Layer/2_LinearRowParallelAndAdd"
    assert found["model/SplitOperation_0_4"] == "0_Layer/3_SplitOperation"
    assert "model/ElewiseOperation_0_1" not in found


@pytest.mark.parametrize(
    ("golden_rows", "mine_rows", "times"), [(6, 3, (1, 2)), (3, 6, (2, 1)), (6, 6, (1, 1)), (5, 3, (1, 1))]
)
def test_atb_dumps_of_different_batch_sizes(
    tmp_path: Path, golden_rows: int, mine_rows: int, times: tuple[int, int]
) -> None:
    golden = MemoryDump(tmp_path / "g", "atb", atb_tree(FLOAT), default=(golden_rows, 4))
    mine = MemoryDump(tmp_path / "m", "atb", atb_tree(FLOAT), default=(mine_rows, 4))
    views = {(pair.golden.view, pair.mine.view) for pair in plan(golden, mine).pairs}
    assert views == {tuple(Repeated(n) if n > 1 else Whole() for n in times)}


def test_the_old_special_names_work_without_dataflow(tmp_path: Path) -> None:
    golden = Tree(
        torch_node("root", "M", torch_node("root.embed_tokens", "E"), torch_node("root.lm_head", "H")), "m"
    )
    mine = atb_tree([["WordEmbedding_0", "Odd", [], []], ["LmHead_1", "Odd", [], []]])
    found = by_mine(
        plan(MemoryDump(tmp_path / "g", "torch", golden), MemoryDump(tmp_path / "m", "atb", mine))
    )
    assert found["model/WordEmbedding_0"] == ("root.embed_tokens", "output[0]", "special")
    assert found["model/LmHead_1"] == ("root.lm_head", "output[0]", "special")


def test_the_plan_explains_itself(tmp_path: Path) -> None:
    golden, mine = dumps(tmp_path)
    text = "\n".join(explain(plan(golden, mine)))
    assert "1_Layer/1_LinearOperation output[0] = root.model.layers.1.self_attn.q_proj output[0]" in text
    assert "[role: both are `q`]" in text
    assert "unmapped of golden:" in text
    assert "unmapped of mine:" in text


class _Pair(nn.Module):
    """Two products of one shape, under these names."""

    def __init__(self, names: Sequence[str], weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        for name, weight in zip(names, weights):
            product = nn.Linear(8, 8, bias=False)
            product.weight.data = weight.clone()
            self.add_module(name, product)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for product in self.children():
            x = product(x)
        return x


def test_the_place_in_the_order_pairs_no_modules_whose_weights_are_unrelated(tmp_path: Path) -> None:
    """A packed product may have the shape of another. Weights that were rounded, or are off, are related."""
    draw = torch.Generator().manual_seed(3)
    first, second, strange = (torch.randn(8, 8, generator=draw) for _ in range(3))
    golden = _dumped(_Pair(("one", "two"), (first, second)), tmp_path / "golden")
    for other, mapped in ((second * 1.1, {"one", "two"}), (strange, {"one"})):
        mine = _dumped(_Pair(("x", "y"), (first.bfloat16().float(), other)), tmp_path / f"mine{len(mapped)}")
        pairs = plan(open_dump(golden), open_dump(mine)).pairs
        assert {pair.golden.node.rpartition(".")[2] for pair in pairs if pair.policy in PLACED} == mapped


PLACED = ("sequence", "values", "flow")


class _Around(nn.Module):
    """A module around others, under a name of its own."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.add_module(name, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (inner,) = self.children()
        return torch.tanh(inner(x))


def test_modules_that_hand_out_a_paired_tensor_are_paired_whatever_their_names(tmp_path: Path) -> None:
    weights = [torch.randn(8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (5, 6)]
    golden = _dumped(_Around("attention", _Pair(("q", "out"), weights)), tmp_path / "golden")
    mine = _dumped(_Around("mixer", _Pair(("a", "b"), weights)), tmp_path / "mine")
    pairs = {pair.mine.node: pair for pair in plan(open_dump(golden), open_dump(mine)).pairs if not pair.fed}
    mixer = pairs["root.mixer"]
    assert mixer.golden.node == "root.attention"


def _dumped(model: nn.Module, directory: Path) -> str:
    with torch.no_grad(), register_hook(model, DumpConfig(str(directory))):
        model(torch.randn(2, 8, generator=torch.Generator().manual_seed(4)))
    return str(directory)


# What a user's `op_mapping_file.json` pairs, and what it leaves to roles.


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
    DemoSpec(family=family, layers=1, decode_steps=0, ranks=ranks, warmup=False)
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


@pytest.mark.parametrize(
    "spec", [*SPECS[-2:], *map(slow, SPECS[:-2])], ids=lambda spec: f"{spec.family}-{spec.ranks}"
)
def test_the_guides_map_changes_no_pair_of_a_clean_demo(spec: DemoSpec, tmp_path: Path) -> None:
    paths = make_demo(tmp_path, spec)
    without = pairs(paths.golden, paths.mine)
    assert without
    assert pairs(paths.golden, paths.mine, write(tmp_path, GUIDE)) == without


@pytest.mark.skipif(not PROBE.is_dir(), reason="no conformance data at ../shared/conformance/probe")
@pytest.mark.parametrize(
    ("golden", "mine"),
    [slow(*SETS[0]), *SETS[1:3], *(slow(*each) for each in SETS[3:])],
    ids=lambda name: name.replace("/", "-"),
)
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


# The user's map: the old tool's grammar, with every mistake named.


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


# The built-in tables load, know the operators of the old tool, and can be extended from a config.


TABLES = load_tables()


@pytest.mark.parametrize(
    ("op_type", "param", "kind"),
    [
        ("LinearOperation", {}, "linear"),
        ("LinearQuantOperation", {}, "linear"),
        ("LlamaRMSNorm", {}, "norm"),
        ("RmsNormOperation", {}, "norm"),
        ("PagedAttentionOperation", {}, "attention"),
        ("LlamaRotaryEmbedding", {}, "rope"),
        ("Embedding", {}, "embedding"),
        ("ElewiseOperation", {"elewiseType": 8}, "add"),
        ("ElewiseOperation", {"elewiseType": 9}, "mul"),
        ("ElewiseOperation", {}, "elewise"),
        ("ElewiseOperation", {"elewiseType": 99}, "elewise"),
        ("SomethingNew", {}, "other"),
    ],
)
def test_the_kind_of_an_operator(op_type: str, param: dict[str, int], kind: str) -> None:
    assert TABLES.kind_of(op_type, param) == kind


def test_bloom_adds_the_residual_inside_and_interleaves() -> None:
    assert TABLES.adds_residual("BloomMLP")
    assert not TABLES.adds_residual("LlamaMLP")
    assert TABLES.interleaves("BloomAttention")
    assert not TABLES.interleaves("GLMBlock")


def test_a_config_extends_lists_and_replaces_entries() -> None:
    tables = load_tables(
        {
            "kinds": {"linear": ["MyMatmul"]},
            "types_in": {"MyNorm": "TheirNorm"},
            "residual_inside": {"types": ["MyMLP"]},
            "torch": {"layer": [{"path": "^odd$", "output": "down"}]},
        }
    )
    assert tables.kind_of("MyMatmul") == "linear"
    assert tables.types_in["MyNorm"] == ("TheirNorm",)
    assert tables.types_in["RmsNormOperation"] == ("RMSNorm",)
    assert tables.adds_residual("MyMLP")
    assert tables.torch["layer"][0].path.pattern == "^odd$"


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"kind": {}}, "not a mapping table"),
        ({"torch": {"layer": [{"path": "("}]}}, "tables"),
        ({"torch": {"layer": [{"path": "a", "outptu": "q"}]}}, "tables"),
        ({"elewise": {"x": "add"}}, "tables"),
    ],
)
def test_a_wrong_table_is_one_clear_error(
    extra: dict[str, dict[str, Any]] | dict[str, dict[str, list[dict[str, str]]]] | dict[str, dict[str, str]],
    complaint: str,
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load_tables(extra)


def test_every_shipped_config_has_valid_mapping_tables() -> None:

    from acc_pytest.settings import Settings

    names = ("llama", "chatglm2-6b", "bloom-7b", "qwen", "baichuan", "deepseek-moe")
    for name in names:
        tables = load_tables(Settings.from_values({"config": (name,)}).mapping)
        assert any(key.endswith("_outtensor0") for key in tables.types_in), name
