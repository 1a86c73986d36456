"""Quantisation that several families share: dynamic scales, packed scales, int8 products."""

from __future__ import annotations

import torch

from .registry import As, OperatorCall, Outputs


def quantise_dynamic(call: OperatorCall, value: torch.Tensor, *, asymmetric: bool) -> Outputs:
    """Quantise each row of wide `value` by its own scale: int8, scale float32[, offset float32].

    Symmetric: scale = max|x| / 127. Asymmetric: scale = (max - min) / 255, offset = -(max + min) / (2
    scale). A row of zeros has scale 0 and quantises to 0.
    """
    if not asymmetric:
        scale = value.abs().amax(-1) / 127
        return As(value / scale[..., None], torch.int8), As(scale, torch.float32)
    high, low = value.amax(-1), value.amin(-1)
    scale = (high - low) / 255
    offset = -(high + low) / (2 * scale)
    quantised = value / scale[..., None] + offset[..., None]
    return As(quantised, torch.int8), As(scale, torch.float32), As(offset, torch.float32)


def quantise_static(
    call: OperatorCall, value: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None
) -> As:
    """value * scale + offset, int8."""
    shift = 0 if offset is None else call.wide(offset)
    return As(value * call.wide(scale) + shift, torch.int8)


def descale(call: OperatorCall, scale: torch.Tensor) -> torch.Tensor:
    """A dequantisation scale, wide: int64/uint64 hold the bits of a float32 in their low half."""
    if scale.dtype in (torch.int64, getattr(torch, "uint64", torch.int64)):
        pairs = scale.contiguous().reshape(-1).view(torch.float32)
        return call.wide(pairs[::2].reshape(scale.shape))
    return call.wide(scale)


def integer_matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product of integer matrices, exact, as float64: |sum| < 2^53 for any int8 operands."""
    return torch.matmul(x.double(), y.double())
