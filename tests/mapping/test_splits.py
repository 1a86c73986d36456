"""Sequence parallelism: ranks that have a part of the tokens each, beside one rank or as many."""

from __future__ import annotations

import tempfile
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
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.mapping.rule_views import Splits
from acc_pytest.mapping.shapes import Shape
from acc_pytest.mapping.token_order import split_of, tokens_of
from acc_pytest.mapping.views import TokenLayout, TokenSplit
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.topology.tree import Node

from .passes import tokens_first
from .served import Engine, Fault, Spec, hugging_face
from .test_hf_against_engine import OUTSIDE, ends, in_layer

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
