"""The golden models of the demo: modules named as the published ones are, with random weights."""

from __future__ import annotations

import torch

from ...atb_cpu import ModelSpec
from .bloom import BloomForCausalLM
from .chatglm import ChatGLMForConditionalGeneration
from .llama import llama
from .moe import moe
from .parts import Golden

MODULES = {
    "llama": llama,
    "llama-separate": llama,
    "llama-int8": llama,
    "moe": moe,
    "bloom": BloomForCausalLM,
    "chatglm": ChatGLMForConditionalGeneration,
}
"""What makes the golden module of a family."""


def seeded(spec: ModelSpec, seed: int) -> Golden:
    """The golden module with weights from the seed, each a value that mine's dtype holds exactly."""
    with torch.random.fork_rng(devices=[]):
        module = MODULES[spec.family](spec).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            value = noise * 0.1
        elif parameter.dim() == 1:
            value = 1 + noise * 0.2
        else:
            value = noise * (0.15 if "embed" in name else 1.3 / parameter.shape[1] ** 0.5)
        parameter.copy_(value.to(spec.torch_dtype).float())
    return module


__all__ = ["Golden", "seeded"]
