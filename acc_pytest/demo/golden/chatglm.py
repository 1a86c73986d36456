"""Golden ChatGLM2 with the module names and tuples of the published model; tensors are `[n, 1, hidden]`.

One liberty: the rotation covers the whole head by halves, so that the demo needs one rope only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...atb_cpu import ModelSpec
from .parts import GoldenModel, KeyValue, RMSNorm, causal_bias, heads_attention, rotate, tables


class RotaryEmbedding(nn.Module):
    """cos and sin side by side, `[total, size, 2]`."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.table = torch.stack(tables(spec.positions, spec.head_size), -1)

    def forward(self, total: int) -> torch.Tensor:
        rows: torch.Tensor = self.table[:total]
        return rows


class CoreAttention(nn.Module):
    """Attention of `[n, 1, heads, size]` over `[m, 1, kv_heads, size]` -> `[n, 1, heads * size]`."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_dropout = nn.Dropout(0.0)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        _, probabilities = heads_attention(q, k, v, mask)
        context = self.attention_dropout(probabilities) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        rows: torch.Tensor = context.permute(2, 0, 1, 3).flatten(2)
        return rows


class SelfAttention(nn.Module):
    """Packed projection, rotation, cache, core attention, output projection."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.size, kv = spec.head_size, spec.kv_heads * spec.head_size
        self.widths = (spec.hidden, kv, kv)
        self.query_key_value = nn.Linear(spec.hidden, sum(self.widths))
        self.core_attention = CoreAttention()
        self.dense = nn.Linear(spec.hidden, spec.hidden, bias=False)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, rotary: torch.Tensor, *, past: KeyValue | None
    ) -> tuple[torch.Tensor, KeyValue]:
        packed = self.query_key_value(x).split(self.widths, -1)
        q, k, v = (tensor.unflatten(-1, (-1, self.size)) for tensor in packed)
        cos, sin = (table[-x.shape[0] :, None, None] for table in rotary.unbind(-1))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past:
            k, v = torch.cat((past[0], k)), torch.cat((past[1], v))
        return self.dense(self.core_attention(q, k, v, mask)), (k, v)


class MLP(nn.Module):
    """Gate and up packed, swish of the first half times the second."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(spec.hidden, 2 * spec.intermediate, bias=False)
        self.dense_4h_to_h = nn.Linear(spec.intermediate, spec.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.dense_h_to_4h(x).chunk(2, -1)
        down: torch.Tensor = self.dense_4h_to_h(F.silu(gate) * up)
        return down


class GLMBlock(nn.Module):
    """One layer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden)
        self.self_attention = SelfAttention(spec)
        self.post_attention_layernorm = RMSNorm(spec.hidden)
        self.mlp = MLP(spec)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, rotary: torch.Tensor, *, past: KeyValue | None
    ) -> tuple[torch.Tensor, KeyValue]:
        attended, present = self.self_attention(self.input_layernorm(x), mask, rotary, past=past)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), present


class GLMTransformer(nn.Module):
    """Layers and last norm."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GLMBlock(spec) for _ in range(spec.layers))
        self.final_layernorm = RMSNorm(spec.hidden)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, *, rotary: torch.Tensor, cache: list[Any] | None
    ) -> tuple[torch.Tensor, list[Any]]:
        presents = []
        for index, layer in enumerate(self.layers):
            x, present = layer(x, mask, rotary, past=cache[index] if cache else None)
            presents.append(present)
        return self.final_layernorm(x), presents


class Embedding(nn.Module):
    """`[1, n]` ids -> `[n, 1, hidden]`."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(spec.vocab, spec.hidden)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.word_embeddings(ids).transpose(0, 1).contiguous()
        return embedded


class ChatGLMModel(nn.Module):
    """Embedding, encoder, output layer; the children are listed as the published model registers them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embedding = Embedding(spec)
        self.rotary_pos_emb = RotaryEmbedding(spec)
        self.encoder = GLMTransformer(spec)
        self.output_layer = nn.Linear(spec.hidden, spec.vocab, bias=False)

    def forward(self, *, ids: torch.Tensor, cache: list[Any] | None) -> dict[str, Any]:
        new = ids.shape[1]
        total = new + (cache[0][0].shape[0] if cache else 0)
        mask, rotary = causal_bias(new, total), self.rotary_pos_emb(total)
        hidden, presents = self.encoder(self.embedding(ids), mask, rotary=rotary, cache=cache)
        return {"hidden": hidden, "cache": presents}


class ChatGLMForConditionalGeneration(GoldenModel):
    """The model; only the last position is projected, as in the published code."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.transformer = ChatGLMModel(spec)

    def forward(self, *, ids: torch.Tensor, cache: list[Any] | None) -> dict[str, Any]:
        outputs = self.transformer(ids=ids, cache=cache)
        logits = self.transformer.output_layer(outputs["hidden"][-1:]).transpose(0, 1)
        return {"logits": logits, "cache": outputs["cache"]}

    def step(self, ids: torch.Tensor, cache: list[Any] | None) -> tuple[torch.Tensor, list[Any]]:
        outputs = self(ids=ids, cache=cache)
        return outputs["logits"], outputs["cache"]
