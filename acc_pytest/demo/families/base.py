"""What a family of demo models must provide."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

from ..graph import Cell
from ..spec import DemoSpec
from ..topology import AtbModel

Phase = Literal["prefill", "decode", "both"]
Weights = Mapping[str, torch.Tensor]
"""Parameters of the golden module by name, in mine's dtype."""
EPSILON = 1e-5


class Golden(nn.Module, ABC):
    """A golden model: embeds, runs its layers, projects; keeps the cache between calls."""

    @abstractmethod
    def step(self, ids: torch.Tensor, cache: list[Any] | None) -> tuple[torch.Tensor, list[Any]]:
        """One step of `ids` `[1, n]` after `cache`: logits `[1, n, vocab]` (or the last row), new cache."""


class Family(ABC):
    """Golden module and ATB graphs of one kind of model."""

    @abstractmethod
    def golden(self, spec: DemoSpec) -> Golden:
        """The golden module; its parameters are overwritten afterwards."""

    @abstractmethod
    def model(self, spec: DemoSpec, weights: Weights, rank: int, phase: Phase) -> AtbModel:
        """The ATB model of one phase on one rank."""

    @abstractmethod
    def state(self, spec: DemoSpec, dtype: torch.dtype) -> dict[str, Cell]:
        """What a rank keeps between steps: the key/value caches, zero at first."""

    @abstractmethod
    def inputs(
        self, spec: DemoSpec, ids: list[int], past: int, phase: Phase, dtype: torch.dtype
    ) -> dict[str, torch.Tensor]:
        """The model inputs of one step: `ids` come after `past` tokens."""


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * self.weight
        return scaled


def heads_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as transformers writes it: `[1, heads, n, size]` -> context and probabilities."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    probabilities = scores.softmax(-1)
    return probabilities @ v, probabilities


def causal_bias(new: int, total: int) -> torch.Tensor:
    """`[new, total]`: -inf where a new token would see a later one."""
    return torch.full((new, total), float("-inf")).triu(total - new + 1)
