"""Llama with int8 linears (W8A8), as MindIE runs what msModelSlim has quantised.

Weights are symmetric with a scale for each output channel, activations have one scale and offset for each
linear, found by running the float model once. The norm before a linear writes int8 itself
(`LinearDequantOnly` reads it); before the others an Elewise quantises (`LinearQuant`). The product is
exact in int32 and comes back to float by one scale a channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..execution import Execution
from ..graph import Call, Cell, Operation, graph
from ..runtime import NoProbe, Runtime
from ..topology import AtbModel
from .family import Weights
from .leaves import int8_linear, quantise, rms_norm
from .llama import Llama
from .mindie import PLAIN, row_linear
from .spec import ModelSpec, Phase

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
