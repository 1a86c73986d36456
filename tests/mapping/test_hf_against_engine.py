"""A model of Hugging Face against the same model as an engine builds it: pairs, values, verdicts."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from acc_pytest.diagnosis.run import run
from acc_pytest.mapping.pair import Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis

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
    max_examples=6,
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
    assert sum(pair.policy == "rope" for pair in made.pairs) == (0 if shared else 4)


def test_bfloat16_stays_green(tmp_path: Path) -> None:
    for number, spec in enumerate((Spec(dtype=BF16), Spec(ranks=2, deferred=True, dtype=BF16))):
        _, rows, _ = compared(spec, tmp_path / str(number))
        assert {row.verdict for row in rows} == {"pass"}


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("norm", "post_attention_layernorm output[0]"),
        ("residual", "post_attention_layernorm output[0]"),
        ("scaled", "self_attn.o_proj output[0]"),
        ("kv", "self_attn.qkv_proj output[0]"),
        ("theta", "self_attn.attn input[0]"),
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


@pytest.mark.parametrize("ranks", [(2, 4), (4, 2)])
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
