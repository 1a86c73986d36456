"""The demo's golden models and the ATB graphs built from them are the same networks. No transformers here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from acc_pytest.lab.atb import LanguageModel, ModelSpec, NoProbe, Runtime
from acc_pytest.lab.demo.golden import seeded

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
