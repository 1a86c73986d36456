"""A model of Hugging Face against the same model as an engine builds it: pairs, values, verdicts."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps.base import Slot
from acc_pytest.errors import NoPayload
from acc_pytest.mapping.match import Export
from acc_pytest.mapping.operand_shards import rows_in
from acc_pytest.mapping.pair import Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.mapping.rule_views import Splits
from acc_pytest.mapping.shapes import Shape
from acc_pytest.mapping.token_order import split_of, tokens_of
from acc_pytest.mapping.views import TokenLayout, TokenSplit
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.topology.tree import Node
from tests.slow import slow

from .passes import tokens_first
from .served import RIGHT, Engine, Fault, Spec, both, hugging_face, two_steps

Ends = tuple[str, str, str, str]
BF16 = torch.bfloat16


def ends(pair: Pair) -> Ends:
    golden, mine = pair.golden, pair.mine
    return golden.node.removeprefix("root."), golden.slot, mine.node.removeprefix("root."), mine.slot


def compared(spec: Spec, home: Path, fault: Fault = RIGHT) -> tuple[Plan, list[Row], Diagnosis]:
    made = plan(*both(spec, home, fault))
    return made, *run(made)


def in_layer(layer: int, head_norms: bool = False, experts: bool = False) -> set[Ends]:
    """What belongs together in a layer, by what the modules compute."""
    name = f"model.layers.{layer}"
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    out, first = "output[0]", "input[0]"
    turned = ("q_norm", "k_norm") if head_norms else ("q_proj", "k_proj")
    stream = (f"{name}.input_layernorm", "output[1]" if layer else first)
    pairs = {
        (f"{name}.input_layernorm", first, *stream),
        (f"{name}.input_layernorm", out, f"{name}.input_layernorm", out),
        *((f"{attention}.{each}_proj", out, f"{attention}.qkv_proj", out) for each in "qkv"),
        *((f"{attention}.{each}", out, f"{attention}.attn", f"input[{n}]") for n, each in enumerate(turned)),
        (f"{attention}.o_proj", first, f"{attention}.attn", out),
        (f"{attention}.o_proj", out, f"{attention}.o_proj", out),
        (attention, out, attention, out),
        (f"{name}.post_attention_layernorm", first, f"{name}.post_attention_layernorm", "output[1]"),
        (f"{name}.post_attention_layernorm", out, f"{name}.post_attention_layernorm", out),
        (name, out, name, out),
    }
    if experts:
        moe = f"{name}.block_sparse_moe"
        pairs |= {(mlp, out, moe, out), (f"{mlp}.experts", out, f"{moe}.experts", out)}
        pairs |= {(f"{mlp}.gate", each, f"{moe}.gate", out) for each in (out, "output[2]")}
    else:
        pairs |= {(f"{mlp}.{each}_proj", out, f"{mlp}.gate_up_proj", out) for each in ("gate", "up")}
        pairs |= {(f"{mlp}.down_proj", first, f"{mlp}.act_fn", out)}
        pairs |= {(f"{mlp}.down_proj", out, f"{mlp}.down_proj", out), (mlp, out, mlp, out)}
    if head_norms:
        pairs |= {(f"{attention}.{each}", out, f"{attention}.{each}", out) for each in turned}
    return pairs


OUTSIDE = {
    ("model.embed_tokens", "input[0]", "model.embed_tokens", "input[0]"),
    ("model.embed_tokens", "output[0]", "model.embed_tokens", "output[0]"),
    ("model.norm", "input[0]", "model.norm", "output[1]"),
    ("model.norm", "output[0]", "model.norm", "output[0]"),
    ("model.norm", "output[0]", "model", "output[0]"),
    ("lm_head", "output[0]", "logits_processor", "output[0]"),
    ("lm_head", "output[0]", "root", "output[0]"),
}

SPECS = st.builds(
    lambda kv, groups, size, ranks, lengths, pad, norms, deferred, seed: Spec(
        heads=kv * groups * ranks,
        kv_heads=kv * ranks if seed % 2 else kv,
        size=size,
        inner=8 * ranks,
        hidden=16,
        lengths=tuple(lengths),
        pad=pad,
        order=tuple(torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()),
        head_norms=norms,
        ranks=ranks,
        deferred=deferred,
        late=deferred and seed % 3 == 0,
        experts=4 if seed == 5 else 0,
        moe="block_sparse_moe" if seed == 5 else "mlp",
        seed=seed,
    ),
    kv=st.sampled_from((1, 2)),
    groups=st.sampled_from((1, 2, 3)),
    size=st.sampled_from((4, 8)),
    ranks=st.sampled_from((1, 2, 4)),
    lengths=st.lists(st.integers(2, 6), min_size=1, max_size=3),
    pad=st.sampled_from(("left", "right")),
    norms=st.booleans(),
    deferred=st.booleans(),
    seed=st.integers(0, 7),
)


@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@given(spec=SPECS)
def test_every_tensor_meets_its_own_whatever_the_sizes_ranks_and_batches(spec: Spec) -> None:
    with tempfile.TemporaryDirectory() as home:
        made, rows, diagnosis = compared(spec, Path(home))
        layers = (in_layer(layer, spec.head_norms, spec.experts > 0) for layer in range(spec.layers))
        wanted = set().union(OUTSIDE, *layers)
        found = Counter(ends(pair) for pair in made.pairs)
        assert set(found) == wanted
        assert set(found.values()) == {1}
        assert [row.sentence for row in rows if row.verdict != "pass"] == []
        assert not diagnosis.roots


def test_the_other_way_round_the_engine_is_golden(tmp_path: Path) -> None:
    spec = Spec(ranks=4, kv_heads=2, head_norms=True, deferred=True)
    mine, golden = both(spec, tmp_path)
    made = plan(golden, mine)
    rows, _ = run(made)
    wanted = set().union(*(in_layer(layer, spec.head_norms) for layer in range(spec.layers)))
    assert {(e[2], e[3], e[0], e[1]) for e in map(ends, made.pairs)} >= wanted
    assert {row.verdict for row in rows} == {"pass"}


def test_padding_is_left_out_and_sequences_meet_by_their_ids(tmp_path: Path) -> None:
    spec = Spec(lengths=(5, 2, 4), order=(2, 0, 1), pad="left")
    golden, mine = both(spec, tmp_path)
    [pair] = [pair for pair in plan(golden, mine).pairs if ends(pair)[2:] == ("model", "output[0]")]
    opened = open_pair(pair)
    assert tuple(opened.golden.shape) == tuple(opened.mine.shape) == (11, spec.hidden)
    [logits] = [pair for pair in plan(golden, mine).pairs if ends(pair)[2] == "logits_processor"]
    assert tuple(open_pair(logits).golden.shape) == (3, spec.vocabulary)


def test_a_step_of_one_new_token_meets_in_the_order_of_its_prefill(tmp_path: Path) -> None:
    spec = Spec(lengths=(5, 3, 4), order=(2, 0, 1), ranks=2, deferred=True, vocabulary=3)
    golden, mine = two_steps(spec, tmp_path)
    made = plan(golden, mine)
    rows, _ = run(made)
    assert [row.sentence for row in rows if row.verdict != "pass"] == []
    per_step = Counter(pair.step for pair in made.pairs)
    assert per_step[0] == per_step[1] > 40


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_padded_vocabulary_is_cut_also_where_ranks_hold_pieces_of_it(ranks: int, tmp_path: Path) -> None:
    spec = Spec(vocabulary=60, padding=4, ranks=ranks, split_logits=ranks > 1)
    made, rows, _ = compared(spec, tmp_path)
    assert [row.sentence for row in rows if row.verdict != "pass"] == []
    [logits] = [pair for pair in made.pairs if ends(pair)[2] == "logits_processor"]
    assert tuple(open_pair(logits).mine.shape) == (2, 60)


def test_a_rotary_module_that_all_layers_share_is_compared_where_it_is_used(tmp_path: Path) -> None:
    made, rows, _ = compared(Spec(shared_rotary=True), tmp_path)
    assert [row.sentence for row in rows if row.verdict != "pass"] == []
    turned = [ends(pair)[2:] for pair in made.pairs if pair.policy == "rope"]
    assert turned == [
        (f"model.layers.{layer}.self_attn.attn", f"input[{number}]") for layer in (0, 1) for number in (0, 1)
    ]


@pytest.mark.parametrize("shared", [True, False])
def test_outputs_alone_are_enough_for_most(shared: bool, tmp_path: Path) -> None:
    spec = Spec(shared_rotary=shared, only_outputs=True, ranks=2, dtype=BF16, lengths=(4, 4))
    made, rows, _ = compared(spec, tmp_path)
    assert [row.sentence for row in rows if row.verdict != "pass"] == []
    wanted = set().union(OUTSIDE, *(in_layer(layer) for layer in range(spec.layers)))
    outputs = {pair for pair in wanted if pair[1].startswith("output") and pair[3].startswith("output")}
    assert {ends(pair) for pair in made.pairs} >= outputs
    # The lengths of rows say whose queries and keys a shared module holds.
    assert sum(pair.policy == "rope" for pair in made.pairs) == (2 if shared else 4)


def test_bfloat16_stays_green(tmp_path: Path) -> None:
    for number, spec in enumerate((Spec(dtype=BF16), Spec(ranks=2, deferred=True, dtype=BF16))):
        _, rows, _ = compared(spec, tmp_path / str(number))
        assert {row.verdict for row in rows} == {"pass"}


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("norm", "post_attention_layernorm output[0]"),
        slow("residual", "post_attention_layernorm output[0]"),
        slow("scaled", "self_attn.o_proj output[0]"),
        ("kv", "self_attn.qkv_proj output[0]"),
        slow("theta", "self_attn.attn input[0]"),
        ("reduce", "mlp.down_proj output[0]"),
    ],
)
def test_a_fault_is_found_where_it_is(kind: str, at: str, tmp_path: Path) -> None:
    _, _, diagnosis = compared(Spec(ranks=2, dtype=BF16), tmp_path, Fault(kind, layer=1))
    row = diagnosis.roots[0].row
    layer = 0 if kind == "theta" else 1
    assert f"{row.mine.node} {row.mine.slot}" == f"root.model.layers.{layer}.{at}"


def test_another_expert_among_equals_is_a_tie_and_what_follows_is_excused(tmp_path: Path) -> None:
    spec = Spec(experts=8, lengths=(12, 9), dtype=BF16, seed=1)
    _, rows, diagnosis = compared(spec, tmp_path)
    assert not [row for row in rows if row.red]
    assert not diagnosis.roots
    ties = [row.mine.node for row in rows if row.verdict == "tie"]
    assert "root.model.layers.1.mlp.gate" in ties


def test_nan_after_a_tie_is_not_judged_and_said(tmp_path: Path) -> None:
    spec = Spec(experts=8, lengths=(12, 9), dtype=BF16, seed=1)
    made, rows, _ = compared(spec, tmp_path)
    tied = next(row for row in rows if row.after_tie == "partly" and row.mine.node.endswith("mlp.experts"))
    assert tied.number is not None
    golden, mine = open_pair(made.pairs[tied.number]).golden, torch.load(tied.mine.path)
    far = (golden.read(0, mine.numel()).view(mine.shape) - mine).norm(dim=-1).argmax()
    torch.save(mine.index_fill(0, far, math.nan), tied.mine.path)
    again = run(made)[0][tied.number]
    assert (again.verdict, again.context["not_judged"]) == (tied.verdict, "NaN")
    assert "NaN in rows that are not judged" in again.notes


def test_a_router_that_is_wrong_is_the_root(tmp_path: Path) -> None:
    spec = Spec(experts=8, lengths=(12, 9), ranks=2, dtype=BF16)
    _, _, diagnosis = compared(spec, tmp_path, Fault("router", layer=1))
    assert diagnosis.roots[0].row.mine.node == "root.model.layers.1.mlp.gate"


def test_a_sum_over_ranks_that_is_missing_is_said(tmp_path: Path) -> None:
    _, _, diagnosis = compared(Spec(ranks=2), tmp_path, Fault("reduce", layer=0))
    assert diagnosis.roots[0].row.sentence.startswith("each rank kept its partial sum")


def test_sums_that_come_later_are_made_and_said(tmp_path: Path) -> None:
    made, _, _ = compared(Spec(ranks=2, deferred=True), tmp_path)
    [pair] = [pair for pair in made.pairs if ends(pair)[2:] == ("model.layers.0.mlp.down_proj", "output[0]")]
    assert "they are partial sums" in open_pair(pair).notes[0]


def test_equal_names_of_different_things_do_not_meet(tmp_path: Path) -> None:
    met = {ends(pair) for pair in plan(*both(Spec(), tmp_path)).pairs}
    assert not [e for e in met if e[0].endswith("act_fn") or e[2].endswith("rotary_emb")]


def test_packs_of_engines_over_other_numbers_of_ranks_are_cut_before_they_are_joined(tmp_path: Path) -> None:
    spec = Spec()
    golden = Engine(spec, tmp_path / "golden").dump()
    mine = Engine(replace(spec, ranks=2), tmp_path / "mine").dump()
    made = plan(golden, mine)
    rows, _ = run(made)
    assert {row.verdict for row in rows} == {"pass"}
    packs = Counter(pair.mine.node.rpartition(".")[2] for pair in made.pairs if pair.policy == "packed")
    assert packs == {"qkv_proj": 3 * spec.layers, "gate_up_proj": 2 * spec.layers}


@pytest.mark.parametrize("ranks", [(2, 4), slow((4, 2))])
def test_two_engines_on_several_ranks_each_meet_head_by_head(ranks: tuple[int, int], tmp_path: Path) -> None:
    spec = Spec(kv_heads=2)
    golden, mine = (Engine(replace(spec, ranks=count), tmp_path / str(count)).dump() for count in ranks)
    rows, _ = run(plan(golden, mine))
    assert {row.verdict for row in rows} == {"pass"}


def test_on_as_many_ranks_one_may_add_up_at_once_and_the_other_later(tmp_path: Path) -> None:
    spec = Spec(ranks=2, dtype=BF16)
    for number, (first, second) in enumerate(((False, True), (True, False), (True, True))):
        golden = Engine(replace(spec, deferred=first), tmp_path / f"golden{number}").dump()
        mine = Engine(replace(spec, deferred=second), tmp_path / f"mine{number}").dump()
        made = plan(golden, mine)
        rows, _ = run(made)
        assert {row.verdict for row in rows} == {"pass"}
        together = {pair.mine.node.rpartition(".")[2] for pair in made.pairs if pair.rank is None}
        assert together == (set() if first == second else {"self_attn", "mlp", "o_proj", "down_proj"})


def test_a_missing_sum_is_said_beside_ranks_that_have_it(tmp_path: Path) -> None:
    golden = Engine(Spec(ranks=2), tmp_path / "golden").dump()
    made = plan(golden, Engine(Spec(ranks=2), tmp_path / "mine", Fault("reduce", layer=0)).dump())
    _, diagnosis = run(made)
    assert diagnosis.roots[0].row.mine.node == "root.model.layers.0.mlp.down_proj"
    assert diagnosis.roots[0].row.sentence.startswith("each rank kept its partial sum")


def test_two_dumps_of_one_model_are_compared_by_their_names(tmp_path: Path) -> None:
    made = plan(hugging_face(Spec(), tmp_path / "a"), hugging_face(Spec(), tmp_path / "b"))
    assert {pair.policy for pair in made.pairs} == {"name"}
    assert all(e[:2] == e[2:] for e in map(ends, made.pairs))


def test_a_sum_of_what_a_layer_returns_is_not_rounded(tmp_path: Path) -> None:
    made, rows, _ = compared(Spec(dtype=BF16), tmp_path)
    number = next(n for n, pair in enumerate(made.pairs) if ends(pair)[2:] == ("model.layers.1", "output[0]"))
    mine = made.pairs[number].mine
    residual = mine.view.residual[0].open()  # type: ignore[union-attr]
    total = mine.refs[0].open().float() + residual.float()
    golden = made.pairs[number].golden.refs[0].open()
    real = torch.cat([row[: int(length)] for row, length in zip(golden, (5, 3))])
    distance = float((real - total).norm() / real.norm())
    measured = rows[number].metrics["relative_euclidean_distance"]
    assert isinstance(measured, float)
    assert math.isclose(measured, distance, rel_tol=1e-5)


# Sequence parallelism: ranks that have a part of the tokens each, beside one rank or as many.


SPLIT = Spec(ranks=4, lengths=(6, 7), layers=1, sequence="dropped")

ENGINES = st.builds(
    lambda kind, ranks, lengths, deferred, seed: Spec(
        sequence=kind,
        ranks=ranks,
        lengths=tuple(lengths),
        order=tuple(reversed(range(len(lengths)))),
        deferred=deferred,
        layers=1,
        seed=seed,
        pad=("left", "right")[seed % 2],
    ),
    kind=st.sampled_from(("dropped", "kept", "uneven")),
    ranks=st.sampled_from((2, 4)),
    lengths=st.lists(st.integers(3, 7), min_size=2, max_size=3),
    deferred=st.booleans(),
    seed=st.integers(0, 7),
)


@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@given(spec=ENGINES)
def test_tokens_split_over_ranks_meet_the_rows_of_one_rank(spec: Spec) -> None:
    with tempfile.TemporaryDirectory() as home:
        made = plan(hugging_face(spec, Path(home) / "golden"), Engine(spec, Path(home) / "mine").dump())
        rows, _ = run(made)
        assert [row.sentence for row in rows if row.verdict != "pass"] == []
        assert {ends(pair) for pair in made.pairs} == OUTSIDE | in_layer(0)


def test_a_layer_may_hand_out_summands_of_all_tokens_beside_its_part_of_the_stream(tmp_path: Path) -> None:
    spec = replace(SPLIT, deferred=True, late=True)
    made = plan(hugging_face(spec, tmp_path / "golden"), Engine(spec, tmp_path / "mine").dump())
    rows, _ = run(made)
    assert [row.sentence for row in rows if row.verdict != "pass"] == []
    [layer] = [pair for pair in made.pairs if ends(pair)[2:] == ("model.layers.0", "output[0]")]
    assert "residual added" in "; ".join(open_pair(layer).notes)


@pytest.mark.parametrize("lengths", [(1,), (2,)])
def test_ranks_may_be_more_than_tokens(lengths: tuple[int, ...], tmp_path: Path) -> None:
    spec = replace(SPLIT, lengths=lengths, sequence="uneven")
    made = plan(hugging_face(spec, tmp_path / "golden"), Engine(spec, tmp_path / "mine").dump())
    rows, _ = run(made)
    assert [row.sentence for row in rows if row.verdict != "pass"] == []


def test_without_ids_the_other_side_says_how_many_tokens_there_are(tmp_path: Path) -> None:
    spec = replace(SPLIT, lengths=(7, 7), sequence="uneven", only_outputs=True)
    made = plan(hugging_face(spec, tmp_path / "golden"), Engine(spec, tmp_path / "mine").dump())
    rows, _ = run(made)
    assert [row.sentence for row in rows if row.verdict != "pass"] == []
    outputs = {pair for pair in OUTSIDE | in_layer(0) if pair[1][0] == pair[3][0] == "o"}
    assert {ends(pair) for pair in made.pairs} >= outputs


def test_that_rows_were_joined_is_said(tmp_path: Path) -> None:
    made = plan(hugging_face(SPLIT, tmp_path / "golden"), Engine(SPLIT, tmp_path / "mine").dump())
    [norm] = [
        p for p in made.pairs if p.mine.node.endswith("post_attention_layernorm") and "0" in p.mine.slot
    ]
    opened = open_pair(norm)
    assert opened.notes == (
        "tokens split over 4 ranks: their rows joined, 13 in all; rows of padding that are not compared: 3",
    )
    assert len(opened.comparisons) == 1
    assert not opened.unjudged
    for value, unjudged in ((math.nan, "NaN"), (math.inf, "Inf")):
        padded = torch.load(norm.mine.refs[-1].path).index_fill(0, torch.tensor([-1]), value)
        torch.save(padded, norm.mine.refs[-1].path)
        assert open_pair(norm).unjudged == unjudged


def test_ranks_that_split_tokens_alike_meet_one_by_one_without_padding(tmp_path: Path) -> None:
    spec = replace(SPLIT, lengths=(3, 2))
    dumps = [Engine(spec, tmp_path / side).dump() for side in ("golden", "mine")]
    made = plan(*dumps)
    norms = [pair for pair in made.pairs if ends(pair)[0] == "model.norm" and pair.mine.slot == "output[0]"]
    assert [pair.rank for pair in norms] == [0, 1, 2, 3]
    assert [open_pair(norm).notes for norm in norms[:3]] == [
        (),
        (),
        ("rows of padding that are not compared: 1",),
    ]
    with pytest.raises(NoPayload, match="padding only"):
        open_pair(norms[3])


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_runs_on_as_many_ranks_one_may_split_its_tokens(turned: bool, tmp_path: Path) -> None:
    spec = replace(SPLIT, ranks=2)
    dumps = [Engine(replace(spec, sequence=kind), tmp_path / kind).dump() for kind in ("uneven", "")]
    made = plan(*(dumps[::-1] if turned else dumps))
    rows, _ = run(made)
    assert {row.verdict for row in rows} == {"pass"}
    together = {pair.mine.node.rpartition(".")[2] for pair in made.pairs if pair.rank is None}
    assert together >= {"input_layernorm", "post_attention_layernorm", "o_proj", "down_proj"}
    assert not together & {"qkv_proj", "attn", "act_fn"}


@pytest.mark.parametrize(
    ("golden", "mine"),
    [(("kept", 2), ("dropped", 2)), (("uneven", 2), ("kept", 2)), (("", 2), ("kept", 4))],
)
def test_engines_that_pad_otherwise_meet_without_the_padding(
    golden: tuple[str, int], mine: tuple[str, int], tmp_path: Path
) -> None:
    spec = replace(SPLIT, deferred=True, head_norms=True)
    sides = [replace(spec, sequence=kind, ranks=ranks) for kind, ranks in (golden, mine)]
    dumps = [Engine(side, tmp_path / str(number)).dump() for number, side in enumerate(sides)]
    rows, _ = run(plan(*dumps))
    assert [row.sentence for row in rows if row.verdict != "pass"] == []


def test_a_fault_of_the_last_rank_is_found(tmp_path: Path) -> None:
    golden = hugging_face(SPLIT, tmp_path / "golden")
    _, diagnosis = run(plan(golden, Engine(SPLIT, tmp_path / "mine", Fault("last rank", 0)).dump()))
    assert diagnosis.roots[0].row.mine.node == "root.model.layers.0.self_attn.o_proj"
    assert "worst_row_error at [12, :]" in diagnosis.roots[0].row.sentence


@pytest.mark.parametrize(
    ("lengths", "ranks", "pad", "cuts"),
    [((7, 7), 2, "right", ()), ((7, 5), 4, "left", ()), ((7, 7), 2, "right", (4, 5))],
)
def test_tokens_before_the_batch_are_turned(
    lengths: tuple[int, ...], ranks: int, pad: str, cuts: tuple[int, ...], tmp_path: Path
) -> None:
    spec = Spec(lengths=lengths, ranks=ranks, pad=pad, size=4, layers=1)
    made = plan(hugging_face(spec, tmp_path / "golden"), tokens_first(spec, tmp_path / "mine", cuts))
    rows, _ = run(made)
    assert [row.sentence for row in rows if row.verdict != "pass"] == []
    assert len({pair.step for pair in made.pairs}) == len(cuts) + 1
    assert {pair.mine.node for pair in made.pairs} >= {"root.model.layers.0.mlp.up_proj", "root.lm_head"}


FLAT, BATCH, TURNED = TokenLayout((13,)), TokenLayout((2, 7)), TokenLayout((7, 2), turned=True)


@pytest.mark.parametrize(
    ("layout", "shapes", "split"),
    [
        (FLAT, [(4, 8)] * 4, TokenSplit(0, 13, True)),
        (FLAT, [(4, 8), (3, 8), (3, 8), (3, 8)], TokenSplit(0, 13, True)),
        (FLAT, [(13, 8)] * 4, None),
        (FLAT, [(13, 8), (0, 8), (0, 8), (0, 8)], TokenSplit(0, 13, True)),
        (FLAT, [(16, 8)] * 4, TokenSplit(0, 13, False)),
        (FLAT, [(14, 8)] * 4, None),
        (FLAT, [(64, 8)] * 4, TokenSplit(0, 52, False)),
        (FLAT, [(52, 8)] * 4, None),
        (FLAT, [(16,)] * 4, TokenSplit(0, 13, False)),
        (FLAT, [(3, 8)] * 4, None),
        (FLAT, [(5, 8)] * 4, None),
        (FLAT, [(4, 8), (4, 8), (4, 8), (4, 6)], None),
        (FLAT, [(4,)] * 4, None),
        (BATCH, [(2, 4, 8)] * 2, TokenSplit(1, 7, True)),
        (BATCH, [(7, 8)] * 2, None),
        (BATCH, [(2, 7, 8)] * 2, None),
        (BATCH, [(2, 4, 7, 8)] * 2, None),
        (TURNED, [(4, 2, 8)] * 2, TokenSplit(0, 7, True)),
        (TURNED, [(8, 2, 8)] * 2, TokenSplit(0, 7, False)),
        (TURNED, [(4, 1, 8)] * 2, None),
        (TokenLayout((1, 6)), [(3, 8)] * 2, TokenSplit(0, 6, True)),
        (TokenLayout((1, 6)), [(1, 6, 8)] * 8, None),
        (TokenLayout((1, 6)), [(1, 8)] * 8, None),
    ],
)
def test_shapes_tell_what_a_rank_has(
    layout: TokenLayout, shapes: list[Shape], split: TokenSplit | None
) -> None:
    assert split_of(shapes, layout) == split


@pytest.mark.parametrize(
    ("ids", "looked_up", "ranks", "told"),
    [
        ((13,), (13, 8), 4, None),
        ((13,), (4, 8), 4, ((13,), False)),
        ((13,), (16, 8), 4, ((13,), False)),
        ((13,), (5, 8), 4, None),
        ((13,), (4, 8), 1, None),
        ((2, 7), (2, 7, 8), 1, None),
        ((2, 7), (7, 2, 8), 1, ((7, 2), True)),
        ((2, 7), (4, 2, 8), 2, ((7, 2), True)),
        ((2, 7), (2, 4, 8), 2, ((2, 7), False)),
        ((2, 7), (14, 8), 2, None),
    ],
)
def test_an_embedding_tells_how_tokens_lie(
    ids: Shape, looked_up: Shape, ranks: int, told: tuple[Shape, bool] | None
) -> None:
    assert tokens_of(ids, looked_up, ranks) == told


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[torch.Tensor], TensorRef]:
    def save(tensor: torch.Tensor) -> TensorRef:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pth"
        torch.save(tensor, path)
        return TensorRef(str(path))

    return save


def test_ranks_that_hold_the_same_are_no_parts(saved: Callable[[torch.Tensor], TensorRef]) -> None:
    export, layout = Export(Node("norm", "RMSNorm", "norm"), Slot("output"), "norm"), TokenLayout((4,))
    whole, same, other = saved(torch.randn(4, 8)), torch.randn(2, 8), torch.randn(2, 8)
    assert Splits().of(export, (saved(same), saved(same)), (whole,), layout) is None
    assert Splits().of(export, (saved(same), saved(other)), (whole,), layout) == TokenSplit(0, 4, True)
    narrow = saved(torch.randn(2, 16))
    assert Splits().of(export, (saved(same), saved(other)), (narrow,), layout) is None
    assert Splits().of(export, (saved(same), saved(other)), (whole,), None) is None
    alone = replace(layout, shared=False)
    assert Splits().of(export, (saved(same), saved(other)), (whole,), alone) is None


def test_one_row_on_each_rank_is_a_token_where_the_other_side_has_all(
    saved: Callable[[torch.Tensor], TensorRef],
) -> None:
    export, layout = Export(Node("norm", "RMSNorm", "norm"), Slot("output"), "norm"), TokenLayout((3,))
    rows = tuple(saved(torch.randn(1, 8)) for _ in range(4))
    assert Splits().of(export, rows, (saved(torch.randn(3, 8)),), layout) == TokenSplit(0, 3, True)
    assert Splits().of(export, rows, rows, layout) is None


def test_a_step_of_one_token_is_known_by_the_steps_before(saved: Callable[[torch.Tensor], TensorRef]) -> None:
    export, splits = Export(Node("norm", "RMSNorm", "norm"), Slot("output"), "norm"), Splits()
    one = saved(torch.randn(1, 8)), saved(torch.randn(1, 8))
    whole, rest = saved(torch.randn(1, 8)), (saved(torch.randn(2, 8)), saved(torch.randn(2, 8)))
    assert splits.of(export, one, (saved(torch.randn(1, 8)),), TokenLayout((1,))) is None
    assert splits.of(export, rest, (saved(torch.randn(4, 8)),), TokenLayout((4,))) is not None
    assert splits.of(export, one, (whole,), TokenLayout((1,))) == TokenSplit(0, 1, True)


@pytest.mark.parametrize(
    ("lengths", "pad", "logits", "norm"),
    [
        ((7,), "right", "last", "all"),
        ((5, 3), "right", "", ""),
        ((5, 3), "left", "last", ""),
        ((5, 5), "right", "last", ""),
    ],
)
def test_the_last_rows_of_golden_are_known_where_they_are_those_of_sequences(
    lengths: tuple[int, ...], pad: str, logits: str, norm: str, tmp_path: Path
) -> None:
    spec = Spec(lengths=lengths, pad=pad, layers=1)
    made = plan(hugging_face(spec, tmp_path / "golden"), Engine(spec, tmp_path / "mine").dump())
    rows = {ends(pair)[2]: rows_in(pair.golden, open_pair(pair).golden.shape) for pair in made.pairs}
    assert (rows["logits_processor"], rows["model.norm"]) == (logits, norm)
