"""ATB graph of ChatGLM2 as the flash-attention model of 2024 builds it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..graph import Call, Cell, Operation, View, graph
from ..topology import AtbModel
from .attention_leaves import flash_attention
from .family import Weights
from .flash import FlashFamily, heads_merged, parallel_linear, projection
from .leaves import ADD, MUL, activation, elewise, gather, linear, rms_norm, rope, split, tables, take
from .mindie import by_head
from .spec import ModelSpec, Phase

WEIGHTS = (
    "input_layernorm.weight",
    "self_attention.query_key_value.weight",
    "self_attention.query_key_value.bias",
    "self_attention.dense.weight",
    "post_attention_layernorm.weight",
    "mlp.dense_h_to_4h.weight",
    "mlp.dense_4h_to_h.weight",
)
RUNTIME = ("hidden", "cos", "sin", "mask", "k_cache", "v_cache", "offset", "length", "spare", "layer")
NAME = "ChatGlm2CommonModelFa"


def _mlp(spec: ModelSpec) -> Operation:
    linears, spare = parallel_linear(bias=False), ("spare",) * 5
    width = spec.intermediate
    return graph(
        "MlpGateLayerV2",
        ("x", "w1", "w2", "spare"),
        ("out",),
        Call(linears, ("x", "w1", *spare), ("gate_up",)),
        Call(split((width, width), old=True), ("gate_up",), ("gate", "up")),
        Call(activation("swish"), ("gate",), ("act",)),
        Call(elewise(MUL, old=True), ("act", "up"), ("product",)),
        Call(linears, ("product", "w2", *spare), ("out",)),
    )


def _layer(spec: ModelSpec) -> Operation:
    heads, kv, size = spec.heads, spec.kv_heads, spec.head_size
    add = elewise(ADD, old=True)
    core = flash_attention(heads, kv, size, alibi=False)
    turned = dict.fromkeys(range(2), by_head(size))
    rows = {i: (lambda shape: (shape[1], shape[2])) for i in range(2)}
    batched: dict[int, View] = {i: (lambda shape: (1, *shape)) for i in range(2)}
    batched[2] = lambda shape: (*shape[:2], kv, size)
    return graph(
        "CommonLayer",
        (*(f"w{i}" for i in range(len(WEIGHTS))), *RUNTIME),
        ("out",),
        Call(rms_norm(spec.epsilon), ("hidden", "w0"), ("first",)),
        Call(linear(bias=True, old=True), ("first", "w1", "w2"), ("qkv",)),
        Call(split((heads * size, kv * size, kv * size), old=True), ("qkv",), ("q", "k", "v")),
        Call(rope(), ("q", "k", "cos", "sin", "length"), ("q_turned", "k_turned"), rows, turned),
        Call(
            core,
            ("q_turned", "k_turned", "v", "k_cache", "v_cache", "mask", "offset", "length", "layer"),
            ("context",),
            batched,
            {0: heads_merged},
        ),
        Call(linear(old=True), ("context", "w3"), ("dense",)),
        Call(add, ("dense", "hidden"), ("attended",)),
        Call(rms_norm(spec.epsilon), ("attended", "w4"), ("normed",)),
        Call(_mlp(spec), ("normed", "w5", "w6", "spare"), ("fed",)),
        Call(add, ("fed", "attended"), ("out",)),
    )


class ChatGlm(FlashFamily):
    """ChatGLM2: RMS norms, packed projection with bias, grouped keys, packed gate and up."""

    def extra(self, spec: ModelSpec, past: int, new: int) -> list[torch.Tensor]:
        return [
            table[past : past + new] for table in tables(spec.positions, spec.rotary_size, spec.rope_base)
        ]

    def model(self, spec: ModelSpec, weights: Weights, rank: int, phase: Phase) -> AtbModel:
        table = [weights["transformer.embedding.word_embeddings.weight"]]
        calls = [Call(gather(), ("weight_0", "input_0"), ("internal_0",))]
        cos, sin = f"input_{7 + spec.layers}", f"input_{8 + spec.layers}"
        layer = _layer(spec)
        for index in range(spec.layers):
            held = tuple(f"weight_{len(table) + i}" for i in range(len(WEIGHTS)))
            table += [weights[f"transformer.encoder.layers.{index}.{name}"] for name in WEIGHTS]
            feed = (cos, sin, *(f"input_{i}" for i in range(1, 7)), f"input_{7 + index}")
            calls.append(Call(layer, (*held, f"internal_{index}", *feed), (f"internal_{index + 1}",)))
        end, last = len(table), spec.layers
        table += [
            weights["transformer.encoder.final_layernorm.weight"],
            weights["transformer.output_layer.weight"],
        ]
        hidden, normed, row = (f"internal_{last + i}" for i in range(3))
        calls += [
            Call(rms_norm(spec.epsilon), (hidden, f"weight_{end}"), (normed,)),
            Call(take((0, -1, 0), (-1, 1, -1)), (normed,), (row,)),
            Call(projection(), (row, f"weight_{end + 1}"), ("output_0",)),
        ]
        layers = tuple(range(1, 1 + spec.layers))
        name = NAME + {"prefill": "Encoder", "decode": "Decoder", "both": ""}[phase]
        return AtbModel(name, tuple(calls), tuple(table), layers, inputs=9 + spec.layers)

    def logits(self, outputs: Mapping[str, Cell]) -> torch.Tensor:
        return outputs["output_0"].read().flatten(0, -2)[-1]
