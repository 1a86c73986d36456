"""Styles of weights: what those of trained networks have that evenly drawn ones do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .architectures import FIRST, Architecture

STD = 0.02
WIDE_STD = 0.08
SHIFT = 4.0
"""Mean of shifted embeddings, in their standard deviations."""
OUTLIER, LOUD, GAIN, PEAK, SHARP = 50.0, 300.0, 30.0, 6.0, 24.0
SHARE = 0.015
"""Of the channels, how many are outliers."""
MASSIVE = 1000.0
"""Times the root mean square of the residual stream."""
TOLD_APART = 20.0
"""Times the root mean square of the embeddings: a channel of the first token, by which an mlp knows it."""
GATED = ("llama", "mistral", "qwen2", "qwen3")
"""Types whose embeddings come to the first norm as they are, and whose mlps have a gate with silu."""
KEPT = ("A_log", "D", "dt_bias", "time_", "inv_freq")
"""Names of parameters of recurrences that hold time scales: the published start values stay."""
WRITERS = (
    "o_proj", "down_proj", "out_proj", "fc2", "dense_4h_to_h", "attention.dense", "self_attention.dense",
    "c_proj", "fc_out", "wo", "SelfAttention.o", "output.dense", "self_attn.dense",
)  # fmt: skip
"""Linears whose results are added to the residual stream."""
MLP_WRITERS = ("down_proj", "fc2", "dense_4h_to_h", "mlp.c_proj", "fc_out", "wo")
QUERIES_AND_KEYS = ("q_proj", "k_proj", "query", "key", "SelfAttention.q", "SelfAttention.k")
NORMED_QUERIES_AND_KEYS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_norm", "key_norm")


@dataclass
class Weights:
    """A network whose weights are being made; `draw` gives every random number."""

    module: Any
    hidden: int
    draw: torch.Generator

    def channels(self, count: int) -> torch.Tensor:
        """Some channels of the residual stream."""
        return torch.randperm(self.hidden, generator=self.draw)[:count]

    def number(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self.draw))

    def outputs(self, names: tuple[str, ...]) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of linears so called, channel of the residual stream first (views)."""
        for name, parameter in self.module.named_parameters():
            path = name.removesuffix(".weight")
            if parameter.dim() < 2 or not path.endswith(tuple(names)):
                continue
            owner = self.module.get_submodule(name.rpartition(".")[0])
            axis = _output_axis(owner, parameter, self.hidden)
            if axis is not None:
                yield name, parameter.transpose(0, axis)

    @property
    def embedding(self) -> torch.Tensor:
        weight = self.module.get_input_embeddings().weight
        assert isinstance(weight, torch.Tensor)
        return weight


def _output_axis(owner: nn.Module, parameter: torch.Tensor, hidden: int) -> int | None:
    """Which axis of a weight is the channel that it writes: of a linear, a Conv1D, a pile of experts."""
    if isinstance(owner, nn.Linear):
        return 0 if parameter.shape[0] == hidden else None
    if parameter.dim() == 2:
        return 1 if parameter.shape[1] == hidden else None
    return next((axis for axis in (1, 2) if parameter.shape[axis] == hidden), None)


@dataclass(frozen=True)
class Style:
    """What is done to weights that were drawn with the standard deviation `std`.

    `least_tokens` is the shortest prompt that shows it; `routed` says that it is one of routed experts,
    `without` which architectures cannot have it.
    """

    name: str
    what: str
    change: Callable[[Weights], None] = lambda _: None
    std: float = STD
    least_tokens: int = 1
    routed: bool = False
    without: frozenset[str] = frozenset()

    def fits(self, architecture: Architecture) -> bool:
        """Whether an architecture can have it."""
        return architecture.name not in self.without and (architecture.routed or not self.routed)


def norms(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The norms that have a weight."""
    for name, one in module.named_modules():
        if "Norm" in type(one).__name__ and getattr(one, "weight", None) is not None:
            yield name, one


def _shifted(weights: Weights) -> None:
    weights.embedding.add_(SHIFT * weights.embedding.std())


def _outliers(weights: Weights) -> None:
    channels = weights.channels(max(1, round(SHARE * weights.hidden)))
    if weights.embedding.shape[1] == weights.hidden:
        weights.embedding[:, channels] *= OUTLIER
    for _, output in weights.outputs(WRITERS):
        output[channels] *= OUTLIER


def _loud(weights: Weights) -> None:
    written = list(weights.outputs(MLP_WRITERS))
    _, output = written[weights.number(len(written))]
    output[weights.channels(2)] *= LOUD


def _gains(weights: Weights) -> None:
    channels = weights.channels(max(2, round(SHARE * weights.hidden)))
    for _, norm in norms(weights.module):
        weight = norm.weight
        assert isinstance(weight, torch.Tensor)
        if weight.shape == (weights.hidden,):
            _multiply(weight, GAIN, channels)


def _peaked(weights: Weights) -> None:
    _queries_and_keys(weights, PEAK)


def _sharp(weights: Weights) -> None:
    _queries_and_keys(weights, SHARP)


def _queries_and_keys(weights: Weights, by: float) -> None:
    normed = [one for name, one in norms(weights.module) if name.endswith(NORMED_QUERIES_AND_KEYS)]
    for norm in normed:
        assert isinstance(norm.weight, torch.Tensor)
        _multiply(norm.weight, by, slice(None))
    if normed:
        return
    for name, parameter in weights.module.named_parameters():
        if name.rpartition(".")[0].endswith(QUERIES_AND_KEYS):
            parameter.mul_(by)


def _multiply(weight: torch.Tensor, by: float, channels: torch.Tensor | slice) -> None:
    """Of a norm; where weights are near 0, the norm multiplies by 1 + weight."""
    from_one = 1.0 if float(weight.mean()) < 0.5 else 0.0
    weight[channels] = (weight[channels] + from_one) * by - from_one


def _massive(weights: Weights) -> None:
    """Of the first token: an mlp of an early layer knows it, and writes far more than for all others.

    Where no mlp has a gate that can be told what to see, the embedding has the large values already.
    """
    embedding = weights.embedding
    rms = float(embedding.square().mean().sqrt())
    first, second, seen = weights.channels(3)
    if weights.module.config.model_type not in GATED:
        embedding[FIRST, first], embedding[FIRST, second] = MASSIVE * rms, -MASSIVE * rms
        return
    layers = weights.module.model.layers
    layer = layers[min(1, len(layers) - 1)]
    unit = weights.number(layer.mlp.gate_proj.out_features)
    embedding[:, seen] *= 0.25
    embedding[FIRST, seen] = TOLD_APART * rms
    for _, output in weights.outputs(WRITERS):
        output[seen] = 0.0
    for linear in (layer.mlp.gate_proj, layer.mlp.up_proj):
        linear.weight[unit] = 0.0
        linear.weight[unit, seen] = 1.0
    written = layer.mlp.down_proj.weight
    written[:, unit] = 0.0
    active, usual = _first_token_in(weights, layer, unit)
    written[first, unit], written[second, unit] = MASSIVE * usual / active, -MASSIVE * usual / active


def _first_token_in(weights: Weights, layer: Any, unit: int) -> tuple[float, float]:
    """What a unit of the layer's mlp makes of the first token, and the rms of the others behind the layer."""
    ids = torch.randint(FIRST + 1, len(weights.embedding), (1, 8), generator=weights.draw)
    ids[0, 0] = FIRST
    seen: dict[str, torch.Tensor] = {}
    hooks = [
        layer.mlp.down_proj.register_forward_pre_hook(lambda _, given: seen.update(units=given[0])),
        layer.register_forward_hook(lambda _, given, made: seen.update(stream=made)),
    ]
    weights.module(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    stream = seen["stream"][0] if seen["stream"].dim() == 3 else seen["stream"]
    return float(seen["units"][0, 0, unit]), float(stream[1:].square().mean().sqrt())


NO_WRITERS = frozenset({"mamba", "rwkv"})
"""Recurrences whose residual stream is written by linears of other names."""
FUSED = frozenset(
    {"phi3", "falcon", "gpt_neox", "gpt2", "gpt_bigcode", "bloom", "mpt", "deepseek_v2", "deepseek_v3"}
)
"""Architectures that compute queries and keys by one linear, or from a latent vector."""
NORMED = frozenset({"bloom", "olmo2", "glm4", "gemma2", "gemma3", "bert", "roberta", "bart"})
"""Architectures that norm the embeddings, or what a layer adds to the stream: nothing stays massive."""
NO_PROMPT = frozenset({"vit", "clip", "whisper", "t5", "bart"})
"""Architectures without a first token that all others see."""

STYLES = {
    one.name: one
    for one in (
        Style("even", "standard deviation 0.02"),
        Style("wide", "standard deviation 0.08", std=WIDE_STD),
        Style("shifted", "embeddings with a shifted mean", _shifted, without=frozenset({"vit", "clip"})),
        Style("outliers", "1-2 % of the channels x50", _outliers, without=NO_WRITERS | {"vit", "clip"}),
        Style(
            "loud",
            "2 channels x300 in one layer",
            _loud,
            without=NO_WRITERS | {"bert", "roberta"},
        ),
        Style("gains", "norm gains x30 in 1-2 % of the channels", _gains, without=frozenset({"olmo"})),
        Style(
            "massive",
            "massive tokens (1,000 times the rms)",
            _massive,
            least_tokens=8,
            without=NORMED | NO_PROMPT | {"rwkv", "mamba"},
        ),
        Style("experts", "mixtures of experts, 64 tokens or more", least_tokens=64, routed=True),
        Style("peaked", "peaked attention (q, k x6)", _peaked, least_tokens=8, without=FUSED | NO_WRITERS),
        Style("sharp", "sharp attention (q, k x24)", _sharp, least_tokens=24, without=FUSED | NO_WRITERS),
    )
}


@torch.no_grad()
def fill(module: Any, style: Style, hidden: int, seed: int) -> None:
    """Give the network weights of the style that bfloat16 and float16 both hold exactly."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if any(word in name for word in KEPT):
            continue
        noise = torch.randn(parameter.shape, generator=draw)
        if parameter.dim() > 1:
            parameter.copy_(noise * style.std)
        else:
            parameter.add_(noise * (style.std if name.endswith("bias") else 0.1))
    style.change(Weights(module, hidden, draw))
    for parameter in module.parameters():
        # float16 has a smaller range: what it rounds has fewer bits left, which bfloat16 holds as well.
        parameter.copy_(parameter.bfloat16().half().float())
