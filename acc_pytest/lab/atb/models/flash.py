"""Operations of the flash-attention models of 2024 (Bloom, ChatGLM): one contiguous cache, biases apart.

Over ranks the linears into attention and feed-forward are column parallel, those out of them row
parallel; the embedding is on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..graph import AtbModel, Call, Cell, Operation, View, graph
from .leaves import (
    ADD,
    MUL,
    MULS,
    activation,
    all_gather,
    all_reduce,
    causal_mask,
    elewise,
    flash_attention,
    gather,
    layer_norm,
    linear,
    rms_norm,
    rope,
    split,
    tables,
    take,
    transpose_gathered,
)
from .mindie import by_head, rotation, shard, shard_heads
from .spec import Family, ModelSpec, Phase, Weights


def heads_merged(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[1, n, heads, size]` seen as `[1, n, heads * size]`."""
    return (*shape[:2], -1)


def parallel_linear(*, bias: bool, summed: tuple[int, int] | None = None) -> Operation:
    """`ParallelLinearBaseV2`: a linear without bias, then the bias as an addition of its own.

    A row-parallel one is `summed` by (rank, ranks) in between, so that the bias counts once.
    """
    names = ("x", "w", "b", "p0", "p1", "p2", "p3")
    steps: list[tuple[Operation, tuple[str, ...]]] = [(linear(old=True), ("w",))]
    if summed is not None and summed[1] > 1:
        steps.append((all_reduce(*summed), ()))
    if bias:
        steps.append((elewise(ADD, old=True), ("b",)))
    results = [*("product", "sum")[: len(steps) - 1], "out"]
    sources = ["x", *results]
    calls = [
        Call(step, (source, *operands), (result,))
        for (step, operands), source, result in zip(steps, sources, results)
    ]
    return graph("ParallelLinearBaseV2", names, ("out",), *calls)


def projection(spec: ModelSpec, rank: int) -> Operation:
    """`ParallelLinearBase`: the output projection, each rank a part of the vocabulary where it splits."""
    multiply, ranks = linear(old=True), spec.ranks
    if ranks == 1 or spec.vocab % ranks:
        return graph("ParallelLinearBase", ("x", "w"), ("out",), Call(multiply, ("x", "w"), ("out",)))
    return graph(
        "ParallelLinearBase",
        ("x", "w"),
        ("out",),
        Call(multiply, ("x", "w"), ("part",)),
        Call(all_gather(rank, ranks), ("part",), ("parts",)),
        Call(transpose_gathered(4), ("parts",), ("out",), shapes={0: lambda shape: (*shape[:-2], -1)}),
    )


class FlashFamily(Family):
    """Cache and step inputs: ids, mask, caches, tokenOffset, seqLen, placeholder, one layer id per layer."""

    output = "output_0"
    """The tensor of the graph that holds the logits."""

    def bias(self, spec: ModelSpec, rank: int) -> torch.Tensor:
        """The additive mask of the whole run, `[..., positions, positions]`, for the heads of a rank."""
        return causal_mask(spec.positions)

    def extra(self, spec: ModelSpec, past: int, new: int) -> list[torch.Tensor]:
        """Further inputs after the layer ids."""
        return []

    def state(self, spec: ModelSpec) -> dict[str, Cell]:
        shape = (spec.layers, 1, spec.positions, spec.own_kv_heads * spec.head_size)
        return {f"input_{i}": Cell(torch.zeros(shape, dtype=spec.torch_dtype)) for i in (2, 3)}

    def inputs(
        self, spec: ModelSpec, ids: Sequence[int], past: int, phase: Phase, rank: int
    ) -> dict[str, torch.Tensor]:
        dtype, new, total = spec.torch_dtype, len(ids), past + len(ids)
        values = {
            "input_0": torch.tensor([list(ids)]),
            "input_1": self.bias(spec, rank).to(dtype),
            "input_4": torch.tensor([total], dtype=torch.int32),
            "input_5": torch.tensor([new], dtype=torch.int32),
            "input_6": torch.zeros(1, dtype=dtype),
        }
        for layer in range(spec.layers):
            values[f"input_{7 + layer}"] = torch.tensor([layer], dtype=torch.int32)
        for index, tensor in enumerate(self.extra(spec, past, new)):
            values[f"input_{7 + spec.layers + index}"] = tensor.to(dtype)
        return values

    def logits(self, outputs: Mapping[str, Cell]) -> torch.Tensor:
        return outputs[self.output].read().flatten(0, -2)[-1]


# ATB graph of Bloom as the flash-attention model of 2024 builds it.


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


# ATB graph of ChatGLM2 (and 3) as the flash-attention model of 2024 builds it.


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
