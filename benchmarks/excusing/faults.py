"""Faults of a port, each in one module, as large at the logits as is asked for."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from detecting.torch_spoiling import rewritten, with_argument
from realistic import spoiling
from torch import nn

Put = Callable[[Any, str, float], None]
"""Put a fault of an amount into the module at a path of a network."""
TRIES = 5
QUERIES, KEYS, OUTPUTS = ("q_proj", "wqkv"), ("k_proj", "wqkv"), ("o_proj", "wo")
ATTENTIONS, MLPS = ("self_attn", "att"), ("mlp", "ffn")
NORMS = ("input_layernorm", "post_attention_layernorm", "norm", "ln_a", "ln_b", "ln_f")
WEIGHTS = ("q_proj", "v_proj", "o_proj", "down_proj", "gate_proj", "wqkv", "wo", "w13", "w2")


@dataclass(frozen=True)
class Fault:
    """A kind of fault: modules whose last name is one of `names` can have it; with an `amount`, its usual
    one, it has any size."""

    what: str
    names: tuple[str, ...]
    put: Put
    amount: float = 0.0

    def places(self, network: nn.Module) -> list[str]:
        """The paths of the modules that can have it."""
        paths = [path for path, _ in network.named_modules()]
        if self.names == ("layer",):
            return [path for path in paths if path.rpartition(".")[0].endswith(("layers", "blk"))]
        return [path for path in paths if path.rpartition(".")[2] in self.names]


def _scaled(network: Any, path: str, amount: float) -> None:
    spoiling.with_result(network.get_submodule(path), lambda result: result * (1.0 + amount))


def _token(network: Any, path: str, amount: float) -> None:
    def changed(result: torch.Tensor) -> torch.Tensor:
        result[:, -1] *= 1.0 + amount
        return result

    spoiling.with_result(network.get_submodule(path), changed)


def _shifted(network: Any, path: str, amount: float) -> None:
    spoiling.with_result(network.get_submodule(path), lambda result: result + amount * result.std())


def _softmax_scale(network: Any, path: str, amount: float) -> None:
    network.get_submodule(path).scaling *= 1.0 + amount


def _rope_base(network: Any, path: str, amount: float) -> None:
    spoiling.frequencies(network.get_submodule(path), 1.0 + amount)


def _epsilon(network: Any, path: str, amount: float) -> None:
    network.get_submodule(path).variance_epsilon = amount


def _residual(network: Any, path: str, amount: float) -> None:
    """It is added in part only, or not at all."""
    new = "max(0.0, 1.0 - amount) * residual + hidden_states"
    rewritten(network.get_submodule(path), "residual + hidden_states", new, amount=amount)


def _mask(network: Any, path: str, _: float) -> None:
    attention = network.get_submodule(path)
    attention.is_causal = False

    def drop(mask: torch.Tensor | None, __: object) -> torch.Tensor | None:
        return torch.zeros_like(mask) if mask is not None and mask.is_floating_point() else None

    with_argument(attention, "attention_mask", drop)


def _keys_rolled(network: Any, path: str, _: float) -> None:
    attention = network.get_submodule(path.rpartition(".")[0])
    rows = attention.head_dim

    def rolled(weight: torch.Tensor) -> torch.Tensor:
        if not path.endswith("wqkv"):
            return weight.roll(rows, 0)
        sizes = [attention.heads * rows, attention.groups * rows, attention.groups * rows]
        query, key, value = weight.split(sizes)
        return torch.cat([query, key.roll(rows, 0), value])

    spoiling.with_weight(network.get_submodule(path), rolled)


def _heads_swapped(network: Any, path: str, _: float) -> None:
    linear = network.get_submodule(path)
    rows, forward = network.get_submodule(path.rpartition(".")[0]).head_dim, linear.forward

    def swapped(given: torch.Tensor) -> torch.Tensor:
        heads = list(given.split(rows, -1))
        return forward(torch.cat([heads[1], heads[0], *heads[2:]], -1))  # type: ignore[no-any-return]

    linear.forward = swapped


def _other_layer(network: Any, path: str, _: float) -> None:
    """The weight of the next layer that has such a linear, of the first one after the last."""
    name, shape = path.rpartition(".")[2], network.get_submodule(path).weight.shape
    same = [
        each
        for each, module in network.named_modules()
        if each.endswith(f".{name}") and module.weight.shape == shape
    ]
    other = network.get_submodule(same[(same.index(path) + 1) % len(same)]).weight.detach().float()
    spoiling.with_weight(network.get_submodule(path), lambda _: other)


def _bias(network: Any, path: str, amount: float) -> None:
    linear = network.get_submodule(path)
    bias = linear.bias
    if bias is not None:
        forward = linear.forward
        linear.forward = lambda given: forward(given) - bias


FAULTS = (
    Fault("an mlp or attention is scaled", (*MLPS, *ATTENTIONS), _scaled, 0.1),
    Fault("a linear or norm is scaled", (*WEIGHTS, *NORMS), _scaled, 0.1),
    Fault("the last token of a module is scaled", (*MLPS, *ATTENTIONS), _token, 0.3),
    Fault("a constant is added", (*MLPS, *OUTPUTS), _shifted, 0.1),
    Fault("the scale of softmax", ATTENTIONS, _softmax_scale, 0.3),
    Fault("the base of the rotation", ("rotary_emb", "rope"), _rope_base, 0.3),
    Fault("the epsilon of a norm", NORMS, _epsilon, 0.01),
    Fault("a residual is dropped in part", ("layer",), _residual, 0.2),
    Fault("no causal mask", ATTENTIONS, _mask),
    Fault("key heads are rolled", KEYS, _keys_rolled),
    Fault("two heads are swapped", OUTPUTS, _heads_swapped),
    Fault("the weight of another layer", WEIGHTS, _other_layer),
    Fault("a bias is missing", ("q_proj", "k_proj", "v_proj"), _bias),
)


@dataclass(frozen=True)
class Placed:
    """A fault in its place; `size` is what it does to the logits (relative L2, in float32)."""

    fault: Fault
    path: str
    amount: float
    size: float

    def put(self, network: Any) -> None:
        """Put it into another network of the same port."""
        self.fault.put(network, self.path, self.amount)

    def __str__(self) -> str:
        amount = f" {self.amount:.3g}" if self.amount else ""
        return f"{self.fault.what}{amount} at {self.path}, logits {self.size:.1%} off"


def place(exact: nn.Module, off: Callable[[Any], float], wanted: float, draw: random.Random) -> Placed:
    """A drawn fault: of some places or amounts, what comes nearest to the wanted size.

    `exact` is the port in float32, `off` measures how far logits of such a network are from golden's.
    """
    fitting = [fault for fault in FAULTS if fault.places(exact)]
    fault = draw.choice(fitting)
    places = fault.places(exact)
    paths = [draw.choice(places)] * TRIES if fault.amount else draw.sample(places, min(TRIES, len(places)))
    amount, tried = fault.amount, []
    for path in paths:
        wrong = copy.deepcopy(exact)
        fault.put(wrong, path, amount)
        tried.append(Placed(fault, path, amount, off(wrong)))
        if fault.amount:
            amount *= min(10.0, max(0.1, wanted / max(tried[-1].size, 1e-9)))
    return min(tried, key=lambda each: abs(each.size - wanted))
