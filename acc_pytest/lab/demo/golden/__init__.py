"""The golden models of the demo: modules named as the published ones are, with random weights."""

from __future__ import annotations

import torch

from ...atb import ModelSpec
from .models import BloomForCausalLM, ChatGLMForConditionalGeneration, GoldenModel, fill, llama, moe

MODULES = {
    "llama": llama,
    "llama-separate": llama,
    "llama-int8": llama,
    "moe": moe,
    "bloom": BloomForCausalLM,
    "chatglm": ChatGLMForConditionalGeneration,
}
"""The class or function that makes the golden module of a family."""


def seeded(spec: ModelSpec, seed: int) -> GoldenModel:
    """The golden module with weights from the seed, each a value that the dtype of mine holds exactly."""
    with torch.random.fork_rng(devices=[]):
        module = MODULES[spec.family](spec).eval()
    fill(module, spec.torch_dtype, seed)
    return module


__all__ = ["GoldenModel", "seeded"]
