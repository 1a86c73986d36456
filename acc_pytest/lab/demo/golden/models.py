"""Golden Llama with the module names, argument passing and tuples of the Hugging Face model of 2023."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...atb import ModelSpec

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


# Random weights that a low-precision dtype holds exactly and that keep the size of what passes.


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


# Golden mixture-of-experts model: Llama attention, a dense first layer, experts in all others.
#
# Every expert sees every token and the router's softmax weighs them all: no hard choice of the best
# experts, which rounding could turn into another choice and so into another model.


class SparseMoeBlock(nn.Module):
    """Sum over experts of the router's weight times the expert's output."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.hidden, spec.experts, bias=False)
        self.experts = nn.ModuleList(LlamaMLP(spec) for _ in range(spec.experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        products = [expert(x) * shares[..., index : index + 1] for index, expert in enumerate(self.experts)]
        return torch.stack(products).sum(0)


def moe(spec: ModelSpec) -> LlamaForCausalLM:
    """The model: layer 0 dense, the rest mixtures."""
    blocks: list[nn.Module] = [LlamaMLP(spec) if i == 0 else SparseMoeBlock(spec) for i in range(spec.layers)]
    return LlamaForCausalLM(spec, [LlamaDecoderLayer(spec, block) for block in blocks])


# Golden Bloom with the module names, argument passing and tuples of the Hugging Face model.


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


# Golden ChatGLM2 with the module names and tuples of the published model; tensors are `[n, 1, hidden]`.
#
# One liberty: the rotation covers the whole head by halves, so that the demo needs one rope only.


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
