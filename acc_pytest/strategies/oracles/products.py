"""Products, by einsum in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .expected import Expected, U, half_spacing
from .table import Inputs, Param, oracle

_TYPES = {1: torch.float16, 27: torch.bfloat16}


def _product(x: torch.Tensor, y: torch.Tensor, p: Param) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact product, and what summing it in float32 can lose: every term is rounded, and every sum."""
    left = "...km" if p["transposeA"] else "...mk"
    right = "...nk" if p["transposeB"] else "...kn"
    rule = f"{left},{right}->...mn"
    value = torch.einsum(rule, x.double(), y.double())
    terms = x.shape[-2] if p["transposeA"] else x.shape[-1]
    return value, terms * U * torch.einsum(rule, x.double().abs(), y.double().abs())


@oracle("MatmulOperation")
def matmul(p: Param, t: Inputs) -> Sequence[Expected]:
    """x y."""
    value, error = _product(t["x"], t["y"], p)
    return [Expected(value, t["x"].dtype, error)]


@oracle("LinearOperation")
def linear(p: Param, t: Inputs) -> Sequence[Expected]:
    """Float, accumulating, einsum and int8 products."""
    x, weight = t["x"], t["weight"]
    if p["matmulType"] == 1:
        value = torch.einsum("mbk,bkn->mbn", x.double(), weight.double())
        size = torch.einsum("mbk,bkn->mbn", x.double().abs(), weight.double().abs())
        return [Expected(value, x.dtype, x.shape[-1] * U * size)]
    value, error = _product(x, weight, p)
    bias = t.get("bias")
    if x.dtype == torch.int8:
        value = value + (0 if bias is None else bias.double())
        value = value * t["deqScale"].double()
        if "perTokenScale" in t:
            value = value * t["perTokenScale"].double()[:, None]
        # the integers are exact; widening them and two products by scales are rounded
        return [Expected(value, _TYPES[p["outDataType"]], 4 * U * value.abs())]
    if bias is not None:
        if bias.dtype in (torch.float16, torch.bfloat16):
            error = error + half_spacing(value.abs() + error, bias.dtype)  # a kernel of its own adds it
        row = bias.double()[:, None] if bias.ndim == 2 else bias.double()
        value = value + row
        error = error + U * value.abs()
    if "accum" in t:
        value = value + t["accum"].double()
        return [Expected(value, t["accum"].dtype, error + U * value.abs())]
    return [Expected(value, x.dtype, error)]
