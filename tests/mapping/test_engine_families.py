"""Families of models, Hugging Face against an engine: what meets what, and where a fault shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.base.older_torch import half_on_cpu
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps.base import Dump
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings
from tests.newer import scaled_attention
from tests.slow import slow

from .engine_families import ENGINES, FAMILIES, Absorbed, golden, model_of
from .engine_parts import Prompts
from .toy_model import Verdicts, compared

ALONE = {"rotary_emb", "rotary_emb_local", "act_fn", "activation_fn", "resid_dropout", "embed_dropout"}
ALONE |= {"resid_attn_dropout", "resid_mlp_dropout"}
"""Tables, halves of what the engine multiplies at once, and copies: there is no tensor of their own."""


QUICK = ("gemma3", "mixtral", "deepseek_v3")


@pytest.fixture(scope="module", params=[name if name in QUICK else slow(name) for name in FAMILIES])
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


@pytest.mark.parametrize("family", [name if name in QUICK else slow(name) for name in FAULTS], indirect=True)
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


# One encoder-decoder, with attention that gives its weights on one side and none on the other.


def dumped(path: Path, implementation: str) -> str:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        f"{side}_{what}": size
        for side in ("encoder", "decoder")
        for what, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))
    }
    config = transformers.BartConfig(d_model=16, vocab_size=40, **sizes, attn_implementation=implementation)
    torch.manual_seed(1)
    model = transformers.BartModel(config).eval()
    ids = torch.arange(12)[None]
    with torch.no_grad(), register_hook(model, DumpConfig(path)):
        model(input_ids=ids, decoder_input_ids=ids[:, :5])
    return str(path)


@pytest.mark.parametrize("sides", [("eager", "sdpa"), ("sdpa", "eager")])
def test_modules_of_one_model_meet_by_name(tmp_path: Path, sides: tuple[str, str]) -> None:
    scaled_attention()
    golden, mine = (dumped(tmp_path / side, side) for side in sides)
    plan = make_plan(Settings.from_values({"golden": golden, "mine": mine}))
    others = {(pair.golden.node, pair.mine.node) for pair in plan.pairs if pair.golden.node != pair.mine.node}
    assert not others
    assert sum(pair.golden.node.endswith("encoder_attn.out_proj") for pair in plan.pairs) > 1


# rounded_frequencies: what `model.half()` does to position tables is explained, and nothing else is.


FIRST = 700
"""Where the sequence begins: far enough for the rounding of frequencies to be seen."""


class RotaryEmbedding(nn.Module):
    """Tables of cos and sin in float32, as transformers makes them."""

    inv_freq: torch.Tensor

    def __init__(self, base: float) -> None:
        super().__init__()
        self.register_buffer("inv_freq", base ** -(torch.arange(16) / 16), persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].float() * self.inv_freq.float()
        return angles.cos(), angles.sin()


class Model(nn.Module):
    """One attention of all tokens to all, by the distance between them."""

    def __init__(self, base: float) -> None:
        super().__init__()
        self.embed, self.rotary_emb, self.head = nn.Embedding(8, 32), RotaryEmbedding(base), nn.Linear(32, 8)

    def forward(self, ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        cos, sin = self.rotary_emb(x, position_ids)
        first, second = x.float().chunk(2, -1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
        weights = (turned @ turned.transpose(-1, -2) / 32**0.5).softmax(-1)
        return self.head(weights @ x)


def dump(path: Path, dtype: torch.dtype, *, buffers: bool = False, base: float = 1e4) -> Path:
    """A run of a prompt; `buffers` converts the frequencies as well."""
    torch.manual_seed(4)
    model = Model(base)
    kept = model.rotary_emb.inv_freq
    model.to(dtype)
    if not buffers:
        model.rotary_emb.inv_freq = kept
    with torch.no_grad(), half_on_cpu(), register_hook(model, DumpConfig(path)):
        model(torch.arange(64)[None] % 8, position_ids=torch.arange(FIRST, FIRST + 64)[None])
    return path


@pytest.fixture(scope="module")
def half_golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("golden"), torch.float32)


def explained(verdicts: Verdicts) -> dict[str, float]:
    return {pair.id: pair.rounded_frequencies for pair in verdicts.plan.pairs if pair.rounded_frequencies > 0}


def test_tables_of_rounded_frequencies_pass(half_golden: Path, tmp_path: Path) -> None:
    verdicts = compared(half_golden, dump(tmp_path, torch.float16, buffers=True))
    assert explained(verdicts).keys() == {"rotary_emb", "rotary_emb[1]"}
    assert {row.verdict for row in verdicts.rows} == {"pass"}


def test_the_explained_error_is_that_of_the_formula(half_golden: Path, tmp_path: Path) -> None:
    verdicts = compared(half_golden, dump(tmp_path, torch.float16, buffers=True))
    frequencies = 1e4 ** -(torch.arange(16) / 16)
    rms = float(frequencies.square().mean().sqrt())
    assert explained(verdicts)["rotary_emb"] == pytest.approx((FIRST + 63) * rms * 2.0**-11 / 3)


@pytest.mark.parametrize("seed", range(3))
def test_it_covers_what_rounding_does_and_little_more(seed: int) -> None:
    """In float64: tables of positions up to P are off by at most twice P rms(f) u / 3, and near that."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.rand(64, generator=generator, dtype=torch.float64)
    positions = torch.arange(400, dtype=torch.float64)[:, None]
    error = (positions * frequencies.half().double()).cos() - (positions * frequencies).cos()
    relative = float(error.norm() / (positions * frequencies).cos().norm())
    formula = 399 * float(frequencies.square().mean().sqrt()) * 2.0**-11 / 3
    assert formula / 4 < relative < 2 * formula


def test_without_rounded_frequencies_nothing_is_explained(half_golden: Path, tmp_path: Path) -> None:
    assert explained(compared(half_golden, dump(tmp_path, torch.float16))) == {}


def test_another_base_is_another_buffer_and_red(half_golden: Path, tmp_path: Path) -> None:
    verdicts = compared(half_golden, dump(tmp_path, torch.float16, buffers=True, base=1.1e4))
    assert explained(verdicts) == {}
    assert verdicts.roots[0] == "root.rotary_emb.inv_freq"


def test_of_caches_keys_are_rotated_and_values_are_not(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    for name, dtype in (("golden", torch.float32), ("mine", torch.bfloat16)):
        torch.manual_seed(4)
        config = transformers.LlamaConfig(vocab_size=32, num_key_value_heads=1, **sizes)
        model = transformers.LlamaForCausalLM(config).to(dtype)
        with torch.no_grad(), register_hook(model, DumpConfig(tmp_path / name)):
            model(torch.arange(24)[None])
    names = explained(compared(tmp_path / "golden", tmp_path / "mine")).keys()
    assert any("key" in name.rpartition("[")[2] for name in names)
    assert not any("value" in name.rpartition("[")[2] for name in names)
