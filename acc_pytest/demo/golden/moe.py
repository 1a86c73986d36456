"""Golden mixture-of-experts model: Llama attention, a dense first layer, experts in all others.

Every expert sees every token and the router's softmax weighs them all: no hard choice of the best
experts, which rounding could turn into another choice and so into another model.
"""

from __future__ import annotations

import torch
from torch import nn

from ...atb_cpu import ModelSpec
from .llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP


class SparseMoeBlock(nn.Module):
    """Sum over experts of the router's weight times the expert's output."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.hidden, spec.experts, bias=False)
        self.experts = nn.ModuleList(LlamaMLP(spec) for _ in range(spec.experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        products = [expert(x) * shares[..., index : index + 1] for index, expert in enumerate(self.experts)]
        return torch.stack(products).sum(0)


def moe(spec: ModelSpec) -> LlamaForCausalLM:
    """The model: layer 0 dense, the rest mixtures."""
    blocks: list[nn.Module] = [LlamaMLP(spec) if i == 0 else SparseMoeBlock(spec) for i in range(spec.layers)]
    return LlamaForCausalLM(spec, [LlamaDecoderLayer(spec, block) for block in blocks])
