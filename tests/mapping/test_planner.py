"""Plans of small trees: what is matched by which policy, what is left over, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.errors import MappingError
from acc_pytest.mapping.pair import explain
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.views import Repeated, Whole
from acc_pytest.topology.tree import Node, Tree

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
        assert {pair.golden.node.rpartition(".")[2] for pair in pairs if pair.policy == "sequence"} == mapped


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
    assert (mixer.golden.node, mixer.policy) == ("root.attention", "module")
    assert mixer.reason == "hands out the tensor of root.mixer.b"


def _dumped(model: nn.Module, directory: Path) -> str:
    with torch.no_grad(), register_hook(model, DumpConfig(str(directory))):
        model(torch.randn(2, 8, generator=torch.Generator().manual_seed(4)))
    return str(directory)
