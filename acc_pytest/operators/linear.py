"""LinearOperation and its kin: float, int8 with dequantisation, accumulating, batched per head."""

from __future__ import annotations

import torch

from .layout import descale, integer_matmul, nz_to_nd, torch_dtype
from .registry import As, OperatorCall, Outputs, Param, Tensors, choice, data_type, flag, operator

EINSUM = 1
BLOCK = 512
"""Columns of a weight that are widened at a time."""
_MATMUL = {"transposeA": flag(), "transposeB": flag()}
PER_TOKEN = 2


def _inputs(param: Param) -> list[str]:
    names = ["x", "weight"]
    if param["hasBias"]:
        names.append("bias")
    if param["enAccum"]:
        names.append("accum")
    if param["quantMode"] == PER_TOKEN:
        return [*names, "deqScale", "perTokenScale"]
    # int8 weights come with their scale; the dtypes, not a parameter, say so
    return [*names, "deqScale?"]


LINEAR = {
    "transposeA": flag(),
    "transposeB": flag(True),
    "hasBias": flag(True),
    "outDataType": data_type(),
    "enAccum": flag(),
    "matmulType": choice(0, "matmul", "einsum mbk,bkn->mbn"),
    "quantMode": choice(0, "none", "per channel", "per token"),
}


@operator("LinearOperation", LINEAR, _inputs, aliases=lambda p: {0: "accum"} if p["enAccum"] else {})
def linear(call: OperatorCall, t: Tensors) -> Outputs:
    """x W^T (+ bias): `[m, k]` or `[b, m, k]` times `[n, k]`, `[b, n, k]` or NZ `[b, n1, k', n0]`.

    With int8 operands: (x W^T + bias) * deqScale (* perTokenScale of the row); in float64 these may be
    whole numbers before they are rounded. With `enAccum`: + accum, which the result replaces. `matmulType` 1
    multiplies `[m, b, k]` by `[b, k, n]`.
    """
    p = call.param
    x = t["x"].transpose(-1, -2) if p["transposeA"] else t["x"]
    weight = weight_matrix(call, t["weight"], x.shape[-1], transposed=p["transposeB"])
    call.need(
        x.ndim >= 2 and weight.shape[-2] == x.shape[-1],
        f"x {list(t['x'].shape)} and weight {list(t['weight'].shape)} do not multiply "
        f"(transposeA {p['transposeA']}, transposeB {p['transposeB']})",
    )
    einsum = p["matmulType"] == EINSUM
    product = _product(call, x.transpose(0, 1) if einsum else x, weight)
    if einsum:
        product = product.transpose(0, 1)
    if "bias" in t:
        if t["bias"].dtype in (torch.float16, torch.bfloat16):
            # the sum is a kernel of its own after the product has been written
            product = call.between(product, t["bias"].dtype)
        product = product + _per_column(call, t["bias"], product, batched=not einsum)
    if t["x"].dtype == torch.int8 or (t["x"].dtype == torch.float64 and "deqScale" in t):
        return [_dequantised(call, t, product, batched=not einsum)]
    if "accum" in t:
        return [As(product + call.wide(t["accum"]), t["accum"].dtype)]
    call.need("deqScale" not in t, f"deqScale is given, but x is {t['x'].dtype} and not int8")
    return [As(product, torch_dtype(p["outDataType"], t["x"].dtype))]


def weight_matrix(
    call: OperatorCall, weight: torch.Tensor, inner: int, *, transposed: bool, columns: int | None = None
) -> torch.Tensor:
    """The weight as `[k, n]` or `[b, k, n]`, its NZ padding cut to `inner` rows."""
    if weight.ndim == 4:
        weight = nz_to_nd(weight)
        weight = weight[0] if weight.shape[0] == 1 else weight
        weight = weight[..., :columns, :inner] if transposed else weight[..., :inner, :columns]
    call.need(weight.ndim in (2, 3), f"weight has {weight.ndim} dimensions, not 2, 3 or (NZ) 4")
    return weight.transpose(-1, -2) if transposed else weight


def _product(call: OperatorCall, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.int8 and weight.dtype == torch.int8:
        return integer_matmul(x, weight)
    if weight.ndim == 2 and weight.dtype != call.accumulate and weight.shape[-1] > BLOCK:
        return _by_columns(call, x, weight)
    return torch.matmul(call.wide(x), call.wide(weight))


def _by_columns(call: OperatorCall, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The product a block of columns at a time, so that a wide copy of the weight never leaves the caches.

    Twice as fast for few rows, for which widening costs more than multiplying; the sums are the same.
    """
    wide, columns = call.wide(x), weight.shape[-1]
    product = torch.empty(*x.shape[:-1], columns, dtype=call.accumulate)
    for first in range(0, columns, BLOCK):
        block = slice(first, first + BLOCK)
        product[..., block] = wide @ call.wide(weight[:, block])
    return product


def _per_column(
    call: OperatorCall, values: torch.Tensor, product: torch.Tensor, *, batched: bool
) -> torch.Tensor:
    """`[n]`, `[1, n]`, `[1]`, or one row for each matrix of the batch `[b, n]`."""
    wide = descale(call, values) if values.dtype != torch.int32 else values.double()
    if batched and wide.ndim == 2 and product.ndim == 3 and wide.shape[0] > 1:
        wide = wide[:, None]
    call.need(
        wide.shape[-1] in (1, product.shape[-1]),
        f"a row of {wide.shape[-1]} values does not fit {product.shape[-1]} columns",
    )
    return wide


def _dequantised(call: OperatorCall, t: Tensors, product: torch.Tensor, *, batched: bool) -> As:
    call.need("deqScale" in t, "int8 operands need deqScale")
    scale = _per_column(call, t["deqScale"], product, batched=batched)
    result = product.to(torch.promote_types(call.accumulate, torch.float32)) * scale
    if "perTokenScale" in t:
        rows = call.wide(t["perTokenScale"]).flatten()
        rows = rows.reshape(product.shape[:-1]) if rows.numel() == product[..., 0].numel() else rows
        result = result * rows[..., None]
    natural = torch.bfloat16 if t["deqScale"].dtype == torch.float32 else torch.float16
    return As(result.to(call.accumulate), torch_dtype(call.param["outDataType"], natural))


@operator("MatmulOperation", _MATMUL, ("x", "y"))
def matmul(call: OperatorCall, t: Tensors) -> Outputs:
    """x y, as the library had it before LinearOperation."""
    x = t["x"].transpose(-1, -2) if call.param["transposeA"] else t["x"]
    y = weight_matrix(call, t["y"], x.shape[-1], transposed=call.param["transposeB"])
    call.need(
        x.ndim >= 2 and y.shape[-2] == x.shape[-1],
        f"x {list(t['x'].shape)} and y {list(t['y'].shape)} do not multiply",
    )
    return [As(_product(call, x, y), t["x"].dtype)]
