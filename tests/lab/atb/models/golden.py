"""Golden models of transformers with seeded weights, and how far mine may be from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch

from acc_pytest.lab.atb import LanguageModel, NoProbe, Runtime

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 128,
}
PROMPT = [5, 9, 2, 77, 31, 8, 1]
STEPS = 4
"""Prefill and three decode steps."""
UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Largest relative error of one rounding."""
ROUNDINGS = 24
"""Of weights and results on the way through a layer: two norms, four linears, tables, rotation, attention,
activation, product and two sums, over ranks two more, and two norms after them in GLM-4. (Bloom has
biases apart and no rotation; its position bias, up to 5 here, counts for five.)"""
SUMS = 4 * math.sqrt(192)
"""What float32 sums add, which is their own dtype here: four in a row, of up to 192 terms each."""


def bound(dtype: str, layers: int = 2) -> float:
    """Largest |mine - golden| / |golden| of the logits.

    Inside a layer roundings add up at worst, over layers (and the ends, as one more) they are independent.
    """
    steps = ROUNDINGS + (SUMS if dtype == "float32" else 0)
    return steps * UNIT[dtype] * math.sqrt(layers + 1)


def runtime(ranks: int = 1) -> Runtime:
    return Runtime([NoProbe()] * ranks)


def seeded(model: Any, seed: int = 3) -> Any:
    """Weights that keep the size of what passes through, so that every operator counts in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("bias"):
                value = noise * 0.1
            elif parameter.dim() == 1:
                value = 1 + 0.2 * noise
            else:
                value = noise * (0.15 if "embed" in name else 1.3 / parameter.shape[-1] ** 0.5)
            parameter.copy_(value)
    return model.eval()


@cache
def llama(**options: Any) -> Any:
    sizes = {**SIZES, "num_key_value_heads": 4, "rope_theta": 5000.0, "rms_norm_eps": 1e-5, **options}
    return seeded(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)))


@cache
def qwen2(**options: Any) -> Any:
    sizes = {**SIZES, "num_key_value_heads": 4, **options}
    return seeded(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes)))


@cache
def glm(**options: Any) -> Any:
    sizes = {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, **options}
    return seeded(transformers.GlmForCausalLM(transformers.GlmConfig(**sizes)))


@cache
def glm4(**options: Any) -> Any:
    sizes = {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, **options}
    return seeded(transformers.Glm4ForCausalLM(transformers.Glm4Config(**sizes)))


@cache
def bloom(heads: int = 8) -> Any:
    config = transformers.BloomConfig(hidden_size=8 * heads, n_layer=2, n_head=heads, vocab_size=128)
    return seeded(transformers.BloomForCausalLM(config))


MIXTRAL_SEED = 39
"""Of the first 60 seeds the one whose experts are chosen by the widest margin, see `test_mixture`."""


@cache
def mixtral(**options: Any) -> Any:
    sizes = {**SIZES, "num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2, **options}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))
    model.config._experts_implementation = "eager"  # the grouped kernel has no float64
    return seeded(model, MIXTRAL_SEED)


GOLDEN: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "llama-gqa": lambda: llama(num_key_value_heads=2, head_dim=16),
    "llama-biases": lambda: llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "qwen2": qwen2,
    "mixtral": mixtral,
    "bloom": bloom,
    "bloom-six-heads": lambda: bloom(6),
    "glm": glm,
    "glm4": glm4,
}


@cache
def reference(name: str) -> tuple[list[list[int]], list[torch.Tensor]]:
    """The ids fed at every step and the last logits, computed in float64 without a cache."""
    model = GOLDEN[name]().double()
    fed, logits = [list(PROMPT)], []
    with torch.no_grad():
        for _ in range(STEPS):
            ids = [token for step in fed for token in step]
            made = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            logits.append(made)
            fed.append([int(made.argmax())])
    model.float()
    return fed[:STEPS], logits


def check(mine: LanguageModel, fed: Sequence[Sequence[int]], golden: Sequence[torch.Tensor]) -> None:
    """Every step within the bound of the dtype of mine, and the same next id where the margin is above it."""
    allowed = bound(mine.spec.dtype, mine.spec.layers)
    for step, (ids, wanted) in enumerate(zip(fed, golden)):
        got = mine.step(ids).double()
        error = float((got - wanted).norm() / wanted.norm())
        assert error <= allowed, f"step {step}: {error:.2e}, allowed {allowed:.2e}"
        best, second = wanted.topk(2).values.tolist()
        if best - second > 2 * allowed * float(wanted.norm()):
            assert int(got.argmax()) == int(wanted.argmax())
