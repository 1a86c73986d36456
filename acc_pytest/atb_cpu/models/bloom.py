"""ATB graph of Bloom as the flash-attention model of 2024 builds it."""

from __future__ import annotations

import torch

from ..graph import Call, Operation, graph
from ..topology import AtbModel
from .attention_leaves import causal_mask, flash_attention
from .family import Weights
from .flash import FlashFamily, heads_merged, parallel_linear, projection
from .leaves import ADD, MULS, activation, elewise, gather, layer_norm, linear, split, take
from .mindie import shard
from .spec import ModelSpec, Phase

BLOOM_WEIGHTS = (
    "input_layernorm.weight",
    "input_layernorm.bias",
    "self_attention.query_key_value.weight",
    "self_attention.query_key_value.bias",
    "-",
    "self_attention.dense.weight",
    "self_attention.dense.bias",
    "-",
    "post_attention_layernorm.weight",
    "post_attention_layernorm.bias",
    "mlp.dense_h_to_4h.weight",
    "mlp.dense_h_to_4h.bias",
    "-",
    "mlp.dense_4h_to_h.weight",
    "mlp.dense_4h_to_h.bias",
    "-",
)
"""A layer's weights; a dash is a placeholder."""
ROWS = ("query_key_value.weight", "query_key_value.bias", "dense_h_to_4h.weight", "dense_h_to_4h.bias")
COLUMNS = ("self_attention.dense.weight", "mlp.dense_4h_to_h.weight")
"""Weights that are split over ranks along their columns. Heads are apart in the rows of query_key_value."""
BLOOM_RUNTIME = ("hidden", "mask", "k_cache", "v_cache", "offset", "length", "spare", "layer")
BLOOM_NAME = "Bloom7BFlashAttentionModel"


def slopes(heads: int) -> torch.Tensor:
    """Slope of the linear position bias of every head, `[heads]`.

    For a power of two 2^(-8/heads), its square, ...; other numbers take the slopes of the power of two
    below, then every other one of the power above (Press et al. 2021, as the published models do).
    """
    power = 1 << heads.bit_length() - 1
    first = 2.0 ** (-8.0 / power * torch.arange(1, power + 1).float())
    between = 2.0 ** (-4.0 / power * (2 * torch.arange(heads - power) + 1).float())
    return torch.cat((first, between))


def _bloom_mlp(spec: ModelSpec, rank: int) -> Operation:
    spare = tuple(f"p{i}" for i in range(14))
    names = ("x", "w1", "p0", "w2", "p1", "p2", "p3", "b1", "p4", "b2", *spare[5:])
    down = parallel_linear(bias=True, summed=(rank, spec.ranks))
    return graph(
        "MlpGateLayerV2",
        names,
        ("out",),
        Call(parallel_linear(bias=True), ("x", "w1", "b1", *spare[:4]), ("up",)),
        Call(activation("gelu"), ("up",), ("act",)),
        Call(down, ("act", "w2", "b2", *spare[:4]), ("out",)),
    )


def _bloom_layer(spec: ModelSpec, rank: int) -> Operation:
    heads, size = spec.own_heads, spec.head_size
    add, keep = elewise(ADD, old=True), elewise(MULS, old=True, scale=1.0)
    spare = ("spare",) * 4
    mlp = ("normed", "w10", "spare", "w13", *("spare",) * 3, "w11", "spare", "w14", *("spare",) * 9)
    apart = {0: lambda shape: (*shape[:2], heads, 3, size)}
    by_head = {i: (lambda shape: (*shape[:3], size)) for i in range(3)}
    core = flash_attention(heads, spec.own_kv_heads, size, alibi=True)
    dense = parallel_linear(bias=True, summed=(rank, spec.ranks))
    return graph(
        "Bloom7bCommonLayer",
        (*(f"w{i}" for i in range(len(BLOOM_WEIGHTS))), *BLOOM_RUNTIME),
        ("out", "k_out", "v_out"),
        Call(layer_norm(spec.epsilon), ("hidden", "w0", "w1"), ("first",)),
        Call(linear(bias=True, old=True), ("first", "w2", "w3"), ("qkv",)),
        Call(split((1, 1, 1), dim=3, old=True), ("qkv",), ("q", "k", "v"), apart),
        Call(
            core,
            ("q", "k", "v", "k_cache", "v_cache", "mask", "offset", "length", "layer"),
            ("context",),
            by_head,
            {0: heads_merged},
        ),
        Call(dense, ("context", "w5", "w6", *spare), ("dense",)),
        Call(add, ("dense", "hidden"), ("attended",)),
        Call(layer_norm(spec.epsilon), ("attended", "w8", "w9"), ("normed",)),
        Call(_bloom_mlp(spec, rank), mlp, ("fed",)),
        Call(add, ("fed", "attended"), ("out",)),
        Call(keep, ("out",), ("k_out",)),
        Call(keep, ("out",), ("v_out",)),
    )


def _bloom_shard(spec: ModelSpec, name: str, weight: torch.Tensor, rank: int) -> torch.Tensor:
    """The shard of a layer's weight that one rank holds."""
    if name.endswith(ROWS):
        return shard(weight, 0, rank, spec.ranks)
    return shard(weight, 1, rank, spec.ranks) if name in COLUMNS else weight


class Bloom(FlashFamily):
    """Bloom: layer norms, biases, linear position bias, q, k, v interleaved by head."""

    output = "output_1"

    def bias(self, spec: ModelSpec, rank: int) -> torch.Tensor:
        size = spec.positions
        rank_slopes = slopes(spec.heads)[rank * spec.own_heads :][: spec.own_heads]
        return rank_slopes[:, None, None] * torch.arange(size).float() + causal_mask(size)

    def model(self, spec: ModelSpec, weights: Weights, rank: int, phase: Phase) -> AtbModel:
        placeholder = torch.zeros(1, dtype=spec.torch_dtype)
        norm = "transformer.word_embeddings_layernorm."
        table = [
            weights["transformer.word_embeddings.weight"],
            weights[norm + "weight"],
            weights[norm + "bias"],
        ]
        calls = [
            Call(gather(), ("weight_0", "input_0"), ("internal_0",)),
            Call(layer_norm(spec.epsilon), ("internal_0", "weight_1", "weight_2"), ("internal_1",)),
        ]
        hidden, layer = "internal_1", _bloom_layer(spec, rank)
        for index in range(spec.layers):
            slots = tuple(f"weight_{len(table) + i}" for i in range(len(BLOOM_WEIGHTS)))
            base = f"transformer.h.{index}."
            table += [
                placeholder if name == "-" else _bloom_shard(spec, name, weights[base + name], rank)
                for name in BLOOM_WEIGHTS
            ]
            result = "output_0" if index == spec.layers - 1 else f"internal_{index + 2}"
            feed = (*(f"input_{i}" for i in range(1, 7)), f"input_{7 + index}")
            calls.append(Call(layer, (*slots, hidden, *feed), (result, "output_2", "output_3")))
            hidden = result
        end, last = len(table), spec.layers + 1
        table += [
            weights["transformer.ln_f.weight"],
            weights["transformer.ln_f.bias"],
            shard(weights["lm_head.weight"], 0, rank, spec.ranks),
        ]
        normed, row, picked = (f"internal_{last + i}" for i in range(3))
        calls += [
            Call(layer_norm(spec.epsilon), (hidden, f"weight_{end}", f"weight_{end + 1}"), (normed,)),
            Call(take((0, -1, 0), (-1, 1, -1)), (normed,), (row,)),
            Call(take((0, 0, 0), (-1, -1, spec.hidden)), (row,), (picked,)),
            Call(projection(spec, rank), (picked, f"weight_{end + 2}"), ("output_1",)),
        ]
        layers = tuple(range(2, 2 + spec.layers))
        name = BLOOM_NAME + {"prefill": "Encoder", "decode": "Decoder", "both": ""}[phase]
        return AtbModel(name, tuple(calls), tuple(table), layers, inputs=7 + spec.layers)
