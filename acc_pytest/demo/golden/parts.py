"""Modules that several golden models use. They are written apart from the operators that compute mine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

EPSILON = 1e-5
ROPE_BASE = 10000.0
KeyValue = tuple[torch.Tensor, torch.Tensor]


class GoldenModel(nn.Module, ABC):
    """A golden model: embeds, runs its layers, projects; keeps the cache between calls."""

    @abstractmethod
    def step(self, ids: torch.Tensor, cache: list[Any] | None) -> tuple[torch.Tensor, list[Any]]:
        """One step of `ids` `[1, n]` after `cache`: logits `[1, n, vocab]` (or the last row), new cache."""


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = EPSILON

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return scaled


def heads_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as transformers writes it: `[1, heads, n, size]` -> context and probabilities."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    probabilities = scores.softmax(-1)
    return probabilities @ v, probabilities


def causal_bias(new: int, total: int) -> torch.Tensor:
    """`[new, total]`: -inf where a new token would see a later one."""
    return torch.full((new, total), float("-inf")).triu(total - new + 1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of `[..., size]` by halves: x cos + (-x2, x1) sin, in the type of x."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def tables(positions: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of the rotary embedding, `[positions, size]`, both halves alike."""
    frequency = ROPE_BASE ** (-torch.arange(0, size, 2).float() / size)
    angle = torch.outer(torch.arange(positions).float(), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()
