"""Golden Bloom with the module names, argument passing and tuples of the Hugging Face model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...atb_cpu import ModelSpec
from .parts import EPSILON, GoldenModel, KeyValue, causal_bias, heads_attention


def slopes(heads: int) -> torch.Tensor:
    """Slope of the linear position bias of every head, `[heads]`: 2^(-8/heads), its square, ..."""
    return 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1).float())


class BloomGelu(nn.Module):
    """The tanh approximation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")


class BloomAttention(nn.Module):
    """Self attention with linear position bias; adds the residual itself."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.query_key_value = nn.Linear(spec.hidden, 3 * spec.hidden)
        self.dense = nn.Linear(spec.hidden, spec.hidden)
        self.attention_dropout = nn.Dropout(0.0)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, *, past: KeyValue | None
    ) -> tuple[torch.Tensor, KeyValue]:
        packed = self.query_key_value(x).unflatten(-1, (self.heads, 3, -1))
        q, k, v = (tensor.transpose(1, 2) for tensor in packed.unbind(-2))
        if past:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        new, total = q.shape[2], k.shape[2]
        alibi = slopes(self.heads)[:, None, None] * torch.arange(total).float()
        _, probabilities = heads_attention(q, k, v, alibi + causal_bias(new, total))
        context = (self.attention_dropout(probabilities) @ v).transpose(1, 2).flatten(2)
        return self.dense(context) + residual, (k, v)


class BloomMLP(nn.Module):
    """Feed-forward; adds the residual itself."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(spec.hidden, spec.intermediate)
        self.gelu_impl = BloomGelu()
        self.dense_4h_to_h = nn.Linear(spec.intermediate, spec.hidden)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.dense_4h_to_h(self.gelu_impl(self.dense_h_to_4h(x))) + residual
        return out


class BloomBlock(nn.Module):
    """One layer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(spec.hidden, EPSILON)
        self.self_attention = BloomAttention(spec)
        self.post_attention_layernorm = nn.LayerNorm(spec.hidden, EPSILON)
        self.mlp = BloomMLP(spec)

    def forward(self, x: torch.Tensor, *, past: KeyValue | None) -> tuple[torch.Tensor, KeyValue]:
        attended, present = self.self_attention(self.input_layernorm(x), x, past=past)
        return self.mlp(self.post_attention_layernorm(attended), attended), present


class BloomModel(nn.Module):
    """Embedding and its norm, layers, last norm."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(spec.vocab, spec.hidden)
        self.word_embeddings_layernorm = nn.LayerNorm(spec.hidden, EPSILON)
        self.h = nn.ModuleList(BloomBlock(spec) for _ in range(spec.layers))
        self.ln_f = nn.LayerNorm(spec.hidden, EPSILON)

    def forward(self, *, ids: torch.Tensor, cache: list[Any] | None) -> dict[str, Any]:
        x, presents = self.word_embeddings_layernorm(self.word_embeddings(ids)), []
        for index, block in enumerate(self.h):
            x, present = block(x, past=cache[index] if cache else None)
            presents.append(present)
        return {"hidden": self.ln_f(x), "cache": presents}


class BloomForCausalLM(GoldenModel):
    """The model with its output projection over all positions."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.transformer = BloomModel(spec)
        self.lm_head = nn.Linear(spec.hidden, spec.vocab, bias=False)

    def forward(self, *, ids: torch.Tensor, cache: list[Any] | None) -> dict[str, Any]:
        outputs = self.transformer(ids=ids, cache=cache)
        return {"logits": self.lm_head(outputs["hidden"]), "cache": outputs["cache"]}

    def step(self, ids: torch.Tensor, cache: list[Any] | None) -> tuple[torch.Tensor, list[Any]]:
        outputs = self(ids=ids, cache=cache)
        return outputs["logits"], outputs["cache"]
