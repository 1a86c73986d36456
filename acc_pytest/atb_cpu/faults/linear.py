"""Faults of linears: bias, weight layout, accumulation, dequantisation."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..graph import Tensors, Wrong
from .fault import FaultKind, Leaf, is_linear, on_inputs, sized_inputs

WRONG_CHANNEL_SCALE = 8.0
"""A power of two, as a wrong shift would make it; beyond the noise of int8 in all channels together."""


def _is_quantised(leaf: Leaf) -> bool:
    return is_linear(leaf) and leaf.operation.leaf_param.get("outDataType", -1) != -1


def _is_float(leaf: Leaf) -> bool:
    return is_linear(leaf) and not _is_quantised(leaf)


def _has_bias(leaf: Leaf) -> bool:
    return _is_float(leaf) and bool(leaf.operation.leaf_param.get("hasBias"))


def _without_bias(leaf: Leaf) -> Wrong:
    param = {**leaf.operation.leaf_param, "hasBias": False}
    return lambda right, inputs: right(*inputs[:2], param=param)


def _misread_weight(inputs: Tensors) -> Tensors:
    """A weight that lies transposed in memory is read as if it did not."""
    weight = inputs[1]
    return inputs[0], weight.t().reshape(weight.shape), *inputs[2:]


def _narrow(leaf: Leaf) -> Wrong:
    """Partial sums keep half of the mantissa bits of the dtype (float16: 5 of 10, bfloat16: 3 of 7)."""

    def wrong(right: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        output = right(*inputs)[0]
        x, weight = inputs[0].float(), inputs[1].float()
        columns = weight if leaf.operation.leaf_param.get("transposeB", True) else weight.t()
        bits = 5 if output.dtype == torch.float16 else 3
        total = torch.zeros((*x.shape[:-1], columns.shape[0]))
        for k in range(x.shape[-1]):
            total = _rounded(total + x[..., k : k + 1] * columns[:, k], bits)
        if leaf.operation.leaf_param.get("hasBias"):
            total = total + inputs[2].float()
        return (total.reshape(output.shape).to(output.dtype),)

    return wrong


def _rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """`x` with `bits` bits after the leading one."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2 ** (bits + 1)).round(), exponent - bits - 1)


def _wrong_channel(inputs: Tensors, factor: float) -> Tensors:
    """The scale of the first output channel is `factor` times too large.

    910B passes the float32 bits of scales as int64.
    """
    *operands, scale = inputs
    changed = scale.clone()
    if changed.dtype == torch.int64:
        changed[..., 0] = (changed[..., 0].to(torch.int32).view(torch.float32) * factor).view(torch.int32)
    else:
        changed[..., 0] *= factor
    return *operands, changed


LINEAR_KINDS = (
    FaultKind("bias", "the bias of a linear is dropped", _has_bias, _without_bias),
    FaultKind("weight", "a weight is read transposed", _is_float, on_inputs(_misread_weight)),
    FaultKind("low_precision", "a matmul accumulates with half of the mantissa", _is_float, _narrow),
    FaultKind(
        "int8_scale",
        "one channel's int8 scale is 8 times too large",
        _is_quantised,
        sized_inputs(_wrong_channel),
        size=WRONG_CHANNEL_SCALE,
    ),
)
