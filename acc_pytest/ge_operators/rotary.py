"""Rotary position embeddings."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .registry import GeCall, Unrounded, ge_operator


def _half(x: torch.Tensor) -> torch.Tensor:
    """The second half of each head negated, before the first."""
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)


def _interleaved(x: torch.Tensor) -> torch.Tensor:
    """Each pair of neighbours with the second negated and before the first."""
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


_MODES: dict[object, Callable[[torch.Tensor], torch.Tensor]] = {
    0: _half,
    1: _interleaved,
    "half": _half,
    "interleave": _interleaved,
}


def _turned(call: GeCall, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: object) -> Unrounded:
    call.need(mode in _MODES, f"rotation {mode!r:.100} is not known")
    call.need(x.shape[-1] % 2 == 0 and cos.shape == sin.shape, "cos and sin do not fit the heads")
    call.need(call.common(x, cos) == x.shape, "cos and sin do not fit the heads")
    partner = _MODES[mode](x)
    return Unrounded(x * cos + partner * sin, 2, lambda: (x * cos).abs() + (partner * sin).abs())


@ge_operator("RotaryMul", "x r1 r2", rotary_mode="half")
def _rotary_mul(call: GeCall, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Unrounded:
    return _turned(call, x, cos, sin, call.attrs["rotary_mode"])


@ge_operator("RotaryPositionEmbedding", "x cos sin rotate?", mode=0)
def _rotary(
    call: GeCall, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rotate: torch.Tensor | None
) -> Unrounded:
    call.need(rotate is None, "a rotation matrix of its own")
    return _turned(call, x, cos, sin, call.attrs["mode"])


@ge_operator("ApplyRotaryPosEmb", "query key cos sin", layout=1, rotary_mode="half")
def _apply(
    call: GeCall, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> list[Unrounded]:
    call.need(call.attrs["layout"] == 1, "only layout 1 (BSND) is known")
    return [_turned(call, x, cos, sin, call.attrs["rotary_mode"]) for x in (query, key)]
