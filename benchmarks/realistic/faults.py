"""Small faults, each in one module of mine: which modules can have it, how large, how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import spoiling

FIRST_LAYER = 1
"""Places are in the layers and the head; those of embeddings and pictures are none."""
LARGE = 20.0
"""Times the median channel: a channel beyond it is none of the normal ones."""


@dataclass
class Spot:
    """One module of a network that is free to be spoiled; `dtype` is that of mine, whatever the module's."""

    module: Any
    amount: float
    dtype: torch.dtype
    draw: torch.Generator

    def number(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self.draw))


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    `fits` says of a module, by its path, whether it can have it. `amounts` are those it has as a rule; empty
    where there is no more or less of it. One with amounts has any amount up to `most`. `styles` are the
    weights that it is put into, by default all.
    """

    what: str
    fits: Callable[[str, Any], bool]
    put: Callable[[Spot], None]
    amounts: tuple[float, ...] = ()
    most: float = 1.0
    styles: tuple[str, ...] = ()

    def places(self, network: nn.Module) -> list[str]:
        """The paths of the modules of a network that can have it."""
        return [path for path, module in network.named_modules() if self.fits(path, module)]


def _is_linear(path: str, module: Any) -> bool:
    return isinstance(module, nn.Linear) and ".layers." in path


def _is_head(path: str, module: Any) -> bool:
    return path == "lm_head"


def _is_norm(path: str, module: Any) -> bool:
    return path.endswith("norm") and ".layers." in path and _epsilon(module) != ""


def _is_linear_or_norm(path: str, module: Any) -> bool:
    return _is_linear(path, module) or _is_norm(path, module)


def _is_attention(path: str, module: Any) -> bool:
    return path.endswith(".self_attn") and isinstance(getattr(module, "scaling", None), float)


def _is_rotary(path: str, module: Any) -> bool:
    return path.endswith("rotary_emb") and hasattr(module, "inv_freq")


def _is_layer(path: str, module: Any) -> bool:
    return path.rpartition(".")[0].endswith(".layers")


def _is_layer_or_mlp(path: str, module: Any) -> bool:
    return _is_layer(path, module) or path.endswith(".mlp")


def _is_experts(path: str, module: Any) -> bool:
    return path.endswith(".mlp.experts")


def _epsilon(norm: Any) -> str:
    """The name of a norm's epsilon."""
    return next((name for name in ("eps", "variance_epsilon") if hasattr(norm, name)), "")


def _weight_off(spot: Spot) -> None:
    """Each element by a random share of itself."""
    weight = spot.module.weight
    noise = torch.randn(weight.shape, generator=spot.draw).to(weight.device)
    spoiling.with_weight(spot.module, lambda weight: weight * (1.0 + spot.amount * noise))


def _int8(spot: Spot) -> None:
    spoiling.with_weight(spot.module, lambda weight: spoiling.few_bits(weight, 8))


def _int4(spot: Spot) -> None:
    spoiling.with_weight(spot.module, lambda weight: spoiling.few_bits(weight, 4))


def _sums_rounded(spot: Spot) -> None:
    spoiling.sums_rounded(spot.module, spot.dtype)


def _truncated(spot: Spot) -> None:
    spoiling.with_weight(spot.module, lambda weight: weight)
    forward = spot.module.forward
    spot.module.forward = lambda given: spoiling.truncated(forward(given.float()), spot.dtype).to(given.dtype)


def _scaled(spot: Spot) -> None:
    spoiling.with_result(spot.module, lambda result: result * (1.0 + spot.amount))


def _channel(spot: Spot) -> None:
    place = spot.number(1_000_000)

    def shifted(result: torch.Tensor) -> torch.Tensor:
        result[..., place % result.shape[-1]] += spot.amount
        return result

    spoiling.with_result(spot.module, shifted)


def _softmax_scale(spot: Spot) -> None:
    spot.module.scaling *= 1.0 + spot.amount


def _fp8(spot: Spot) -> None:
    spoiling.keys_and_values(spot.module, spoiling.through_fp8)


def _rope_base(spot: Spot) -> None:
    spoiling.frequencies(spot.module, 1.0 + spot.amount)


def _norm_eps(spot: Spot) -> None:
    setattr(spot.module, _epsilon(spot.module), spot.amount)


def _token(spot: Spot, factor: float) -> None:
    """One token of the prompt, not the first."""
    place = spot.number(1_000_000)

    def changed(result: torch.Tensor) -> torch.Tensor:
        rows = result.reshape(-1, result.shape[-1])
        if len(rows) > 1:
            rows[1 + place % (len(rows) - 1)] *= factor
        return rows.reshape(result.shape)

    spoiling.with_result(spot.module, changed)


def _token_zeroed(spot: Spot) -> None:
    _token(spot, 0.0)


def _token_negated(spot: Spot) -> None:
    _token(spot, -1.0)


def _normal(result: torch.Tensor) -> torch.Tensor:
    """Which channels are none of the few large ones."""
    sizes = result.reshape(-1, result.shape[-1]).square().mean(0).sqrt()
    return sizes <= LARGE * sizes.median()


def _normal_scaled(spot: Spot) -> None:
    spoiling.with_result(
        spot.module, lambda result: torch.where(_normal(result), result * (1.0 + spot.amount), result)
    )


def _normal_noise(spot: Spot) -> None:
    def noisy(result: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result.device)
        return torch.where(_normal(result), result * (1.0 + spot.amount * noise), result)

    spoiling.with_result(spot.module, noisy)


def _experts_swapped(spot: Spot) -> None:
    first = spot.number(spot.module.num_experts)
    second = (first + 1 + spot.number(spot.module.num_experts - 1)) % spot.module.num_experts
    spoiling.experts_swapped(spot.module, (first, second))


FAULTS = {
    "softmax_scale": Fault(
        "the scale of softmax", _is_attention, _softmax_scale, (0.3, 0.05), 3.0, ("wide", "peaked", "gains")
    ),
    "weight": Fault("the weight of a linear is off", _is_linear, _weight_off, (0.03, 0.01)),
    "head": Fault("the weight of the head is off", _is_head, _weight_off, (0.05,)),
    "kv_fp8": Fault("keys and values go through fp8", _is_attention, _fp8),
    "int8": Fault("a weight of int8 in groups of 128", _is_linear, _int8),
    "int4": Fault("a weight of int4 in groups of 128", _is_linear, _int4),
    "sums": Fault("sums are rounded at every step", _is_linear, _sums_rounded),
    "truncated": Fault("a result is rounded towards zero", _is_linear, _truncated),
    "rope_base": Fault("the base of the rotation", _is_rotary, _rope_base, (0.01, 0.1), 3.0),
    "norm_eps": Fault("the epsilon of a norm", _is_norm, _norm_eps, (1e-4, 1e-3), 1.0),
    "channel": Fault("a constant on one channel", _is_linear_or_norm, _channel, (1e-3,), 1e3),
    "scaled": Fault("a result is scaled", _is_linear_or_norm, _scaled, (0.01, 0.005)),
    "token_zeroed": Fault("one token is zero", _is_layer_or_mlp, _token_zeroed),
    "token_negated": Fault("one token is negated", _is_layer_or_mlp, _token_negated),
    "normal_scaled": Fault(
        "all normal channels are scaled", _is_layer, _normal_scaled, (0.3,), 1.0, ("massive",)
    ),
    "normal_noise": Fault(
        "noise in all normal channels", _is_layer, _normal_noise, (0.3,), 1.0, ("massive",)
    ),
    "expert": Fault("two experts are swapped", _is_experts, _experts_swapped),
}
