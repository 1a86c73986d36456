"""Matrix products."""

from __future__ import annotations

import torch

from .registry import GeCall, Unrounded, ge_operator


def product(
    call: GeCall, x1: torch.Tensor, x2: torch.Tensor, bias: torch.Tensor | None, turned: tuple[bool, bool]
) -> Unrounded:
    """`x1 @ x2 + bias`, with operands turned as asked; float or whole numbers. Raises `OperatorError`."""
    call.need(x1.ndim >= 2 and x2.ndim >= 2, "a product needs matrices")
    one, other = (matrix.mT if turn else matrix for matrix, turn in zip((x1, x2), turned))
    call.need(one.shape[-1] == other.shape[-2], f"{list(one.shape)} and {list(other.shape)} do not fit")
    rows = call.common_shape(one.shape[:-2], other.shape[:-2])
    call.room((*rows, one.shape[-2], other.shape[-1]))
    if not one.is_floating_point():
        # A float64 holds sums of products of bytes exactly, and multiplies faster than integers do.
        call.need(not other.is_floating_point(), "one of two operands is of whole numbers")
        one, other = one.double(), other.double()
    value = one @ other

    def magnitude() -> torch.Tensor:
        sizes = one.abs() @ other.abs()
        return sizes if bias is None else sizes + bias.abs()

    return Unrounded(value if bias is None else value + bias, one.shape[-1], magnitude)


@ge_operator("MatMul", "x1 x2 bias?", transpose_x1=False, transpose_x2=False)
@ge_operator("MatMulV2 MatMulV3", "x1 x2 bias? offset_w?", transpose_x1=False, transpose_x2=False, offset_x=0)
@ge_operator("BatchMatMul", "x1 x2", adj_x1=False, adj_x2=False)
@ge_operator("BatchMatMulV2 BatchMatMulV3", "x1 x2 bias? offset_w?", adj_x1=False, adj_x2=False, offset_x=0)
def _matmul(
    call: GeCall,
    x1: torch.Tensor,
    x2: torch.Tensor,
    bias: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
) -> Unrounded:
    without = offset is None and call.attrs.get("offset_x", 0) == 0
    call.need(without, "offsets of quantised operands are not known")
    turn = "adj" if call.op_type.startswith("Batch") else "transpose"
    return product(call, x1, x2, bias, (call.attrs[f"{turn}_x1"], call.attrs[f"{turn}_x2"]))


@ge_operator("BiasAdd", "x bias", data_format="NHWC")
def _bias_add(call: GeCall, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    call.need(x.ndim == 2 or call.attrs["data_format"] == "NHWC", "only a bias along the last dimension")
    return x + bias
