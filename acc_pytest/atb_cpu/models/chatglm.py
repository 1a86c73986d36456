"""ATB graph of ChatGLM2 (and 3) as the flash-attention model of 2024 builds it."""

from __future__ import annotations

import torch

from ..graph import Call, Operation, View, graph
from ..topology import AtbModel
from .attention_leaves import flash_attention
from .family import Weights
from .flash import FlashFamily, heads_merged, parallel_linear, projection
from .leaves import ADD, MUL, activation, elewise, gather, linear, rms_norm, rope, split, tables, take
from .mindie import by_head, rotation, shard, shard_heads
from .spec import ModelSpec, Phase

CHATGLM_WEIGHTS = (
    "input_layernorm.weight",
    "self_attention.query_key_value.weight",
    "self_attention.query_key_value.bias",
    "self_attention.dense.weight",
    "post_attention_layernorm.weight",
    "mlp.dense_h_to_4h.weight",
    "mlp.dense_4h_to_h.weight",
)
CHATGLM_RUNTIME = ("hidden", "cos", "sin", "mask", "k_cache", "v_cache", "offset", "length", "spare", "layer")
CHATGLM_NAME = "ChatGlm2CommonModelFa"


def _chatglm_mlp(spec: ModelSpec, rank: int) -> Operation:
    down, spare = parallel_linear(bias=False, summed=(rank, spec.ranks)), ("spare",) * 5
    width = spec.intermediate // spec.ranks
    return graph(
        "MlpGateLayerV2",
        ("x", "w1", "w2", "spare"),
        ("out",),
        Call(parallel_linear(bias=False), ("x", "w1", *spare), ("gate_up",)),
        Call(split((width, width), old=True), ("gate_up",), ("gate", "up")),
        Call(activation("swish"), ("gate",), ("act",)),
        Call(elewise(MUL, old=True), ("act", "up"), ("product",)),
        Call(down, ("product", "w2", *spare), ("out",)),
    )


def _turn(spec: ModelSpec) -> Operation:
    """The rotation: one operator for the whole head, MindIE's wrapper for a part of it."""
    if spec.rotary_size < spec.head_size:
        return rotation(spec)
    return rope(spec.head_size if spec.interleaved else 2)


def _output(spec: ModelSpec, rank: int) -> Operation:
    """The linear out of attention, wrapped only where ranks are summed."""
    return linear(old=True) if spec.ranks == 1 else parallel_linear(bias=False, summed=(rank, spec.ranks))


def _chatglm_layer(spec: ModelSpec, rank: int) -> Operation:
    heads, kv, size = spec.own_heads, spec.own_kv_heads, spec.head_size
    add = elewise(ADD, old=True)
    core = flash_attention(heads, kv, size, alibi=False)
    output = _output(spec, rank)
    turned = dict.fromkeys(range(2), by_head(size))
    rows = {i: (lambda shape: (shape[1], shape[2])) for i in range(2)}
    batched: dict[int, View] = {i: (lambda shape: (1, *shape)) for i in range(2)}
    batched[2] = lambda shape: (*shape[:2], kv, size)
    return graph(
        "CommonLayer",
        (*(f"w{i}" for i in range(len(CHATGLM_WEIGHTS))), *CHATGLM_RUNTIME),
        ("out",),
        Call(rms_norm(spec.epsilon), ("hidden", "w0"), ("first",)),
        Call(linear(bias=True, old=True), ("first", "w1", "w2"), ("qkv",)),
        Call(split((heads * size, kv * size, kv * size), old=True), ("qkv",), ("q", "k", "v")),
        Call(_turn(spec), ("q", "k", "cos", "sin", "length"), ("q_turned", "k_turned"), rows, turned),
        Call(
            core,
            ("q_turned", "k_turned", "v", "k_cache", "v_cache", "mask", "offset", "length", "layer"),
            ("context",),
            batched,
            {0: heads_merged},
        ),
        Call(output, ("context", "w3", *("spare",) * (len(output.inputs) - 2)), ("dense",)),
        Call(add, ("dense", "hidden"), ("attended",)),
        Call(rms_norm(spec.epsilon), ("attended", "w4"), ("normed",)),
        Call(_chatglm_mlp(spec, rank), ("normed", "w5", "w6", "spare"), ("fed",)),
        Call(add, ("fed", "attended"), ("out",)),
    )


def _chatglm_shard(spec: ModelSpec, name: str, weight: torch.Tensor, rank: int) -> torch.Tensor:
    """The shard of a layer's weight that one rank holds; packs are split matrix by matrix."""
    ranks, size = spec.ranks, spec.head_size
    if ranks == 1:
        return weight
    if "query_key_value" in name:
        packed = torch.split(weight, [heads * size for heads in (spec.heads, spec.kv_heads, spec.kv_heads)])
        return torch.cat([shard_heads(block, size, rank, ranks) for block in packed])
    if "dense_h_to_4h" in name:
        return torch.cat([shard(block, 0, rank, ranks) for block in weight.chunk(2)])
    return shard(weight, 1, rank, ranks) if weight.ndim == 2 else weight


class ChatGlm(FlashFamily):
    """ChatGLM2: RMS norms, packed projection with bias, grouped keys, packed gate and up."""

    def extra(self, spec: ModelSpec, past: int, new: int) -> list[torch.Tensor]:
        turns = tables(spec.positions, spec.rotary_size, spec.rope_base, interleaved=spec.interleaved)
        return [table[past : past + new] for table in turns]

    def model(self, spec: ModelSpec, weights: Weights, rank: int, phase: Phase) -> AtbModel:
        table = [weights["transformer.embedding.word_embeddings.weight"]]
        calls = [Call(gather(), ("weight_0", "input_0"), ("internal_0",))]
        cos, sin = f"input_{7 + spec.layers}", f"input_{8 + spec.layers}"
        layer = _chatglm_layer(spec, rank)
        for index in range(spec.layers):
            slots = tuple(f"weight_{len(table) + i}" for i in range(len(CHATGLM_WEIGHTS)))
            base = f"transformer.encoder.layers.{index}."
            table += [_chatglm_shard(spec, name, weights[base + name], rank) for name in CHATGLM_WEIGHTS]
            feed = (cos, sin, *(f"input_{i}" for i in range(1, 7)), f"input_{7 + index}")
            calls.append(Call(layer, (*slots, f"internal_{index}", *feed), (f"internal_{index + 1}",)))
        end, last = len(table), spec.layers
        table += [
            weights["transformer.encoder.final_layernorm.weight"],
            shard(weights["transformer.output_layer.weight"], 0, rank, spec.ranks),
        ]
        hidden, normed, row = (f"internal_{last + i}" for i in range(3))
        calls += [
            Call(rms_norm(spec.epsilon), (hidden, f"weight_{end}"), (normed,)),
            Call(take((0, -1, 0), (-1, 1, -1)), (normed,), (row,)),
            Call(projection(spec, rank), (row, f"weight_{end + 1}"), ("output_0",)),
        ]
        layers = tuple(range(1, 1 + spec.layers))
        name = CHATGLM_NAME + {"prefill": "Encoder", "decode": "Decoder", "both": ""}[phase]
        return AtbModel(name, tuple(calls), tuple(table), layers, inputs=9 + spec.layers)
