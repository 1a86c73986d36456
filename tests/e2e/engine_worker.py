"""A decoder as the worker of a serving engine runs it, with the weights of a Llama of Hugging Face.

Packed projections, norms that add the residual in place, flat tokens, a cache that grows with each forward
pass, logits of the last token; `forward` is called directly, past the hooks of torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.newer import rope_base


class FusedNorm(nn.Module):
    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.eps = eps

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if residual is None:
            return self._normed(x)
        residual.add_(x)
        return x.copy_(self._normed(residual)), residual

    def _normed(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype) * self.weight


class SiluAndMul(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


class Rotary(nn.Module):
    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        self.size = size
        self.frequencies = theta ** (-torch.arange(0, size, 2).float() / size)

    def forward(self, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None].float() * self.frequencies
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]

        def turned(x: Tensor) -> Tensor:
            first, second = x.view(len(x), -1, self.size).float().chunk(2, -1)
            whole = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
            return whole.flatten(1).to(x.dtype)

        return turned(q), turned(k)


class CachedAttention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.cache: list[tuple[Tensor, Tensor]] = []

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.cache.append((k.clone(), v.clone()))
        keys, values = (torch.cat(each) for each in zip(*self.cache))
        query, key, value = (
            each.view(len(each), -1, self.size).transpose(0, 1).float() for each in (q, keys, values)
        )
        groups = len(query) // len(key)
        key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
        seen = torch.ones(len(keys), len(keys)).tril().bool()[-len(q) :]
        core = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return core.transpose(0, 1).flatten(1).to(q.dtype)


def linear(*weights: Tensor) -> nn.Linear:
    """One product for several, side by side."""
    packed = torch.cat(weights)
    made = nn.Linear(packed.shape[1], packed.shape[0], bias=False)
    made.weight = nn.Parameter(packed)
    return made


class Attention(nn.Module):
    def __init__(self, theirs: Any, size: int, theta: float) -> None:
        super().__init__()
        self.qkv_proj = linear(*(each.weight for each in (theirs.q_proj, theirs.k_proj, theirs.v_proj)))
        self.rotary_emb = Rotary(size, theta)
        self.attn = CachedAttention(size)
        self.o_proj = linear(theirs.o_proj.weight)
        self.widths = [len(each.weight) for each in (theirs.q_proj, theirs.k_proj, theirs.v_proj)]

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        q, k, v = self.qkv_proj(hidden_states).split(self.widths, -1)
        q, k = self.rotary_emb(positions, q, k)
        output: Tensor = self.o_proj(self.attn(q, k, v))
        return output


class Mlp(nn.Module):
    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.gate_up_proj = linear(theirs.gate_proj.weight, theirs.up_proj.weight)
        self.act_fn = SiluAndMul()
        self.down_proj = linear(theirs.down_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(self.act_fn(self.gate_up_proj(x)))
        return output


class Layer(nn.Module):
    def __init__(self, theirs: Any, size: int, theta: float, eps: float) -> None:
        super().__init__()
        self.input_layernorm = FusedNorm(theirs.input_layernorm.weight.detach().clone(), eps)
        self.self_attn = Attention(theirs.self_attn, size, theta)
        self.post_attention_layernorm = FusedNorm(
            theirs.post_attention_layernorm.weight.detach().clone(), eps
        )
        self.mlp = Mlp(theirs.mlp)

    def forward(
        self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class Decoder(nn.Module):
    def __init__(self, theirs: Any, config: Any) -> None:
        super().__init__()
        size, theta = config.head_dim, rope_base(config)
        self.embed_tokens = nn.Embedding.from_pretrained(theirs.embed_tokens.weight.detach().clone())
        self.layers = nn.ModuleList(Layer(layer, size, theta, config.rms_norm_eps) for layer in theirs.layers)
        self.norm = FusedNorm(theirs.norm.weight.detach().clone(), config.rms_norm_eps)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        normed: Tensor = self.norm(hidden_states, residual)[0]
        return normed


class LogitsProcessor(nn.Module):
    def forward(self, weight: Tensor, hidden_states: Tensor) -> Tensor:
        return (hidden_states[-1:] @ weight.T).float()


class Worker(nn.Module):
    """One sequence: `forward` takes the tokens of this pass and their positions."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.model = Decoder(theirs.model, theirs.config)
        self.lm_head = linear(theirs.lm_head.weight)
        self.logits_processor = LogitsProcessor()

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        logits: Tensor = self.logits_processor(self.lm_head.weight, self.model(input_ids, positions))
        return logits
