"""Sizes that no model can have are refused with what to change; the others say what a rank holds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from acc_pytest.errors import SettingsError
from acc_pytest.lab.atb import LanguageModel, ModelSpec, NoProbe, Runtime
from acc_pytest.lab.demo.golden import seeded


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "gpt"}, "model: family must be one of llama,.*, got 'gpt'"),
        ({"dtype": "int8"}, "model: dtype must be one of float16, bfloat16, float32, got 'int8'"),
        ({"models": 3}, "model: models must be one of 1, 2, got 3"),
        ({"layers": 0}, "model: layers must be >= 1, got 0"),
        ({"tokens": 0}, "model: tokens must be >= 1, got 0"),
        ({"kv_heads": 3}, "model: heads must be a multiple of kv_heads=3, got 4"),
        ({"family": "bloom", "kv_heads": 2}, "bloom packs one key per query head"),
        (
            {"experts": 4, "experts_per_token": 5},
            "model: experts_per_token must be from 1 to experts=4, got 5",
        ),
        ({"rotary_size": 3}, "model: rotary_size must be even and at most head_size=8, got 3"),
        ({"rotary_size": 10}, "model: rotary_size must be even and at most head_size=8, got 10"),
        ({"ranks": 0}, "model: ranks must be >= 1, got 0"),
        ({"ranks": 3}, "heads=4 does not split over 3 ranks"),
        ({"ranks": 4, "intermediate": 34}, "intermediate=34 does not split over 4 ranks"),
        ({"ranks": 6, "heads": 12, "kv_heads": 4}, "kv_heads=4 does not split over 6 ranks; one of the two"),
    ],
)
def test_an_impossible_model_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ModelSpec(**options)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "own"),
    [(8, 8, 1, (8, 8)), (8, 4, 2, (4, 2)), (8, 2, 2, (4, 1)), (8, 2, 4, (2, 1)), (8, 1, 8, (1, 1))],
)
def test_heads_are_split_and_the_last_key_head_is_shared(
    heads: int, kv_heads: int, ranks: int, own: tuple[int, int]
) -> None:
    spec = ModelSpec(heads=heads, kv_heads=kv_heads, ranks=ranks, intermediate=64)
    assert (spec.own_heads, spec.own_kv_heads) == own


@pytest.mark.parametrize(("tokens", "blocks", "positions"), [(1, 2, 16), (16, 2, 16), (17, 3, 24)])
def test_the_cache_has_room_for_the_tokens(tokens: int, blocks: int, positions: int) -> None:
    spec = ModelSpec(tokens=tokens)
    assert (spec.blocks, spec.positions) == (blocks, positions)


@pytest.mark.parametrize(
    ("models", "phases", "first", "later"),
    [(1, ("both",), "both", "both"), (2, ("prefill", "decode"), "prefill", "decode")],
)
def test_a_step_runs_in_the_model_of_its_phase(
    models: int, phases: tuple[str, ...], first: str, later: str
) -> None:
    spec = ModelSpec(models=models)
    assert (spec.phases, spec.phase_of(0), spec.phase_of(7)) == (phases, first, later)


# The demo's golden models and the ATB graphs built from them are the same networks. No transformers here.


PROMPT = [5, 9, 2, 77, 31, 8, 1]
ALLOWED = 100 * 2.0**-24 * math.sqrt(4)
"""Float32: 24 roundings and four sums of up to 128 terms in each of three layers and the ends."""
SPECS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-gqa": {"kv_heads": 2},
    "llama-separate": {"family": "llama-separate"},
    "llama-one-model": {"models": 1, "kv_heads": 2},
    "moe": {"family": "moe", "layers": 3},
    "bloom": {"family": "bloom", "models": 1, "intermediate": 128},
    "chatglm": {"family": "chatglm", "models": 1, "kv_heads": 2},
}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", list(SPECS))
def test_prefill_and_decode_give_the_goldens_logits(name: str, ranks: int) -> None:
    spec = ModelSpec(**SPECS[name], dtype="float32", ranks=ranks)
    with torch.no_grad():
        toy = seeded(spec, 7)
    mine = LanguageModel(spec, dict(toy.named_parameters()), Runtime([NoProbe()] * ranks))
    ids, cache = PROMPT, None
    for _ in range(4):
        with torch.no_grad():
            logits, cache = toy.step(torch.tensor([ids]), cache)
        wanted = logits.flatten(0, -2)[-1]
        got = mine.step(ids)
        assert float((got - wanted).norm() / wanted.norm()) <= ALLOWED
        assert int(got.argmax()) == int(wanted.argmax())
        ids = [int(wanted.argmax())]


def test_a_model_whose_config_is_a_spec_is_read_from_torch() -> None:
    with torch.no_grad():
        toy = seeded(ModelSpec(), 7)
    toy.__dict__["config"] = ModelSpec()
    mine = LanguageModel.from_torch(toy, Runtime([NoProbe()] * 2), dtype="float32", tokens=20)
    assert mine.spec == ModelSpec(dtype="float32", tokens=20, ranks=2)
    with torch.no_grad():
        wanted, _ = toy.step(torch.tensor([PROMPT]), None)
    got = mine.step(PROMPT)
    assert float((got - wanted[0, -1]).norm() / wanted[0, -1].norm()) <= ALLOWED
