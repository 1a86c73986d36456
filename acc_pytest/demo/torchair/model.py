"""The torch model of the TorchAir demo, and the graphs that `torch.compile` takes from it.

A block of a feed-forward network with everything that makes comparing hard: products that one FX node is and
several GE operators are, an operator with several results of which one is no number, a list of tensors as
argument, a view, and a cast that the Graph Engine takes out.
"""

from __future__ import annotations

import torch
from torch import nn

HIDDEN = 16
INNER = 36
HEADS = 2
BEST = 2


class Model(nn.Module):
    """`[tokens, HIDDEN]` to weights per head, and the largest values of each head with their places."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, INNER)
        self.down = nn.Linear(INNER, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.gate = nn.Parameter(torch.empty(HIDDEN))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.norm(self.down(nn.functional.gelu(self.up(x))) + x)
        first, second = hidden.split(HIDDEN // 2, dim=-1)
        heads = (torch.cat([second, first], dim=-1) * self.gate).view(x.shape[0], HEADS, -1)
        values, places = heads.topk(BEST, dim=-1)
        return heads.softmax(dim=-1), values, places


def seeded(seed: int) -> Model:
    """The model with weights that depend on the seed alone, exact in float16 (both sides start equal)."""
    model = Model().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.25
            offset = 1.0 if name in ("norm.weight", "gate") else 0.0
            parameter.copy_((offset + values * scale).half())
    return model


def prompt(tokens: int, seed: int) -> torch.Tensor:
    """An input, exact in float16."""
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed)).half().float()
