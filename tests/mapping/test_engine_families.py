"""Families of models, Hugging Face against an engine: what meets what, and where a fault shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps.base import Dump
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan

from .engine_families import ENGINES, FAMILIES, Absorbed, golden, model_of
from .engine_parts import Prompts

ALONE = {"rotary_emb", "rotary_emb_local", "act_fn", "activation_fn", "resid_dropout", "embed_dropout"}
ALONE |= {"resid_attn_dropout", "resid_mlp_dropout"}
"""Tables, halves of what the engine multiplies at once, and copies: there is no tensor of their own."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Dump]:
    """The name, the model, and the hooks' dump of it."""
    name = request.param
    model = model_of(name)
    return name, model, golden(model, Prompts(), tmp_path_factory.mktemp(name))


def alone(made: Plan) -> set[tuple[str, str]]:
    """What nothing meets, by the last names."""
    last = {(left.side, left.node.removesuffix(".call1").rpartition(".")[2]) for left in made.unmapped}
    return {(side, name) for side, name in last if name not in ALONE}


def outputs_alone(made: Plan, mine: Dump) -> set[str]:
    """Outputs of mine that no pair has, by last names and slots."""
    step, met = mine.steps[0], {(pair.mine.node, pair.mine.slot) for pair in made.pairs}
    met |= {
        (each.node, "output[1]") for each in (pair.mine for pair in made.pairs) if each.node.count(".") == 3
    }
    left = set()
    for node in step.tree.walk():
        for slot in mine.tensors(step, mine.ranks[0], node):
            if slot.kind == "output" and (node.path, str(slot)) not in met:
                left.add(f"{node.path.rpartition('.')[2]} {slot}")
    return left


def test_every_tensor_meets_its_own(family: tuple[str, Any, Dump], tmp_path: Path) -> None:
    name, model, side = family
    mine = ENGINES[name](model, Prompts(ranks=2), tmp_path).dump()
    made = plan(side, mine)
    rows, diagnosis = run(made)
    wrong = [row.sentence for row in rows if row.verdict not in ("pass", "incomparable")]
    assert not wrong
    assert not diagnosis.roots
    assert alone(made) == ({("golden", "lm_head")} if name == "gemma2" else set())
    assert outputs_alone(made, mine) <= {"rotary_emb output[0]", "rotary_emb output[1]"}


def test_of_attention_over_a_latent_all_but_the_latent_itself_is_compared(tmp_path: Path) -> None:
    model = model_of("deepseek_v3")
    mine = Absorbed(model, Prompts(ranks=2), tmp_path / "mine").dump()
    made = plan(golden(model, Prompts(), tmp_path / "golden"), mine)
    rows, _ = run(made)
    assert {row.verdict for row in rows} <= {"pass", "incomparable"}
    assert alone(made) == {("golden", "kv_b_proj")}
    met = {
        (pair.golden.node.rpartition(".")[2], pair.mine.slot)
        for pair in made.pairs
        if "attn_mqa" in pair.mine.node
    }
    assert met == {
        ("kv_a_layernorm", "input[1]"),
        ("q_b_proj", "input[3]"),
        ("kv_a_proj_with_mqa", "input[4]"),
    }


FAULTS = {
    "gemma3": "model.layers.0.self_attn.q_norm",
    "glm4": "model.layers.1.post_self_attn_layernorm",
    "phi": "model.layers.1.mlp.fc1",
    "mixtral": "model.layers.0.block_sparse_moe.experts",
    "deepseek_v3": "model.layers.1.self_attn.kv_a_layernorm",
}


@pytest.mark.parametrize("family", FAULTS, indirect=True)
def test_a_module_that_is_wrong_is_the_root(family: tuple[str, Any, Dump], tmp_path: Path) -> None:
    name, model, side = family
    wrong = FAULTS[name]
    _, diagnosis = run(plan(side, ENGINES[name](model, Prompts(ranks=2, wrong=wrong), tmp_path).dump()))
    assert diagnosis.roots[0].row.mine.node == f"root.{wrong}"


def test_as_many_heads_as_tokens_are_told_apart_by_the_values(tmp_path: Path) -> None:
    model, prompts = model_of("gemma3"), Prompts(lengths=(4, 4))
    mine = ENGINES["gemma3"](model, prompts, tmp_path / "mine").dump()
    rows, _ = run(plan(golden(model, prompts, tmp_path / "golden"), mine))
    assert {row.verdict for row in rows} == {"pass"}


@pytest.mark.parametrize("wrong", ["model.embed_tokens", "model.layers.1.mlp"])
def test_a_tensor_that_is_multiplied_next_does_not_hide_who_is_wrong(wrong: str, tmp_path: Path) -> None:
    name = "gemma2" if "embed" in wrong else "deepseek_v3"
    model = model_of(name)
    side = golden(model, Prompts(), tmp_path / "golden")
    _, diagnosis = run(plan(side, ENGINES[name](model, Prompts(wrong=wrong), tmp_path / "mine").dump()))
    assert diagnosis.roots[0].row.mine.node == f"root.{wrong}"
