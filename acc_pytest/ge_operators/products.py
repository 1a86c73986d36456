"""Matrix products."""

from __future__ import annotations

import torch

from .registry import GeCall, Unrounded, ge_operator


def product(
    call: GeCall, x1: torch.Tensor, x2: torch.Tensor, bias: torch.Tensor | None, turned: tuple[bool, bool]
) -> Unrounded:
    """`x1 @ x2 + bias`, with operands turned as asked; float or whole numbers. Raises `OperatorError`."""
    call.need(x1.ndim >= 2 and x2.ndim >= 2, "a product needs matrices")
    left, right = (matrix.mT if turn else matrix for matrix, turn in zip((x1, x2), turned))
    call.need(left.shape[-1] == right.shape[-2], f"{list(left.shape)} and {list(right.shape)} do not fit")
    rows = call.common_shape(left.shape[:-2], right.shape[:-2])
    call.room((*rows, left.shape[-2], right.shape[-1]))
    if not left.is_floating_point():
        # A float64 holds sums of products of bytes exactly, and multiplies faster than integers do.
        call.need(not right.is_floating_point(), "one of two operands is of whole numbers")
        left, right = left.double(), right.double()
    value = left @ right

    def magnitude() -> torch.Tensor:
        sizes = left.abs() @ right.abs()
        return sizes if bias is None else sizes + bias.abs()

    return Unrounded(value if bias is None else value + bias, left.shape[-1], magnitude)


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
