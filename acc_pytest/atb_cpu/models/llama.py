"""ATB graphs of Llama as MindIE builds them: packed or separate projections, one or several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..graph import Call, Cell, Operation, View, graph
from ..topology import AtbModel
from .attention_leaves import BLOCK, causal_mask, paged_attention, reshape_and_cache, self_attention
from .family import Family, Weights
from .leaves import ADD, MUL, activation, elewise, rms_norm, split, tables
from .mindie import (
    by_head,
    contiguous,
    embedding,
    lm_head,
    merge,
    norm,
    norm_linear,
    pack,
    plain_linear,
    positions,
    rotation,
    row_linear,
    shard,
    shard_heads,
    unbatched,
)
from .spec import ModelSpec, Phase

SLOTS = 50
"""Weights a MindIE layer takes; those a float model does not use are one-element placeholders."""
RUNTIME = ("hidden", "cos", "sin", "mask", "k_cache", "v_cache", "length", "offset", "zero", "table", "slots")
FEED = ("input_4", "", "", "input_10", "input_8", "input_7", "input_5", "input_6")


class Llama(Family):
    """Llama; `packed` says whether q, k, v (and gate, up) share one weight."""

    def __init__(self, *, packed: bool) -> None:
        self.packed = packed
        self._layers: dict[tuple[int, int], list[torch.Tensor]] = {}

    def kinds(self, spec: ModelSpec, phase: Phase) -> list[str]:
        """Operation type of every layer."""
        return ["Prefill_layer" if phase == "prefill" else "Decoder_layer"] * spec.layers

    def constants(self, spec: ModelSpec) -> dict[str, torch.Tensor]:
        """Further inputs of every layer by name, the same at every step."""
        return {}

    def norm_linear(self, spec: ModelSpec, *, bias: bool) -> Operation:
        """A norm and the column-parallel linear that reads it."""
        return norm_linear(spec.epsilon, bias=bias)

    def row_linear(self, spec: ModelSpec, rank: int, *, bias: bool) -> Operation:
        """A row-parallel linear."""
        return row_linear(rank, spec.ranks, bias=bias)

    def feed_forward(self, spec: ModelSpec, rank: int, layer: int) -> Operation:
        """The operation after the second residual's norm point; it takes hidden, the norm and the linears."""
        names = ("hidden", *norm(28), *pack(32), *pack(38), *pack(44))
        act, mul, bias = activation("swish"), elewise(MUL), spec.mlp_bias
        down = Call(self.row_linear(spec, rank, bias=bias), ("act", *pack(44)), ("out",))
        if self.packed:
            width = spec.intermediate // spec.ranks
            return graph(
                "MlpGateUpWeightPack",
                names,
                ("out",),
                Call(self.norm_linear(spec, bias=bias), ("hidden", *norm(28), *pack(32)), ("gate_up",)),
                Call(split((width, width)), ("gate_up",), ("gate", "up")),
                Call(act, ("gate",), ("act",)),
                Call(mul, ("act", "up"), ("act",)),
                down,
            )
        return graph(
            "MlpGateUpWeightNoPack",
            names,
            ("out",),
            Call(rms_norm(spec.epsilon), ("hidden", "w28"), ("normed",)),
            Call(plain_linear(bias=bias), ("normed", *pack(32)), ("gate",)),
            Call(act, ("gate",), ("act",)),
            Call(plain_linear(bias=bias), ("normed", *pack(38)), ("up",)),
            Call(mul, ("act", "up"), ("act",)),
            down,
        )

    def attention(self, spec: ModelSpec, rank: int, phase: Phase) -> Operation:
        """Norm, projections, rotation, cache, attention, output projection."""
        heads, kv, size = spec.own_heads, spec.own_kv_heads, spec.head_size
        output = self.row_linear(spec, rank, bias=spec.output_bias)
        projections = (*norm(0), *pack(4), *pack(10), *pack(16))
        runtime = ("cos", "sin", "length", "k_cache", "v_cache", "mask", "offset", "zero", "table", "slots")
        rows = unbatched if phase == "both" else merge
        calls = [
            *self._projections(spec, (heads, kv, size), projections),
            Call(rotation(spec), ("q", "k", "cos", "sin", "length"), ("q", "k"), {0: merge, 1: merge}),
            *(contiguous(heads, kv, size) if phase == "both" else self._paged(heads, kv, size, phase)),
            Call(output, ("context", *pack(22)), ("out",), {0: rows}),
        ]
        return graph("Attention", ("hidden", *projections, *runtime, *pack(22)), ("out",), *calls)

    def _paged(self, heads: int, kv: int, size: int, phase: Phase) -> list[Call]:
        """Store keys and values in the paged cache, then attend."""
        caches = ("k_cache", "v_cache")

        def seen(index: int) -> dict[int, View]:
            """Values come from a split by heads already where the projections are packed."""
            return {} if self.packed else {index: by_head(size)}

        store = Call(reshape_and_cache(), ("k", "v", *caches, "slots"), caches, seen(1))
        if phase == "decode":
            operands = ("q", *caches, "table", "length")
            return [store, Call(paged_attention(heads, kv, size), operands, ("context",))]
        operands = ("q", "k", "v", "mask", "length")
        return [store, Call(self_attention(heads, kv, size), operands, ("context",), seen(2))]

    def _projections(
        self, spec: ModelSpec, sizes: tuple[int, int, int], names: tuple[str, ...]
    ) -> list[Call]:
        heads, kv, size = sizes
        if not self.packed:
            linears = [
                Call(plain_linear(bias=spec.qkv_bias), ("normed", *pack(first)), (name,))
                for first, name in ((4, "q"), (10, "k"), (16, "v"))
            ]
            return [Call(rms_norm(spec.epsilon), ("hidden", "w0"), ("normed",)), *linears]
        inside = graph(
            "QKVLinearSplitPack",
            ("hidden", *names),
            ("q", "k", "v"),
            Call(self.norm_linear(spec, bias=spec.qkv_bias), ("hidden", *norm(0), *pack(4)), ("qkv",)),
            Call(
                split([heads * size, kv * size, kv * size]),
                ("qkv",),
                ("q", "k", "v"),
                shapes=dict.fromkeys(range(3), by_head(size)),
            ),
        )
        return [Call(inside, ("hidden", *names), ("q", "k", "v"))]

    def _layer(self, spec: ModelSpec, rank: int, phase: Phase, kind: str, index: int) -> Operation:
        attention, mlp = self.attention(spec, rank, phase), self.feed_forward(spec, rank, index)
        names = (*(f"w{i}" for i in range(self.slots(spec, index))), *RUNTIME, *self.constants(spec))
        calls = [
            Call(attention, attention.inputs, ("attended",)),
            Call(elewise(ADD), ("hidden", "attended"), ("hidden",)),
            Call(mlp, mlp.inputs, ("fed",)),
            Call(elewise(ADD), ("hidden", "fed"), ("out",)),
        ]
        if spec.sandwich:
            after = self.slots(spec, index) - 2
            for place, name in ((3, "fed"), (1, "attended")):
                weight = f"w{after + place // 3}"
                calls.insert(place, Call(rms_norm(spec.epsilon), (name, weight), (name,)))
        return graph(kind, names, ("out",), *calls)

    def model(self, spec: ModelSpec, weights: Weights, rank: int, phase: Phase) -> AtbModel:
        table = [shard(weights["model.embed_tokens.weight"], 1, rank, spec.ranks)]
        calls = [
            Call(embedding(spec, rank), ("weight_0", "input_0"), ("internal_0",)),
            Call(positions(), ("input_1", "input_2", "input_3"), ("internal_1", "internal_2")),
        ]
        declared = 12 + (spec.layers if phase == "both" else 0)
        for index, kind in enumerate(self.kinds(spec, phase)):
            slots = [f"weight_{len(table) + i}" for i in range(self.slots(spec, index))]
            table += self._slot_weights(spec, weights, index, rank)
            feed = list(FEED)
            feed[1:3] = f"kCache_{index}", f"vCache_{index}"
            if phase == "both":
                feed[0:3], feed[5] = ("input_4", "kCache_0", "vCache_0"), f"input_{12 + index}"
            feed += [f"input_{declared + i}" for i in range(len(self.constants(spec)))]
            operands = (*slots, "internal_0", "internal_1", "internal_2", *feed)
            calls.append(Call(self._layer(spec, rank, phase, kind, index), operands, ("internal_0",)))
        table += [weights["model.norm.weight"], shard(weights["lm_head.weight"], 0, rank, spec.ranks)]
        final, head = f"weight_{len(table) - 2}", f"weight_{len(table) - 1}"
        calls.append(Call(rms_norm(spec.epsilon), ("internal_0", final), ("internal_0",)))
        spare = ("input_9",) * 5
        operands = ("internal_0", head, *spare, "input_11", "input_9")
        calls.append(Call(lm_head(spec, rank, pick=phase != "decode"), operands, ("output_0",)))
        name = {"prefill": "DecoderModel_Prefill", "decode": "DecoderModel_Decoder", "both": "DecoderModel"}[
            phase
        ]
        layers = tuple(range(2, 2 + spec.layers))
        return AtbModel(name, tuple(calls), tuple(table), layers, inputs=declared + len(self.constants(spec)))

    def slots(self, spec: ModelSpec, layer: int) -> int:
        """Number of weight slots of a layer."""
        return SLOTS + 2 * spec.sandwich

    def _slot_weights(self, spec: ModelSpec, weights: Weights, index: int, rank: int) -> list[torch.Tensor]:
        """`layer_weights`, put together once for all models of a rank."""
        if (index, rank) not in self._layers:
            self._layers[index, rank] = self.layer_weights(spec, weights, index, rank)
        return self._layers[index, rank]

    def layer_weights(self, spec: ModelSpec, weights: Weights, index: int, rank: int) -> list[torch.Tensor]:
        """The weights of one layer on one rank, placeholders where nothing is used."""
        slots = self.attention_weights(spec, weights, index, rank)
        self.place_mlp(spec, weights, f"model.layers.{index}.mlp.", rank, slots)
        return slots

    def attention_weights(
        self, spec: ModelSpec, weights: Weights, index: int, rank: int
    ) -> list[torch.Tensor]:
        """All slots of a layer with those of attention and norms filled."""
        slots = [torch.zeros(1, dtype=spec.torch_dtype) for _ in range(self.slots(spec, index))]
        base = f"model.layers.{index}."
        slots[0] = weights[base + "input_layernorm.weight"]
        slots[28] = weights[base + "post_attention_layernorm.weight"]
        slots[22] = shard(weights[base + "self_attn.o_proj.weight"], 1, rank, spec.ranks)
        for offset, kind in enumerate(("weight", "bias")[: 1 + spec.qkv_bias]):
            matrices = [
                shard_heads(weights[f"{base}self_attn.{n}_proj.{kind}"], spec.head_size, rank, spec.ranks)
                for n in "qkv"
            ]
            _place(slots, (4 + offset, 10 + offset, 16 + offset), matrices, packed=self.packed)
        if spec.output_bias:
            slots[23] = weights[base + "self_attn.o_proj.bias"]
        if spec.sandwich:
            slots[-2] = weights[base + "post_self_attn_layernorm.weight"]
            slots[-1] = weights[base + "post_mlp_layernorm.weight"]
        return slots

    def place_mlp(
        self, spec: ModelSpec, weights: Weights, base: str, rank: int, slots: list[torch.Tensor]
    ) -> None:
        """Put gate, up and down below `base` into their slots (gate and up into one if packed)."""
        for offset, kind in enumerate(("weight", "bias")[: 1 + spec.mlp_bias]):
            matrices = [shard(weights[f"{base}{n}_proj.{kind}"], 0, rank, spec.ranks) for n in ("gate", "up")]
            _place(slots, (32 + offset, 38 + offset), matrices, packed=self.packed)
        slots[44] = shard(weights[base + "down_proj.weight"], 1, rank, spec.ranks)
        if spec.mlp_bias:
            slots[45] = weights[base + "down_proj.bias"]

    def state(self, spec: ModelSpec) -> dict[str, Cell]:
        kv = spec.own_kv_heads
        if spec.models == 1:
            shape: tuple[int, ...] = (spec.layers, 1, spec.positions, kv * spec.head_size)
            return {f"{side}Cache_0": Cell(torch.zeros(shape, dtype=spec.torch_dtype)) for side in "kv"}
        shape = (spec.blocks, BLOCK, kv, spec.head_size)
        return {
            f"{side}Cache_{i}": Cell(torch.zeros(shape, dtype=spec.torch_dtype))
            for side in "kv"
            for i in range(spec.layers)
        }

    def inputs(
        self, spec: ModelSpec, ids: Sequence[int], past: int, phase: Phase, rank: int
    ) -> dict[str, torch.Tensor]:
        new, total = len(ids), past + len(ids)
        dtype = spec.torch_dtype
        turns = tables(spec.positions, spec.rotary_size, spec.rope_base, interleaved=spec.interleaved)
        cos, sin = (table.to(dtype) for table in turns)
        length = torch.tensor([total], dtype=torch.int32)
        values = [
            torch.tensor(list(ids)),
            torch.arange(past, total),
            cos,
            sin,
            _mask(spec, phase, new),
            torch.arange(spec.blocks, dtype=torch.int32)[None],
            torch.arange(past, total, dtype=torch.int32),  # slots: blocks are taken in order
            torch.zeros(1, dtype=torch.int32),
            length,
            torch.zeros(1, dtype=dtype),
            # the contiguous cache is told apart what is new from all that it holds then
            torch.tensor([new], dtype=torch.int32) if phase == "both" else length,
            torch.tensor([new - 1]),
        ]
        if phase == "both":
            values += [torch.tensor([i], dtype=torch.int32) for i in range(spec.layers)]
        values += self.constants(spec).values()
        return {f"input_{i}": value for i, value in enumerate(values)}

    def logits(self, outputs: Mapping[str, Cell]) -> torch.Tensor:
        return outputs["output_0"].read()[-1]


def _place(
    slots: list[torch.Tensor], places: Sequence[int], matrices: list[torch.Tensor], *, packed: bool
) -> None:
    """Put parallel linears into slots of their own, or one after the other into the first."""
    if packed:
        slots[places[0]] = torch.cat(matrices)
        return
    for place, matrix in zip(places, matrices):
        slots[place] = matrix


def _mask(spec: ModelSpec, phase: Phase, new: int) -> torch.Tensor:
    """Added to the scores; in bfloat16 MindIE gives paged models ones where a token is hidden instead."""
    if phase == "both":
        return causal_mask(spec.positions).to(spec.torch_dtype)
    mask = causal_mask(new)
    return (mask < 0).bfloat16() if spec.torch_dtype == torch.bfloat16 else mask.to(spec.torch_dtype)
