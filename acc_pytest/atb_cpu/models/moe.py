"""ATB graphs of mixtures of experts, as MindIE's dense form of 2024: every expert runs on every token.

The router's shares are zero for the experts that a token did not choose. `Dense_layer`s come first where
a model has them, then `Moe_layer`s.
"""

from __future__ import annotations

import torch

from ..graph import Call, Operation, graph
from .family import Weights
from .leaves import (
    ADD,
    DIV,
    MUL,
    activation,
    cast,
    elewise,
    largest,
    one_hot,
    rms_norm,
    softmax,
    split,
    take,
    total,
)
from .llama import Llama
from .mindie import norm, pack, plain_linear, row_linear, shard
from .spec import ModelSpec, Phase

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
