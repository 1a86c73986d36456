"""A small decoder and factories of it for `--acc-model`: good ones, and some that make no model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Norm(nn.Module):
    """RMS norm, in float32 inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """It takes a flag, a pair of tensors and a mask by name, and gives a tuple with a hole."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = float((width // heads) ** -0.5)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(
        self,
        hidden: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        rotation: tuple[torch.Tensor, torch.Tensor],
        causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        q, k, v = (self._heads(project(hidden)) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (x * rotation[0] + _turned(x) * rotation[1] for x in (q, k))
        scores = q @ k.transpose(2, 3) * self.scale
        if causal:
            assert mask is not None
            scores = scores + mask
        weights = scores.float().softmax(-1).to(q.dtype)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(hidden.shape)), weights, None

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)


def _turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


class Mlp(nn.Module):
    """Two projections with an activation between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.act = nn.SiLU()
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down_proj(self.act(self.up_proj(x)))


class Layer(nn.Module):
    """A layer with two residuals."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = Norm(width), Attention(width, heads)
        self.norm2, self.mlp = Norm(width), Mlp(width)

    def forward(
        self, hidden: torch.Tensor, mask: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        hidden = hidden + self.attn(self.norm1(hidden), mask=mask, rotation=rotation, causal=True)[0]
        result: torch.Tensor = hidden + self.mlp(self.norm2(hidden))
        return result


class Decoder(nn.Module):
    """The model; its mask and rotation are made by its own code."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2, words: int = 97) -> None:
        super().__init__()
        self.size = width // heads
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = Norm(width)
        self.lm_head = nn.Linear(width, words, bias=False)

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.embed(input_ids)
        length, dtype = input_ids.shape[1], hidden.dtype
        mask = torch.full((length, length), torch.finfo(dtype).min, dtype=dtype).triu(1)
        steps = 0.5 ** torch.arange(self.size // 2).float()
        angles = torch.outer(torch.arange(length).float(), steps).repeat(1, 2)
        for layer in self.layers:
            hidden = layer(hidden, mask, (angles.cos().to(dtype), angles.sin().to(dtype)))
        return {"logits": self.lm_head(self.norm(hidden))}


def make_model() -> Decoder:
    """Weights that bfloat16 holds exactly."""
    torch.manual_seed(0)
    model = Decoder()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return model


def make_massive() -> Decoder:
    """Token 0 is embedded with two channels of a thousand."""
    model = make_model()
    model.embed.weight.data[0, :2] = 1000.0
    return model


def make_smaller() -> Decoder:
    """The same without its last layer."""
    model = make_model()
    del model.layers[1]
    return model


def make_llama() -> Any:
    """One of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data = (3 * parameter.data).bfloat16().float()
    model.train(False)
    return model


not_callable = 3


def make_nothing() -> int:
    """No model."""
    return 5


def make_trouble() -> Decoder:
    """No model either."""
    raise OSError("the checkpoint is not there")


def make_sized(width: int) -> Decoder:
    """A factory that nobody can call."""
    return Decoder(width)


def make_other() -> nn.Module:
    """A model that has no module of the dumps."""
    return nn.Sequential(nn.Linear(2, 2))
