"""Two runs that hold the same tokens in other steps: which steps meet, what is compared, what is found."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from acc_pytest.diagnosis.run import run
from acc_pytest.mapping.pair import Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair

from .passes import Pass, after, batched, engine_in, hugging_face_in, in_chunks, token_by_token
from .served import Fault, Spec, hugging_face

LENGTHS = (9, 7)
SPEC = Spec(lengths=LENGTHS, layers=1)
MIXED = batched(LENGTHS, 5, 2)
"""Five passes, the third of which answers the first prompt and goes on with the second."""


def verdicts(made: Plan) -> Counter[str]:
    return Counter(row.verdict for row in run(made)[0])


def ids_of(made: Plan) -> dict[object, list[int]]:
    """The token ids that are compared in each step."""
    found: dict[object, list[int]] = {}
    for pair in made.pairs:
        if pair.fed == "token ids" and pair.mine.node == "root.model.embed_tokens":
            opened = open_pair(pair)
            ids = [side.read(0, math.prod(side.shape)).tolist() for side in (opened.golden, opened.mine)]
            assert ids[0] == ids[1]
            found[pair.step] = ids[1]
    return found


def one(made: Plan, step: object, node: str, slot: str = "output[0]") -> Pair:
    [pair] = [
        p for p in made.pairs if p.step == step and (p.mine.node, p.mine.slot) == (f"root.{node}", slot)
    ]
    return pair


def case(
    prompts: list[int], answers: int, size: int, mixed: bool, ranks: int, pad: str, seed: int
) -> tuple[Spec, list[Pass]]:
    lengths = tuple(prompt + answers for prompt in prompts)
    passes = (batched if mixed else in_chunks)(lengths, size, answers)
    spec = Spec(lengths=lengths, layers=1, ranks=ranks, pad=pad, seed=seed, head_norms=seed % 2 == 0)
    return replace(spec, says_lengths=seed % 3 > 0), passes


CASES = st.builds(
    case,
    prompts=st.lists(st.integers(2, 7), min_size=1, max_size=3),
    answers=st.integers(0, 3),
    size=st.integers(3, 6),
    mixed=st.booleans(),
    ranks=st.sampled_from((1, 2)),
    pad=st.sampled_from(("left", "right")),
    seed=st.integers(0, 7),
)


@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@given(drawn=CASES)
def test_every_token_of_every_pass_meets_its_row_of_the_one_full_pass(drawn: tuple[Spec, list[Pass]]) -> None:
    spec, passes = drawn
    with tempfile.TemporaryDirectory() as home:
        golden = hugging_face(spec, Path(home) / "golden")
        made = plan(golden, engine_in(passes, spec, Path(home) / "mine"))
        assert verdicts(made) == {"pass": len(made.pairs)}
        counts = [sum(end - start for _, start, end in each) for each in passes]
        assert [len(ids) for ids in ids_of(made).values()] == counts
        assert len(set(Counter(pair.step for pair in made.pairs).values())) == 1


def test_the_other_way_round_the_engine_is_golden(tmp_path: Path) -> None:
    made = plan(engine_in(MIXED, SPEC, tmp_path / "golden"), hugging_face(SPEC, tmp_path / "mine"))
    assert verdicts(made) == {"pass": len(made.pairs)}
    assert {pair.step for pair in made.pairs} == set(range(len(MIXED)))
    said = "5 of the 5 tokens of step 1 of golden are among the 16 of step 0 of mine"
    assert said in one(made, 1, "model.norm").reason


@pytest.mark.parametrize("kind", ["norm", "reduce"])
def test_a_fault_in_one_pass_is_found_there(kind: str, tmp_path: Path) -> None:
    spec = replace(SPEC, ranks=2)
    golden = hugging_face(SPEC, tmp_path / "golden")
    mine = engine_in(MIXED, spec, tmp_path / "mine", {3: Fault(kind, layer=0)})
    rows, diagnosis = run(plan(golden, mine))
    assert {row.step for row in rows if row.red} == {3}
    at = {"norm": "post_attention_layernorm", "reduce": "mlp.down_proj"}[kind]
    assert diagnosis.roots[0].row.mine.node == f"root.model.layers.0.{at}"


@pytest.mark.parametrize(("turned", "pad"), [(False, "left"), (True, "right")])
def test_two_runs_of_one_model_meet_when_one_has_a_cache(turned: bool, pad: str, tmp_path: Path) -> None:
    spec = Spec(lengths=(8, 8) if pad == "right" else (8, 6), pad=pad, layers=1)
    whole, cached = hugging_face(spec, tmp_path / "a"), hugging_face_in((4, 6, 7), spec, tmp_path / "b")
    made = plan(*((cached, whole) if turned else (whole, cached)))
    assert verdicts(made) == {"pass": len(made.pairs)}
    assert {pair.step for pair in made.pairs} == {0, 1, 2, 3}
    assert {pair.policy for pair in made.pairs} == {"name"}
    down = one(made, 2, "model.layers.0.mlp.down_proj")
    assert tuple(open_pair(down).golden.shape) == tuple(open_pair(down).mine.shape) == (2, spec.hidden)
    refused = {(gap.step, gap.node) for gap in made.unmapped}
    assert {(step, "root") for step in (1, 2)} <= refused
    assert {node for _, node in refused} <= {"root", "root.model"}


def test_logits_of_the_last_token_alone_meet_the_pass_that_has_it(tmp_path: Path) -> None:
    golden = hugging_face(SPEC, tmp_path / "golden")
    made = plan(golden, engine_in(in_chunks(LENGTHS, 4, 1), SPEC, tmp_path / "mine"))
    for step, rows in ((0, 1), (1, 1), (4, 2)):
        assert tuple(open_pair(one(made, step, "logits_processor")).golden.shape) == (rows, SPEC.vocabulary)


def test_passes_before_the_first_real_one_are_left_out_and_said(tmp_path: Path) -> None:
    spec = Spec(lengths=(8, 8), layers=1)
    golden = hugging_face_in((7,), spec, tmp_path / "golden")
    warm_up = [
        engine_in([[(0, 0, n)]], Spec(lengths=(n,), dummy=1, layers=1), tmp_path / str(n)) for n in (5, 16)
    ]
    real = engine_in([[(0, 0, 7), (1, 0, 7)], *token_by_token((7, 7), 1)], spec, tmp_path / "mine")
    made = plan(golden, after(warm_up, real))
    assert verdicts(made) == {"pass": len(made.pairs)}
    assert {pair.step for pair in made.pairs} == {0, 1}
    assert "steps meet by their tokens (golden = mine): 0 = 2, 1 = 3" in made.notes
    assert any(
        note.startswith("mine: no token of step 0, 1 is one of the other side's") for note in made.notes
    )


def test_a_prompt_that_was_run_to_warm_up_is_followed_by_the_one_that_goes_on(tmp_path: Path) -> None:
    spec = Spec(lengths=(8, 8), layers=1)
    prompt: Pass = [(0, 0, 7), (1, 0, 7)]
    mine = engine_in([prompt, prompt, *token_by_token((7, 7), 1)], spec, tmp_path / "mine")
    made = plan(hugging_face_in((7,), spec, tmp_path / "golden"), mine)
    assert "steps meet by their tokens (golden = mine): 0 = 1, 1 = 2" in made.notes


def test_rows_that_fill_up_a_batch_are_no_tokens(tmp_path: Path) -> None:
    spec = Spec(lengths=(8, 8, 1), dummy=1, layers=1)
    passes: list[Pass] = [[(0, 0, 7), (1, 0, 7)], [(0, 7, 8), (1, 7, 8), (2, 0, 1)]]
    golden = hugging_face(replace(spec, lengths=(8, 8), dummy=0), tmp_path / "golden")
    made = plan(golden, engine_in(passes, spec, tmp_path / "mine"))
    assert [len(ids) for ids in ids_of(made).values()] == [14, 2]
    assert verdicts(made) == {"pass": len(made.pairs)}


def test_steps_of_the_same_tokens_meet_by_their_numbers_as_ever(tmp_path: Path) -> None:
    spec = Spec(lengths=(8, 8), layers=1)
    golden, mine = (hugging_face_in((7,), spec, tmp_path / name) for name in ("golden", "mine"))
    made = plan(golden, mine)
    assert not [note for note in made.notes if "tokens" in note]
    assert {pair.reason for pair in made.pairs} == {"equal names"}


def test_another_prompt_is_not_looked_for_in_other_steps(tmp_path: Path) -> None:
    golden = hugging_face(SPEC, tmp_path / "golden")
    mine = engine_in(MIXED, replace(SPEC, seed=1), tmp_path / "mine")
    made = plan(golden, mine)
    assert not [note for note in made.notes if "tokens" in note]
    rows, _ = run(made)
    assert any(row.red and row.fed == "token ids" for row in rows)
