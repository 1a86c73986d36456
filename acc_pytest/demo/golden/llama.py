"""Golden Llama with the module names, argument passing and tuples of the Hugging Face model of 2023."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...atb_cpu import ModelSpec
from .parts import GoldenModel, KeyValue, RMSNorm, causal_bias, heads_attention, rotate, tables


class LlamaRMSNorm(RMSNorm):
    """Named as in the model."""


class LlamaRotaryEmbedding(nn.Module):
    """cos and sin `[1, 1, total, size]` for a cache of `total` tokens; `x` is there as in the model."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.tables = tables(spec.positions, spec.head_size)

    def forward(self, x: torch.Tensor, total: int) -> KeyValue:
        cos, sin = (table[:total][None, None] for table in self.tables)
        return cos, sin


class LlamaAttention(nn.Module):
    """Self attention, called with keywords only (so that a dump holds no input of it)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.size, kv = spec.head_size, spec.kv_heads * spec.head_size
        self.q_proj = nn.Linear(spec.hidden, spec.hidden, bias=spec.qkv_bias)
        self.k_proj = nn.Linear(spec.hidden, kv, bias=spec.qkv_bias)
        self.v_proj = nn.Linear(spec.hidden, kv, bias=spec.qkv_bias)
        self.o_proj = nn.Linear(spec.hidden, spec.hidden, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(spec)

    def forward(
        self, *, hidden_states: torch.Tensor, past: KeyValue | None
    ) -> tuple[torch.Tensor, None, KeyValue]:
        new = hidden_states.shape[1]
        q, k, v = (
            projection(hidden_states).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        total = new + (past[0].shape[2] if past else 0)
        cos, sin = (table[:, :, total - new :] for table in self.rotary_emb(v, total))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        context, _ = heads_attention(q, k, v, causal_bias(new, total))
        return self.o_proj(context.transpose(1, 2).flatten(2)), None, (k, v)


class LlamaMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden, spec.intermediate, bias=False)
        self.up_proj = nn.Linear(spec.hidden, spec.intermediate, bias=False)
        self.down_proj = nn.Linear(spec.intermediate, spec.hidden, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return down


class LlamaDecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm and around a residual."""

    def __init__(self, spec: ModelSpec, mlp: nn.Module) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(spec)
        self.mlp = mlp
        self.input_layernorm = LlamaRMSNorm(spec.hidden)
        self.post_attention_layernorm = LlamaRMSNorm(spec.hidden)

    def forward(self, x: torch.Tensor, *, past: KeyValue | None) -> tuple[torch.Tensor, KeyValue]:
        attention, _, present = self.self_attn(hidden_states=self.input_layernorm(x), past=past)
        x = x + attention
        return x + self.mlp(self.post_attention_layernorm(x)), present


class LlamaModel(nn.Module):
    """Embedding, layers, last norm."""

    def __init__(self, spec: ModelSpec, layers: list[nn.Module]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(spec.vocab, spec.hidden)
        self.layers = nn.ModuleList(layers)
        self.norm = LlamaRMSNorm(spec.hidden)

    def forward(self, *, ids: torch.Tensor, cache: list[Any] | None) -> dict[str, Any]:
        x, presents = self.embed_tokens(ids), []
        for index, layer in enumerate(self.layers):
            x, present = layer(x, past=cache[index] if cache else None)
            presents.append(present)
        return {"hidden": self.norm(x), "cache": presents}


class LlamaForCausalLM(GoldenModel):
    """The model with its output projection over all positions."""

    def __init__(self, spec: ModelSpec, layers: list[nn.Module]) -> None:
        super().__init__()
        self.model = LlamaModel(spec, layers)
        self.lm_head = nn.Linear(spec.hidden, spec.vocab, bias=False)

    def forward(self, *, ids: torch.Tensor, cache: list[Any] | None) -> dict[str, Any]:
        outputs = self.model(ids=ids, cache=cache)
        return {"logits": self.lm_head(outputs["hidden"]), "cache": outputs["cache"]}

    def step(self, ids: torch.Tensor, cache: list[Any] | None) -> tuple[torch.Tensor, list[Any]]:
        outputs = self(ids=ids, cache=cache)
        return outputs["logits"], outputs["cache"]


def llama(spec: ModelSpec) -> LlamaForCausalLM:
    """A plain Llama."""
    return LlamaForCausalLM(spec, [LlamaDecoderLayer(spec, LlamaMLP(spec)) for _ in range(spec.layers)])
