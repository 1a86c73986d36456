"""From which pairs each pair computes: in a layer, over steps and ranks, with much or little compared."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.lineage import ORDER, Lineage, trace
from acc_pytest.mapping.lineage.parents import FlowOperator, by_order, nearest
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.tables import load_tables
from acc_pytest.mapping.views import Part, SlotRows, TableRows, View, Whole
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis
from acc_pytest.topology.tree import Tree

from .toy_model import Verdicts, compared
from .trees import MemoryDump, atb_tree, torch_node

TABLES = load_tables()

LAYER = [
    ["Embed_0", "WordEmbedding", ["w0", "ids"], ["x"], {}, [["G", "GatherOperation", ["w0", "ids"], ["x"]]]],
    ["G_1", "GatherOperation", ["cos_table", "positions"], ["cos"]],
    [
        "Layer_2",
        "Layer",
        ["x", "cos", "cache"],
        ["x"],
        {},
        [
            ["Norm", "RmsNormOperation", ["x", "w"], ["n"]],
            ["Lin", "LinearOperation", ["n", "w1"], ["qkv"]],
            ["Split", "SplitOperation", ["qkv"], ["q", "k", "v"]],
            ["Rope", "RopeOperation", ["q", "k", "cos", "cos", "len"], ["q", "k"]],
            ["Cache", "ReshapeAndCacheOperation", ["k", "v", "kc", "vc", "slots"], ["kc", "vc"]],
            ["Att", "PagedAttentionOperation", ["q", "kc", "vc", "len"], ["a"]],
            ["Reduce", "AllReduceOperation", ["a"], ["r"]],
            ["Add", "ElewiseOperation", ["x", "r"], ["x"], {"elewiseType": 8}],
        ],
    ],
    ["Head_3", "LinearOperation", ["x", "w2"], ["logits"]],
]  # fmt: skip
"""A model of one layer whose residual is written in place."""
EVERYTHING = (
    "0_WordEmbedding/0_GatherOperation", "0_WordEmbedding", "1_GatherOperation",
    "2_Layer/0_RmsNormOperation", "2_Layer/1_LinearOperation", "2_Layer/2_SplitOperation",
    "2_Layer/2_SplitOperation output[1]", "2_Layer/2_SplitOperation output[2]",
    "2_Layer/3_RopeOperation input[2]", "2_Layer/3_RopeOperation", "2_Layer/3_RopeOperation output[1]",
    "2_Layer/4_ReshapeAndCacheOperation", "2_Layer/4_ReshapeAndCacheOperation output[1]",
    "2_Layer/5_PagedAttentionOperation", "2_Layer/6_AllReduceOperation", "2_Layer/7_ElewiseOperation",
    "2_Layer", "3_LinearOperation",
)  # fmt: skip


WHOLE = Whole()


def pair(
    place: str,
    step: int = 0,
    rank: int | None = None,
    golden: str = "",
    view: View = WHOLE,
    layer: str | None = None,
    policy: str = "role",
) -> Pair:
    """A pair of the node and slot in `place`; golden is a tensor of its own unless named."""
    node, _, slot = place.partition(" ")
    slot = slot or "output[0]"
    return Pair(
        id=place,
        step=step,
        rank=rank,
        level="op",
        layer=layer or ("layers.0" if node.startswith("2_") else "model"),
        depth=0,
        order=0,
        policy=policy,
        reason="",
        golden=Operand(golden or f"{node} {slot}", "", "", "output[0]", ()),
        mine=Operand(node, node, node.rpartition("_")[2], slot, (), view),
    )


def lineage(
    tmp_path: Path,
    pairs: list[Pair],
    labels: tuple[int, ...] = (0,),
    kind: str = "atb",
    tree: Tree | None = None,
) -> tuple[dict[str, list[str]], Lineage]:
    """{id of the pair, with its step after the first: ids of its parents, with theirs}."""
    tree = tree or atb_tree(LAYER)
    mine = MemoryDump(tmp_path / "mine", kind, tree, labels=labels)
    golden = MemoryDump(tmp_path / "golden", "torch", tree, labels=labels)
    found = trace(golden, mine, pairs, TABLES)

    def name(number: int) -> str:
        one = pairs[number]
        step = f"@{one.step}" if one.step else ""
        return one.id + step + (f"#{one.rank}" if one.rank is not None else "")

    return {name(n): [name(o) for o in others] for n, others in enumerate(found.parents)}, found


def test_every_operator_has_the_tensors_it_reads_and_a_layer_what_was_written_last_in_it(
    tmp_path: Path,
) -> None:
    found, _ = lineage(tmp_path, [pair(one) for one in EVERYTHING])
    assert found == {
        "0_WordEmbedding/0_GatherOperation": [],
        "0_WordEmbedding": ["0_WordEmbedding/0_GatherOperation"],
        "1_GatherOperation": [],
        "2_Layer/0_RmsNormOperation": ["0_WordEmbedding"],
        "2_Layer/1_LinearOperation": ["2_Layer/0_RmsNormOperation"],
        "2_Layer/2_SplitOperation": ["2_Layer/1_LinearOperation"],
        "2_Layer/2_SplitOperation output[1]": ["2_Layer/1_LinearOperation"],
        "2_Layer/2_SplitOperation output[2]": ["2_Layer/1_LinearOperation"],
        "2_Layer/3_RopeOperation input[2]": ["1_GatherOperation"],
        "2_Layer/3_RopeOperation": [
            "1_GatherOperation", "2_Layer/2_SplitOperation", "2_Layer/3_RopeOperation input[2]",
        ],
        "2_Layer/3_RopeOperation output[1]": [
            "1_GatherOperation", "2_Layer/2_SplitOperation output[1]", "2_Layer/3_RopeOperation input[2]",
        ],
        "2_Layer/4_ReshapeAndCacheOperation": ["2_Layer/3_RopeOperation output[1]"],
        "2_Layer/4_ReshapeAndCacheOperation output[1]": ["2_Layer/2_SplitOperation output[2]"],
        "2_Layer/5_PagedAttentionOperation": [
            "2_Layer/3_RopeOperation", "2_Layer/4_ReshapeAndCacheOperation",
            "2_Layer/4_ReshapeAndCacheOperation output[1]",
        ],
        "2_Layer/6_AllReduceOperation": ["2_Layer/5_PagedAttentionOperation"],
        "2_Layer/7_ElewiseOperation": ["0_WordEmbedding", "2_Layer/6_AllReduceOperation"],
        "2_Layer": ["2_Layer/7_ElewiseOperation"],
        "3_LinearOperation": ["2_Layer"],
    }  # fmt: skip


def test_operators_of_which_nothing_is_compared_are_walked_through_and_named(tmp_path: Path) -> None:
    found, traced = lineage(tmp_path, [pair("0_WordEmbedding"), pair("2_Layer/5_PagedAttentionOperation")])
    assert found["2_Layer/5_PagedAttentionOperation"] == ["0_WordEmbedding"]
    assert traced.between[1] == (
        "2_Layer/3_RopeOperation",
        "2_Layer/2_SplitOperation",
        "2_Layer/1_LinearOperation",
        "2_Layer/0_RmsNormOperation",
        "1_GatherOperation",
        "2_Layer/4_ReshapeAndCacheOperation",
    )


def test_pieces_of_a_packed_tensor_have_the_same_piece_above_them(tmp_path: Path) -> None:
    pieces = [pair("2_Layer/1_LinearOperation", golden=one, view=Part(i, ())) for i, one in enumerate("qkv")]
    pairs = [
        *pieces,
        pair("2_Layer/2_SplitOperation", golden="q"),
        pair("2_Layer/2_SplitOperation output[2]", golden="v"),
        pair("2_Layer/2_SplitOperation output[2]", golden="cached v"),
    ]
    _, traced = lineage(tmp_path, pairs)
    assert traced.parents[3:] == ((0,), (2,), (2,))


def test_attention_reads_what_earlier_steps_stored_and_what_a_step_stores_does_not(tmp_path: Path) -> None:
    cache, attention = "2_Layer/4_ReshapeAndCacheOperation", "2_Layer/5_PagedAttentionOperation"
    rows = SlotRows(())
    pairs = [
        one
        for step in (0, 1)
        for one in (
            pair(cache, step, view=rows),
            pair(attention, step),
            pair("3_LinearOperation", step),
        )
    ]
    found, _ = lineage(tmp_path, pairs, labels=(0, 1))
    assert found[f"{attention}@1"] == [f"{cache}@1", attention, cache]
    assert found[f"{cache}@1"] == []


def test_a_layer_depends_on_itself_a_step_earlier_when_nothing_inside_it_is_compared(tmp_path: Path) -> None:
    found, _ = lineage(tmp_path, [pair("2_Layer"), pair("2_Layer", 1)], labels=(0, 1))
    assert found["2_Layer@1"] == ["2_Layer"]


def test_the_token_fed_in_was_chosen_from_the_logits_before_and_positions_were_not(tmp_path: Path) -> None:
    pairs = [
        one
        for step in (0, 1)
        for one in (
            pair("0_WordEmbedding", step),
            pair("1_GatherOperation", step, view=TableRows(0)),
            pair("3_LinearOperation", step),
        )
    ]
    found, _ = lineage(tmp_path, pairs, labels=(0, 1))
    assert found["0_WordEmbedding@1"] == ["3_LinearOperation"]
    assert found["1_GatherOperation@1"] == found["0_WordEmbedding"] == []


def test_ranks_have_lineages_of_their_own_but_what_is_summed_comes_from_all(tmp_path: Path) -> None:
    places = ("2_Layer/5_PagedAttentionOperation", "2_Layer/6_AllReduceOperation", "3_LinearOperation")
    found, _ = lineage(tmp_path, [pair(place, rank=rank) for place in places for rank in (0, 1)])
    attention, reduced, head = places
    assert found[f"{reduced}#1"] == [f"{attention}#0", f"{attention}#1"]
    assert found[f"{head}#1"] == [f"{reduced}#1"]


def test_a_sum_over_ranks_counts_although_it_is_not_compared(tmp_path: Path) -> None:
    places = ("2_Layer/5_PagedAttentionOperation", "2_Layer")
    found, _ = lineage(tmp_path, [pair(place, rank=rank) for place in places for rank in (0, 1)])
    attention, layer = places
    assert found[f"{layer}#0"] == [f"{attention}#0", f"{attention}#1"]


def test_without_dataflow_a_pair_comes_after_its_layer_so_far_and_the_layer_before(tmp_path: Path) -> None:
    names = ["root.embed", "root.layers.0.q", "root.layers.0.k", "root.layers.0", "root.layers.1.q"]
    layers = ["model", "layers.0", "layers.0", "layers.0", "layers.1"]
    tree = Tree(torch_node("root", "Model", *(torch_node(name, "M") for name in names)), "Model")
    pairs = [pair(name, layer=layer) for name, layer in zip(names, layers)]
    _, traced = lineage(tmp_path, pairs, kind="torch", tree=tree)
    assert traced.basis == ORDER
    assert traced.by_order == frozenset(range(5))
    assert traced.parents == ((), (0,), (0, 1), (0, 1, 2), (3,))


def test_an_operator_without_tensor_names_falls_back_to_order_and_the_basis_says_so(tmp_path: Path) -> None:
    tree = atb_tree([["A", "LinearOperation", ["x", "w"], ["y"]], ["B", "SortOperation", [], []]])
    pairs = [pair("0_LinearOperation"), pair("1_SortOperation")]
    _, traced = lineage(tmp_path, pairs, tree=tree)
    assert traced.by_order == {1}
    assert traced.parents == ((), (0,))
    assert traced.basis == "tensor names in the topology; 1 of 2 pairs by execution order"


def test_an_operator_that_only_stores_is_above_whoever_reads_the_cache_later(tmp_path: Path) -> None:
    tree = atb_tree(
        [
            ["K", "LinearOperation", ["x", "w"], ["k"]],
            ["Q", "LinearOperation", ["x", "w"], ["q"]],
            ["Early", "PagedAttentionOperation", ["q", "cache"], ["e"]],
            ["Store", "KvCacheOperation", ["k", "cache"], []],
            ["Late", "PagedAttentionOperation", ["q", "cache"], ["l"]],
        ]
    )
    pairs = [
        pair(one)
        for one in (
            "0_LinearOperation",
            "1_LinearOperation",
            "2_PagedAttentionOperation",
            "4_PagedAttentionOperation",
        )
    ]
    _, traced = lineage(tmp_path, pairs, tree=tree)
    assert traced.parents[2:] == ((1,), (0, 1))


def test_the_order_fallback_is_bounded_in_a_layer_of_thousands() -> None:
    pairs = [(number, pair(str(number), layer="model")) for number in range(2000)]
    found = by_order(pairs)
    assert max(map(len, found.values())) < 30
    assert all(others for number, others in found.items() if number)


@pytest.fixture(scope="module")
def ge_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    paths = make_torchair_demo(tmp_path_factory.mktemp("ge"), TorchairSpec(tokens=(5,), steps=1))
    golden = open_dump(str(paths.golden))
    return plan(golden, open_dump(str(paths.mine), golden=golden))


def test_a_ge_graph_gives_edges_through_fused_operators_and_inputs(ge_plan: Plan) -> None:
    names = [one.id for one in ge_plan.pairs]
    found = {name: [names[n] for n in others] for name, others in zip(names, ge_plan.parents)}
    assert ge_plan.lineage == "edges of the graph"
    assert found["MatMulV2_1[in0]"] == ["Gelu"]
    assert found["MatMulV2_1[in1]"] == ["Transpose_1"]
    assert found["Transpose_1"] == ["Transpose_1[in0]"]
    assert found["Transpose_1[in0]"] == ["arg3_1"]
    assert found["Mul_1Add_1"] == ["MatMulV2_1[in0]", "MatMulV2_1[in1]", "Mul_1Add_1[in2]"]
    assert found["ConcatV2"] == ["ConcatV2[in0]", "ConcatV2[in1]"]
    assert found["ConcatV2[in1]"] == ["SplitV"]
    assert found["TopKV2[in0]"] == found["SoftmaxV2[in0]"] == ["Reshape"]
    assert found["trans_TransData_1[self]"] == []
    assert ge_plan.between[names.index("Mul_1Add_1")] == ("MatMulV2_1",)


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[list[int]], set[int]]:
    """Operators that each read up to three earlier values, and which of their outputs are compared."""
    count = draw(st.integers(1, 12))
    reads = [
        draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else []
        for number in range(count)
    ]
    return reads, draw(st.sets(st.integers(0, count - 1)))


@given(networks())
def test_nearest_is_what_a_search_upwards_finds_first(network: tuple[list[list[int]], set[int]]) -> None:
    reads, compared = network

    def every(count: int, _: int) -> range:
        return range(count)

    operations = [
        FlowOperator(str(number), number, read, [number], partial(every, len(read)))
        for number, read in enumerate(reads)
    ]
    found = nearest(operations, {n: [(n, (str(n), "output[0]"))] for n in compared}, {})

    def search(number: int) -> set[int]:
        return {one for value in reads[number] for one in ({value} if value in compared else search(value))}

    assert {place: {int(p) for p, _ in above.places} for place, above in found.items()} == {
        (str(n), "output[0]"): search(n) for n in compared
    }


# carried: the state that a model is called with again was computed by the step before.


STEPS = 3


class Cell(nn.Module):
    """A recurrent layer in the dtype of its weights, whose state is kept in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.decay = 0.5

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for token in self.into(x).float().unbind(1):
            state = self.decay * state + token
        return self.out(state.to(x.dtype)), state


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(32, 16), Cell(), nn.Linear(16, 32)

    def forward(self, ids: torch.Tensor, state: torch.Tensor) -> dict[str, torch.Tensor]:
        x, state = self.cell(self.embed(ids), state)
        return {"logits": self.head(x), "state": state}


def dump(path: Path, dtype: torch.dtype, decay: float = 0.5, lost: bool = False) -> Path:
    """A run of three steps; `lost` forgets the state before the second."""
    torch.manual_seed(4)
    model = Recurrent()
    model.cell.decay = decay
    model.to(dtype)
    state = torch.zeros(1, 16)
    with torch.no_grad(), register_hook(model, DumpConfig(path, range(STEPS))):
        for step in range(STEPS):
            if lost and step == 1:
                state = torch.zeros(1, 16)
            state = model(torch.arange(5)[None] + step, state=state)["state"]
    return path


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("golden"), torch.float32)


def states(verdicts: Verdicts) -> dict[object, str]:
    """The verdicts of the states that steps are called with, by step."""
    return {
        pair.step: row.verdict
        for pair, row in zip(verdicts.plan.pairs, verdicts.rows)
        if pair.mine.slot == "input[state]"
    }


def test_a_state_in_float32_has_the_rounding_of_the_step_that_made_it(golden: Path, tmp_path: Path) -> None:
    verdicts = compared(golden, dump(tmp_path, torch.bfloat16))
    assert {row.verdict for row in verdicts.rows} == {"pass"}
    computed_in = {
        pair.step: pair.computed_in for pair in verdicts.plan.pairs if pair.fed in ("input", "cache")
    }
    assert computed_in == {0: "float32", 1: "bfloat16", 2: "bfloat16"}


def test_a_wrong_state_is_no_other_input_but_follows_from_the_step_before(
    golden: Path, tmp_path: Path
) -> None:
    verdicts = compared(golden, dump(tmp_path, torch.bfloat16, decay=0.8))
    assert states(verdicts) == {0: "pass", 1: "inherited", 2: "inherited"}
    assert set(verdicts.roots) == {"root.cell"}


def test_a_state_that_was_lost_between_steps_is_told(golden: Path, tmp_path: Path) -> None:
    verdicts = compared(golden, dump(tmp_path, torch.bfloat16, lost=True))
    assert states(verdicts) == {0: "pass", 1: "fail", 2: "pass"}  # which a third step has forgotten
    assert verdicts.roots[0] == "root"


# FX against FX: what a call was given came from the call that wrote the same bytes.


class Program:
    """`linear -> relu -> add(linear)`, one file an argument or result, as FX dumps are."""

    def __init__(self, home: Path, **faults: float) -> None:
        self._home = home / "msit_fx_dump" / "worldsize1_global_rank0" / "graph_1" / "0"
        self._home.mkdir(parents=True)
        self._time = 20260101000000000000
        random = numpy.random.default_rng(0)
        x, weight = (random.normal(size=(4, 4)).astype("float32") for _ in range(2))
        weight = weight + faults.get("weight", 0)
        linear = self.call("mm", "mm.default", x, weight, result=x @ weight + faults.get("mm", 0))
        relu = self.call("relu", "relu.default", linear, result=linear.clip(0) + faults.get("relu", 0))
        self.call("add", "add.Tensor", relu, linear, result=relu + linear)

    def call(self, name: str, target: str, *arguments: Any, result: Any) -> Any:
        self._time += 1000
        for number, argument in enumerate(arguments):
            numpy.save(self._home / f"{name}-aten.{target}.INPUT.{number}.{self._time}.npy", argument)
        numpy.save(self._home / f"{name}-aten.{target}.OUTPUT.0.{self._time}.npy", result)
        return result


def compared_calls(tmp_path: Path, **faults: float) -> tuple[Plan, list[Row], Diagnosis]:
    Program(tmp_path / "golden")
    Program(tmp_path / "mine", **faults)
    made = plan(open_dump(str(tmp_path / "golden")), open_dump(str(tmp_path / "mine")))
    return made, *run(made)


def test_arguments_come_from_results_and_results_from_arguments(tmp_path: Path) -> None:
    made, rows, _ = compared_calls(tmp_path)
    ids = [pair.id for pair in made.pairs]
    parents = {name: [ids[one] for one in above] for name, above in zip(ids, made.parents)}
    assert {row.verdict for row in rows} == {"pass"}
    assert parents["relu-aten.relu.default[in0]"] == ["mm-aten.mm.default"]
    assert set(parents["add-aten.add.Tensor"]) == {"add-aten.add.Tensor[in0]", "add-aten.add.Tensor[in1]"}
    assert parents["add-aten.add.Tensor[in1]"] == ["mm-aten.mm.default"]
    assert not made.by_order


@pytest.mark.parametrize("fault", ["mm", "relu"])
def test_the_call_whose_arguments_agree_is_the_only_root(tmp_path: Path, fault: str) -> None:
    _, _, diagnosis = compared_calls(tmp_path, **{fault: 0.5})
    assert [root.name for root in diagnosis.roots] == [fault]


def test_another_weight_is_the_root_and_not_the_call_that_reads_it(tmp_path: Path) -> None:
    made, _, diagnosis = compared_calls(tmp_path, weight=0.5)
    (root,) = diagnosis.roots
    assert made.pairs[root.number].mine.slot == "input[1]"
