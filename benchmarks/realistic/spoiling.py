"""How one module is made to compute something slightly else: as a kernel would, with the weights as they are.

Weights stay what they are in the checkpoint, so that a digest of them tells nothing. What is computed wrongly
is computed in float32 and rounded once, so that the size of a fault is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from detecting.torch_spoiling import rewritten, with_argument
from torch import nn

GROUP = 128
"""Inputs that share a scale in a weight of few bits."""
FP8_LARGEST = 448.0


def with_result(module: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let `module` give another result: `change` gets the first of its tensors in float32, a copy."""
    forward = module.forward

    def changed(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        first = result[0] if isinstance(result, tuple) else result
        spoilt = change(first.detach().float().clone()).to(first.dtype)
        return (spoilt, *result[1:]) if isinstance(result, tuple) else spoilt

    module.forward = changed


def with_weight(linear: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let `linear` multiply by another weight: `change` gets its own in float32."""
    weight = change(linear.weight.detach().float())
    bias = None if linear.bias is None else linear.bias.detach().float()
    linear.forward = lambda given: nn.functional.linear(given.float(), weight, bias).to(given.dtype)


def few_bits(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """The weight through whole numbers of so many bits, a scale for each group of its inputs."""
    groups = list(weight.split(GROUP, -1))
    largest = 2 ** (bits - 1) - 1
    for number, group in enumerate(groups):
        scale = group.abs().amax(-1, keepdim=True).clamp(min=1e-12) / largest
        groups[number] = (group / scale).round() * scale
    return torch.cat(groups, -1)


def sums_rounded(linear: Any, dtype: torch.dtype) -> None:
    """Let `linear` round its sum to `dtype` after every product."""
    weight, bias = linear.weight.detach().float(), linear.bias

    def summed(given: torch.Tensor) -> torch.Tensor:
        wide = given.float()
        total = wide.new_zeros(*given.shape[:-1], len(weight))
        for place in range(weight.shape[1]):
            total = (total + wide[..., place, None] * weight[:, place]).to(dtype).float()
        return (total if bias is None else total + bias.float()).to(given.dtype)

    linear.forward = summed


def truncated(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded to `dtype` towards zero."""
    rounded = values.to(dtype)
    beyond = rounded.float().abs() > values.abs()
    # The bits of a float without its sign count up with its size.
    return torch.where(beyond, (rounded.view(torch.int16) - 1).view(dtype), rounded).float()


def through_fp8(values: torch.Tensor) -> torch.Tensor:
    """Through float8 e4m3 with a scale for the tensor."""
    scale = values.float().abs().max().clamp(min=1e-12) / FP8_LARGEST
    return ((values.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(values.dtype)


def keys_and_values(attention: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let `attention` read other keys and values than it made. Raises `LookupError` for another source."""
    begin = "attention_interface: Callable"
    new = f"key_states, value_states = change(key_states), change(value_states)\n    {begin}"
    rewritten(attention, begin, new, change=change)


def frequencies(rotary: Any, base: float) -> None:
    """Let `rotary` compute with a base that is so many times as large; its buffer stays."""
    forward = rotary.forward

    def changed(*args: Any, **kwargs: Any) -> Any:
        right = rotary.inv_freq
        places = torch.arange(len(right), dtype=torch.float32, device=right.device) / len(right)
        rotary.inv_freq = (right.float() * base**-places).to(right.dtype)
        try:
            return forward(*args, **kwargs)
        finally:
            rotary.inv_freq = right

    rotary.forward = changed


def experts_swapped(experts: Any, pair: tuple[int, int]) -> None:
    """Let tokens of one expert go to another, and back."""

    def swapped(chosen: torch.Tensor, _: Any) -> torch.Tensor:
        first, second = (chosen == number for number in pair)
        return torch.where(first, pair[1], torch.where(second, pair[0], chosen))

    with_argument(experts, "top_k_index", swapped)
