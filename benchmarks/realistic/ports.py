"""Right ports that round at other places than golden's own code does in the dtype of mine.

A profile beside golden is made by golden's own code, so that a mine of the same code would be one of its runs
bit by bit. Kernels of devices are not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .styles import WRITERS, norms


def _plain(module: Any) -> None:
    """Every operator rounds its result, as transformers writes it."""


def _fused(module: Any) -> None:
    """Norms, and the product of gate and activation, are one kernel each that rounds once."""
    for _, norm in norms(module):
        _in_float32(norm)
    for one in module.modules():
        if all(
            isinstance(getattr(one, name, None), nn.Linear) for name in ("gate_proj", "up_proj", "down_proj")
        ):
            one.forward = _gated(one)


def _in_float32(norm: Any) -> None:
    wide = copy.deepcopy(norm).float()
    epsilons = [name for name in ("eps", "variance_epsilon") if hasattr(norm, name)]

    def forward(given: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        for name in epsilons:
            setattr(wide, name, getattr(norm, name))
        return wide(given.float(), *args, **kwargs).to(given.dtype)

    norm.forward = forward


def _gated(mlp: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(given: torch.Tensor) -> torch.Tensor:
        inner = mlp.act_fn(mlp.gate_proj(given)).float() * mlp.up_proj(given).float()
        return mlp.down_proj(inner.to(given.dtype))

    return forward


def _split(module: Any) -> None:
    """Linears that write to the residual stream are sums of two halves, as two devices would have them."""
    linears: list[Any] = [
        one for path, one in module.named_modules() if isinstance(one, nn.Linear) and path.endswith(WRITERS)
    ]
    for linear in linears:
        linear.forward = _halves(linear)


def _halves(linear: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(given: torch.Tensor) -> torch.Tensor:
        half = given.shape[-1] // 2
        first = nn.functional.linear(given[..., :half], linear.weight[:, :half])
        return first + nn.functional.linear(given[..., half:], linear.weight[:, half:], linear.bias)

    return forward


PORTS: dict[str, Callable[[Any], None]] = {"plain": _plain, "fused": _fused, "split": _split}
