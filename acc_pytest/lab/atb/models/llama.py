"""ATB graphs of Llama as MindIE builds them: packed or separate projections, one or several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..graph import AtbModel, Call, Cell, Execution, Operation, View, graph
from ..runtime import NoProbe, Runtime
from .leaves import (
    ADD,
    BLOCK,
    DIV,
    MUL,
    activation,
    cast,
    causal_mask,
    elewise,
    int8_linear,
    largest,
    one_hot,
    paged_attention,
    quantise,
    reshape_and_cache,
    rms_norm,
    self_attention,
    softmax,
    split,
    tables,
    take,
    total,
)
from .mindie import (
    PLAIN,
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
from .spec import Family, ModelSpec, Phase, Weights

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


# ATB graphs of mixtures of experts, as MindIE's dense form of 2024: every expert runs on every token.
#
# The router's shares are zero for the experts that a token did not choose. `Dense_layer`s come first where
# a model has them, then `Moe_layer`s.


ROUTER = 50
"""First weight slot of the router; its experts follow with three packs each."""


def _packs(expert: int) -> tuple[int, int, int]:
    first = ROUTER + 6 + 18 * expert
    return first, first + 6, first + 12


def _chooses(spec: ModelSpec) -> bool:
    """Whether a token chooses experts; else all of them count, each with its share."""
    return spec.experts_per_token < spec.experts


def _choice(spec: ModelSpec) -> list[Call]:
    """From `routing`, the probabilities of all experts, to `shares` `[n, experts]`.

    The largest ones are divided by their sum, and put back to the places where they were.
    """
    column = {0: lambda shape: (*shape, 1)}
    return [
        Call(largest(spec.experts_per_token), ("routing",), ("chosen", "places")),
        Call(total(1), ("chosen",), ("sum",), shapes=column),
        Call(elewise(DIV), ("chosen", "sum"), ("chosen",)),
        Call(one_hot(2, spec.experts), ("places", "one", "none"), ("hits",)),
        Call(cast(spec.torch_dtype), ("hits",), ("mask",)),
        Call(elewise(MUL), ("mask", "chosen"), ("mask",), {1: lambda shape: (*shape, 1)}),
        Call(total(1), ("mask",), ("shares",)),
    ]


def _columns(name: str, shares: tuple[str, ...]) -> list[Call]:
    """`[n, experts]` cut into columns; Split cuts into two or three parts only."""
    if len(shares) in (2, 3):
        return [Call(split((1,) * len(shares)), (name,), shares)]
    return [Call(take((0, i), (-1, 1)), (name,), (share,)) for i, share in enumerate(shares)]


class Moe(Llama):
    """Llama's attention with experts as feed-forward."""

    def kinds(self, spec: ModelSpec, phase: Phase) -> list[str]:
        dense = min(spec.dense_layers, spec.layers)
        return [*["Dense_layer"] * dense, *["Moe_layer"] * (spec.layers - dense)]

    def slots(self, spec: ModelSpec, layer: int) -> int:
        count = super().slots(spec, layer)
        return count if layer < spec.dense_layers else ROUTER + 6 + 18 * spec.experts

    def constants(self, spec: ModelSpec) -> dict[str, torch.Tensor]:
        """The values that Onehot writes for a hit and for none."""
        if not _chooses(spec):
            return {}
        return {"one": torch.ones(1, dtype=torch.int32), "none": torch.zeros(1, dtype=torch.int32)}

    def feed_forward(self, spec: ModelSpec, rank: int, layer: int) -> Operation:
        if layer < spec.dense_layers:
            return super().feed_forward(spec, rank, layer)
        shares = tuple(f"share{e}" for e in range(spec.experts))
        chosen = "shares" if _chooses(spec) else "routing"
        calls = [
            Call(rms_norm(spec.epsilon), ("hidden", "w28"), ("normed",)),
            Call(plain_linear(), ("normed", *pack(ROUTER)), ("scores",)),
            Call(softmax(), ("scores",), ("routing",)),
            *(_choice(spec) if _chooses(spec) else []),
            *_columns(chosen, shares),
        ]
        names = ["hidden", *norm(28), *pack(ROUTER)]
        for expert, share in enumerate(shares):
            gate, up, down = (pack(first) for first in _packs(expert))
            names += [*gate, *up, *down]
            result = "out" if expert == 0 else "part"
            calls += [
                Call(plain_linear(), ("normed", *gate), ("gate",)),
                Call(activation("swish"), ("gate",), ("act",)),
                Call(plain_linear(), ("normed", *up), ("up",)),
                Call(elewise(MUL), ("act", "up"), ("act",)),
                Call(row_linear(rank, spec.ranks), ("act", *down), ("down",)),
                Call(elewise(MUL), ("down", share), (result,)),
            ]
            if expert:
                calls.append(Call(elewise(ADD), ("out", "part"), ("out",)))
        return graph("MoeMlp", (*names, *self.constants(spec)), ("out",), *calls)

    def layer_weights(self, spec: ModelSpec, weights: Weights, index: int, rank: int) -> list[torch.Tensor]:
        slots = self.attention_weights(spec, weights, index, rank)
        base = f"model.layers.{index}.mlp."
        if index < spec.dense_layers:
            self.place_mlp(spec, weights, base, rank, slots)
            return slots
        slots[ROUTER] = weights[base + "gate.weight"]
        for expert in range(spec.experts):
            inside = f"{base}experts.{expert}."
            for name, first, dim in zip(("gate", "up", "down"), _packs(expert), (0, 0, 1)):
                slots[first] = shard(weights[f"{inside}{name}_proj.weight"], dim, rank, spec.ranks)
        return slots


# Llama with int8 linears (W8A8), as MindIE runs what msModelSlim has quantised.
#
# Weights are symmetric with a scale for each output channel, activations have one scale and offset for each
# linear, found by running the float model once. The norm before a linear writes int8 itself
# (`LinearDequantOnly` reads it); before the others an Elewise quantises (`LinearQuant`). The product is
# exact in int32 and comes back to float by one scale a channel.


CALIBRATION = 256
"""Tokens of the run that finds the ranges of activations."""
LINEARS = (4, 22, 32, 44)
"""First weight slots of the quantised linears, in the order in which they run."""
ROWS = {22: "self_attn.o_proj.weight", 44: "mlp.down_proj.weight"}
"""The row-parallel ones: the scale of a channel is that of the whole row, on every rank."""


class Int8Llama(Llama):
    """Llama, packed, with every linear of the layers in int8; embedding and output head stay float."""

    def __init__(self) -> None:
        super().__init__(packed=True)
        self._ranges: list[Range] = []

    def model(self, spec: ModelSpec, weights: Weights, rank: int, phase: Phase) -> AtbModel:
        if not self._ranges:
            self._ranges = calibrated(spec, weights)
        return super().model(spec, weights, rank, phase)

    def norm_linear(self, spec: ModelSpec, *, bias: bool) -> Operation:
        names = ("hidden", "g0", "g1", "g2", "g3", *PLAIN[1:])
        dequantise = graph(
            "LinearDequantOnly",
            PLAIN,
            ("out",),
            Call(int8_linear(spec.torch_dtype), ("input", "weight", "bias", "descale"), ("out",)),
        )
        return graph(
            "NormLinear",
            names,
            ("out",),
            Call(
                rms_norm(spec.epsilon, quantised=True), ("hidden", "g0", "g1", "scale", "offset"), ("normed",)
            ),
            Call(dequantise, ("normed", *PLAIN[1:]), ("out",)),
        )

    def row_linear(self, spec: ModelSpec, rank: int, *, bias: bool) -> Operation:
        multiply = graph(
            "LinearQuant",
            PLAIN,
            ("out",),
            Call(quantise(), ("input", "scale", "offset"), ("quantised",)),
            Call(int8_linear(spec.torch_dtype), ("quantised", "weight", "bias", "descale"), ("out",)),
        )
        return row_linear(rank, spec.ranks, linear_operation=multiply)

    def layer_weights(self, spec: ModelSpec, weights: Weights, index: int, rank: int) -> list[torch.Tensor]:
        slots = super().layer_weights(spec, weights, index, rank)
        biased = {4: spec.qkv_bias, 22: spec.output_bias, 32: spec.mlp_bias, 44: spec.mlp_bias}
        for place, first in enumerate(LINEARS):
            bias = slots[first + 1].float() if biased[first] else torch.zeros(1)
            unsplit = slots[first]
            if first in ROWS:
                # the sum over ranks has the bias once
                bias = bias if rank == 0 else torch.zeros(1)
                unsplit = weights[f"model.layers.{index}.{ROWS[first]}"]
            input_range = self._ranges[place + len(LINEARS) * index]
            slots[first : first + 5] = _quantised(slots[first], unsplit, bias, input_range, spec.torch_dtype)
        for first in (0, 28):
            slots[first + 1] = torch.zeros_like(slots[first])
        return slots


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and largest value that a linear has read."""

    low: float
    high: float

    def grid(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale (in `dtype`) and int8 offset, `[1]` each, that spread the range over the 256 values."""
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        scale = torch.tensor([(high - low) / 255 or 1.0]).to(dtype)
        offset = (-128 - low / scale.float()).round().clamp(-128, 127)
        return scale, offset.to(torch.int8)


def _quantised(
    weight: torch.Tensor, unsplit: torch.Tensor, bias: torch.Tensor, input_range: Range, dtype: torch.dtype
) -> list[torch.Tensor]:
    """int8 weight, int32 bias, scale of the product, offset and scale of the input, as MindIE lays them out.

    With q = x / scale + offset: x W^T + b = (q Q^T + b / s - offset sum(Q)) s, Q = W / channel scales, s =
    scale * channel scales. The device takes s as bits of float32 in int64, with bfloat16 as float32.
    """
    scale, offset = input_range.grid(dtype)
    channels = unsplit.float().abs().amax(1) / 127
    channels = torch.where(channels > 0, channels, torch.ones(()))
    integers = (weight.float() / channels[:, None]).round().clamp(-127, 127)
    product = scale.float() * channels
    shifted = (bias / product).round() - offset.float() * integers.sum(1)
    if dtype == torch.float16:
        product = product.view(torch.int32).to(torch.int64)
    return [integers.to(torch.int8), shifted.to(torch.int32), product, offset, scale]


class _Ranges(NoProbe):
    """A probe that notes what the linears read."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []

    def executed(self, count: int, execution: Execution) -> None:
        if execution.operation.kind == "LinearOperation":
            x = execution.before[0]
            self.ranges.append(Range(float(x.min()), float(x.max())))


@torch.no_grad()
def calibrated(spec: ModelSpec, weights: Weights) -> list[Range]:
    """The range of every linear's input, in the order in which they run, over `CALIBRATION` random ids."""
    spec = replace(spec, family="llama", ranks=1, models=2, tokens=CALIBRATION)
    ids = torch.randint(spec.vocab, (CALIBRATION,), generator=torch.Generator().manual_seed(0)).tolist()
    family, probe = Llama(packed=True), _Ranges()
    inputs = family.inputs(spec, ids, 0, "prefill", 0)
    scope = {**{name: Cell(tensor) for name, tensor in inputs.items()}, **family.state(spec)}
    Runtime([probe]).load([family.model(spec, weights, 0, "prefill")]).execute([scope])
    return probe.ranges
