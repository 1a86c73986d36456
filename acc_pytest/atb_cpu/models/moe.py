"""ATB graphs of the mixture-of-experts model: `Dense_layer` first, then `Moe_layer`s."""

from __future__ import annotations

import torch

from ..graph import Call, Operation, graph
from .family import Weights
from .leaves import ADD, MUL, activation, elewise, rms_norm, softmax, split
from .llama import Llama
from .mindie import norm, pack, plain_linear, row_linear, shard
from .spec import ModelSpec, Phase

ROUTER = 50
"""First weight slot of the router; its experts follow with three packs each."""


def _packs(expert: int) -> tuple[int, int, int]:
    first = ROUTER + 6 + 18 * expert
    return first, first + 6, first + 12


class Moe(Llama):
    """Llama's attention with experts as feed-forward."""

    def kinds(self, spec: ModelSpec, phase: Phase) -> list[str]:
        return ["Dense_layer", *["Moe_layer"] * (spec.layers - 1)]

    def slots(self, spec: ModelSpec, layer: int) -> int:
        return super().slots(spec, layer) if layer == 0 else ROUTER + 6 + 18 * spec.experts

    def feed_forward(self, spec: ModelSpec, rank: int, layer: int) -> Operation:
        if layer == 0:
            return super().feed_forward(spec, rank, layer)
        shares = tuple(f"share{e}" for e in range(spec.experts))
        calls = [
            Call(rms_norm(spec.epsilon), ("hidden", "w28"), ("normed",)),
            Call(plain_linear(), ("normed", *pack(ROUTER)), ("scores",)),
            Call(softmax(), ("scores",), ("routing",)),
            Call(split((1,) * spec.experts), ("routing",), shares),
        ]
        names = ["hidden", *norm(28), *pack(ROUTER)]
        for expert, share in enumerate(shares):
            gate, up, down = (pack(first) for first in _packs(expert))
            names += [*gate, *up, *down]
            made = "out" if expert == 0 else "part"
            calls += [
                Call(plain_linear(), ("normed", *gate), ("gate",)),
                Call(activation("swish"), ("gate",), ("act",)),
                Call(plain_linear(), ("normed", *up), ("up",)),
                Call(elewise(MUL), ("act", "up"), ("act",)),
                Call(row_linear(rank, spec.ranks), ("act", *down), ("down",)),
                Call(elewise(MUL), ("down", share), (made,)),
            ]
            if expert:
                calls.append(Call(elewise(ADD), ("out", "part"), ("out",)))
        return graph("MoeMlp", tuple(names), ("out",), *calls)

    def layer_weights(self, spec: ModelSpec, weights: Weights, index: int, rank: int) -> list[torch.Tensor]:
        slots = self.attention_weights(spec, weights, index, rank)
        base = f"model.layers.{index}.mlp."
        if index == 0:
            self.place_mlp(spec, weights, base, rank, slots)
            return slots
        slots[ROUTER] = weights[base + "gate.weight"]
        for expert in range(spec.experts):
            inside = f"{base}experts.{expert}."
            for name, first, dim in zip(("gate", "up", "down"), _packs(expert), (0, 0, 1)):
                slots[first] = shard(weights[f"{inside}{name}_proj.weight"], dim, rank, spec.ranks)
        return slots
