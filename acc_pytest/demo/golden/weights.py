"""Random weights that a low-precision dtype holds exactly and that keep the size of what passes."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def fill(module: nn.Module, dtype: torch.dtype, seed: int, bias: float = 0.1) -> None:
    """Give every parameter of `module` values from the seed; golden computes with what mine will hold.

    Matrices have a gain of 1.3 per feature they sum over, biases a standard deviation of `bias`.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            value = noise * bias
        elif parameter.dim() == 1:
            value = 1 + noise * 0.2
        else:
            value = noise * (0.15 if "embed" in name else 1.3 / parameter.shape[-1] ** 0.5)
        parameter.copy_(value.to(dtype).float())
