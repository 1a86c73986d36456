"""Products, by einsum in float64."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack, unpack

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
    x, weight = t["x"], _untiled(t["weight"], t["x"], p)
    if p["matmulType"] == 1:
        matrices = weight.double() if weight.ndim == 3 else weight.double()[None]
        matrices = matrices.expand(x.shape[1], -1, -1)
        value = torch.einsum("mbk,bkn->mbn", x.double(), matrices)
        error = x.shape[-1] * U * torch.einsum("mbk,bkn->mbn", x.double().abs(), matrices.abs())
        if "bias" in t:
            error = error + half_spacing(value.abs() + error, x.dtype)
            value = value + t["bias"].double()
            error = error + U * value.abs()
        return [Expected(value, x.dtype, error)]
    value, error = _product(x, weight, p)
    if x.ndim == 2:
        value, error = value.reshape(value.shape[-2:]), error.reshape(error.shape[-2:])
    bias = t.get("bias")
    if x.dtype == torch.int8:
        value = value + (0 if bias is None else _columns(bias.double(), value))
        scale = t["deqScale"]
        if scale.dtype == torch.int64:
            scale = torch.tensor([unpack("<fi", pack("<q", one))[0] for one in scale.flatten().tolist()])
        value = value * _columns(scale.reshape(t["deqScale"].shape).double(), value)
        if "perTokenScale" in t:
            value = value * t["perTokenScale"].double().reshape(*value.shape[:-1], 1)
        # the integers are exact; widening them and two products by scales are rounded
        return [Expected(value, _TYPES[p["outDataType"]], 4 * U * value.abs())]
    if bias is not None:
        if bias.dtype in (torch.float16, torch.bfloat16):
            error = error + half_spacing(value.abs() + error, bias.dtype)  # a kernel of its own adds it
        value = value + _columns(bias.double(), value)
        error = error + U * value.abs()
    if "accum" in t:
        value = value + t["accum"].double()
        return [Expected(value, t["accum"].dtype, error + U * value.abs())]
    return [Expected(value, x.dtype, error)]


def _untiled(weight: torch.Tensor, x: torch.Tensor, p: Param) -> torch.Tensor:
    """The groups of columns of a tiled weight side by side, without the padding of the summed side."""
    if weight.ndim < 4:
        return weight
    inner = x.shape[-2] if p["transposeA"] else x.shape[-1]
    plain = torch.cat(weight.unbind(-3), -1)
    return plain[..., :inner] if p["transposeB"] else plain[..., :inner, :]


def _columns(values: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    """Values of columns, one row for all matrices or one for each."""
    return values[:, None] if values.ndim == 2 and product.ndim == 3 else values


@oracle("StridedBatchMatmulOperation")
def strided_batch_matmul(p: Param, t: Inputs) -> Sequence[Expected]:
    """Element by element: every factor looked up in the flat operands."""
    a, b = t["a"].double().tolist(), t["b"].double().tolist()
    total = p["headNum"] * sum(m * n for m, n in zip(p["m"], p["n"]))
    value, error = torch.zeros(total, dtype=torch.float64), torch.zeros(total, dtype=torch.float64)
    starts = [0, 0, 0]
    for i, (m, n, k) in enumerate(zip(p["m"], p["n"], p["k"])):
        for head in range(p["headNum"]):
            at, bt, ct = (
                start + head * p[name][i] for start, name in zip(starts, ("strideA", "strideB", "strideC"))
            )
            lda, ldb = p["lda"][i], p["ldb"][i]
            for row in range(m):
                for column in range(n):
                    left = [a[at + (j * lda + row if p["transposeA"] else row * lda + j)] for j in range(k)]
                    right = [
                        b[bt + (column * ldb + j if p["transposeB"] else j * ldb + column)] for j in range(k)
                    ]
                    place = ct + row * p["ldc"][i] + column
                    value[place] = sum(x * y for x, y in zip(left, right))
                    error[place] = k * U * sum(abs(x * y) for x, y in zip(left, right))
        starts = [s + size * p["headNum"] for s, size in zip(starts, (m * k, n * k, m * n))]
    return [Expected(value, t["a"].dtype, error)]
