"""A port of a llama of transformers by another hand: golden's weights, and names of its own as far as asked.

Queries, keys and values come from one linear, gate and activation too; the rotation is computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Names = Callable[[], bool]
"""Whether the next module has a name of its own."""


def _linear(*golden: Any) -> nn.Linear:
    """One linear that computes what these compute, behind each other."""
    weight = torch.cat([linear.weight.detach().float() for linear in golden])
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight)
    return linear


class Norm(nn.Module):
    """The root mean square norm, rounded once."""

    def __init__(self, golden: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(golden.weight.detach().float())
        self.variance_epsilon = golden.variance_epsilon

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * scale * self.weight.float()).to(hidden_states.dtype)


class Rotary(nn.Module):
    """Cosines and sines of the positions of a prompt, in float32."""

    def __init__(self, golden: Any) -> None:
        super().__init__()
        self.inv_freq = golden.inv_freq.detach().float()

    def forward(self, hidden_states: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = places[..., None] * self.inv_freq
        both = torch.cat([angles, angles], -1)
        return both.cos(), both.sin()


class Attention(nn.Module):
    """Attention with one linear for queries, keys and values where its names are its own."""

    def __init__(self, golden: Any, own: bool) -> None:
        super().__init__()
        config = golden.config
        self.head_dim, self.scaling, self.is_causal = golden.head_dim, golden.scaling, True
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        if own:
            self.wqkv = _linear(golden.q_proj, golden.k_proj, golden.v_proj)
            self.wo = _linear(golden.o_proj)
        else:
            self.q_proj, self.k_proj = _linear(golden.q_proj), _linear(golden.k_proj)
            self.v_proj, self.o_proj = _linear(golden.v_proj), _linear(golden.o_proj)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        fused = hasattr(self, "wqkv")
        linears = [self.wqkv] if fused else [self.q_proj, self.k_proj, self.v_proj]
        made = torch.cat([linear(hidden_states) for linear in linears], -1)
        parts = made.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        query, key, value = parts.split((self.heads, self.groups, self.groups), 1)
        query, key = (_rotated(each, *position_embeddings) for each in (query, key))
        key, value = (each.repeat_interleave(self.heads // self.groups, 1) for each in (key, value))
        context = nn.functional.scaled_dot_product_attention(
            query, key, value, attention_mask, is_causal=self.is_causal, scale=self.scaling
        )
        return (self.wo if fused else self.o_proj)(context.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _rotated(values: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = values.float().chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return (values.float() * cos[:, None] + turned * sin[:, None]).to(values.dtype)


class Mlp(nn.Module):
    """The gated mlp, with one linear for gate and activation where its names are its own."""

    def __init__(self, golden: Any, own: bool) -> None:
        super().__init__()
        if own:
            self.w13, self.w2 = _linear(golden.gate_proj, golden.up_proj), _linear(golden.down_proj)
        else:
            self.gate_proj, self.up_proj = _linear(golden.gate_proj), _linear(golden.up_proj)
            self.down_proj = _linear(golden.down_proj)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "w13"):
            gate, up = self.w13(hidden_states).chunk(2, -1)
            return self.w2(nn.functional.silu(gate) * up)  # type: ignore[no-any-return]
        gate, up = self.gate_proj(hidden_states), self.up_proj(hidden_states)
        return self.down_proj(nn.functional.silu(gate) * up)  # type: ignore[no-any-return]


class Block(nn.Module):
    """One layer; `parts` are its modules in the order in which they run, whatever they are called."""

    def __init__(self, golden: Any, own: Names) -> None:
        super().__init__()
        attention, mlp = own(), own()
        self.parts = (
            Norm(golden.input_layernorm),
            Attention(golden.self_attn, attention),
            Norm(golden.post_attention_layernorm),
            Mlp(golden.mlp, mlp),
        )
        names = (
            "ln_a" if attention else "input_layernorm",
            "att" if attention else "self_attn",
            "ln_b" if mlp else "post_attention_layernorm",
            "ffn" if mlp else "mlp",
        )
        for name, module in zip(names, self.parts):
            self.add_module(name, module)

    def forward(self, hidden_states: torch.Tensor, position_embeddings: Any) -> torch.Tensor:
        first, attention, second, mlp = self.parts
        residual = hidden_states
        hidden_states = attention(first(hidden_states), position_embeddings)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = mlp(second(hidden_states))
        return residual + hidden_states


class Body(nn.Module):
    """All but the head."""

    def __init__(self, golden: Any, own: Names, top: bool) -> None:
        super().__init__()
        embedding = nn.Embedding.from_pretrained(golden.embed_tokens.weight.detach().float())
        self.blocks = tuple(Block(layer, own) for layer in golden.layers)
        self.parts = embedding, Rotary(golden.rotary_emb), Norm(golden.norm)
        names = ("tok", "rope", "ln_f") if top else ("embed_tokens", "rotary_emb", "norm")
        for name, module in zip(names, self.parts):
            self.add_module(name, module)
        self.add_module("blk" if top else "layers", nn.ModuleList(self.blocks))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        embedding, rotary, norm = self.parts
        hidden_states = embedding(ids)
        position_embeddings = rotary(hidden_states, torch.arange(ids.shape[1])[None])
        for block in self.blocks:
            hidden_states = block(hidden_states, position_embeddings)
        return norm(hidden_states)  # type: ignore[no-any-return]


class Port(nn.Module):
    """The whole network; `top` says that embedding, final norm and head have names of their own too."""

    def __init__(self, golden: Any, own: Names, top: bool) -> None:
        super().__init__()
        self.parts = Body(golden.model, own, top), _linear(golden.lm_head)
        for name, module in zip(("net", "unembed") if top else ("model", "lm_head"), self.parts):
            self.add_module(name, module)

    def forward(self, input_ids: torch.Tensor, **_: object) -> dict[str, torch.Tensor]:
        body, head = self.parts
        return {"logits": head(body(input_ids))}
