"""Operators element by element: formulas in float64, derivatives by autograd, casts by Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from struct import pack, unpack

import numpy as np
import torch

from .attention import attention_of
from .expected import TINY, Expected, U, half_spacing, same
from .norms import by_row
from .table import Inputs, Param, oracle

_SQRT_2_PI = math.sqrt(2 / math.pi)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    return (1 + torch.tanh(x / 2)) / 2


_FUNCTIONS: dict[int, Callable[[torch.Tensor, Param], torch.Tensor]] = {
    1: lambda x, _: torch.maximum(x, torch.zeros_like(x)),
    2: lambda x, p: (
        x / 2 * torch.erfc(-x / math.sqrt(2))
        if p["geluMode"]
        else x / 2 * (1 + torch.tanh(_SQRT_2_PI * (x + 0.044715 * x**3)))
    ),
    3: lambda x, _: x * _sigmoid(1.702 * x),
    4: lambda x, p: x * _sigmoid(p["scale"] * x),
    5: lambda x, _: torch.log2(x) * math.log(2),
    8: lambda x, _: _sigmoid(x),
    9: lambda x, _: x * _sigmoid(1.702 * x),
}


@oracle("ActivationOperation")
def activation(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each function is off by some roundings of its value, and of x where a tail cancels (1 + tanh)."""
    kind, x = p["activationType"], t["x"].double()
    if kind in (6, 7):
        return [_swiglu(kind, p, t, x)]
    value = _FUNCTIONS[kind](x, p)
    size = value.abs() if kind in (5, 8) else value.abs() + x.abs()
    return [Expected(value, t["x"].dtype, 8 * U * size + TINY)]


def _swiglu(kind: int, p: Param, t: Inputs, x: torch.Tensor) -> Expected:
    dim, dtype = p["dim"], t["x"].dtype
    half = x.shape[dim] // 2
    x = x.requires_grad_()
    gate, up = x.narrow(dim, 0, half), x.narrow(dim, half, half)
    value = gate * _sigmoid(gate) * up
    if kind == 6:
        return Expected(value.detach(), dtype, 8 * U * (gate * up).abs().detach() + TINY)
    dy = t["dy"].double()
    (gradient,) = torch.autograd.grad(value, x, dy)
    size = torch.cat(((dy * up).abs() * (1 + gate.abs()), (dy * gate).abs()), dim)
    return Expected(gradient, dtype, 16 * U * size.detach() + TINY)


_CODES = {
    0: torch.float32,
    1: torch.float16,
    2: torch.int8,
    3: torch.int32,
    9: torch.int64,
    27: torch.bfloat16,
}


@oracle("ElewiseOperation")
def elewise(p: Param, t: Inputs) -> Sequence[Expected]:
    """Twenty types: truths by Python's operators, numbers in float64."""
    kind, x = p["elewiseType"], t["x"]
    if kind == 1:
        return [_cast(x, _CODES[p["outTensorType"]])]
    if kind in (7, 11, 12, 13, 14, 16):
        return [_truth(kind, x, t.get("y"))]
    if kind in (6, 17, 18, 19):
        return _quantised(kind, p, t)
    if "y" in t and not x.is_floating_point():
        return [same(_arithmetic(kind, x, t["y"]))]
    wide = x.double()
    if "y" in t:
        value = _arithmetic(kind, wide, t["y"].double())
        return [Expected(value, x.dtype, U * value.abs() + TINY)]
    if kind == 2:
        value = wide * (p["mulsParam"]["varAttr"] if p["varAttr"] is None else p["varAttr"])
        return [Expected(value, x.dtype, 2 * U * value.abs() + TINY)]  # the factor is rounded as well
    if kind == 5:
        return [Expected(0 - wide, x.dtype, torch.zeros_like(wide))]
    value = {3: torch.cos, 4: torch.sin, 20: torch.tanh}[kind](wide)
    # torch's sine and cosine are good to two units in the last place of numbers up to 1
    return [Expected(value, x.dtype, 4 * U * (value.abs() if kind == 20 else torch.ones_like(value)) + TINY)]


def _arithmetic(kind: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if kind == 8:
        return x + y
    if kind == 9:
        return x * y
    return x / y if kind == 10 else x - y


def _cast(x: torch.Tensor, dtype: torch.dtype) -> Expected:
    if dtype.is_floating_point:
        wide = x.double()
        return Expected(wide, dtype, torch.zeros_like(wide))
    # toward zero
    whole = [int(value) for value in x.flatten().tolist()]
    return same(torch.tensor(whole, dtype=dtype).reshape(x.shape))


def _truth(kind: int, x: torch.Tensor, y: torch.Tensor | None) -> Expected:
    if y is None:
        return same(
            torch.tensor([int(not v) for v in x.flatten().tolist()], dtype=torch.int8).reshape(x.shape)
        )
    size = np.broadcast_shapes(x.shape, y.shape)
    left, right = x.expand(size), y.expand(size)
    tests: dict[int, Callable[[float, float], bool]] = {
        11: lambda a, b: bool(a and b),
        12: lambda a, b: bool(a or b),
        13: lambda a, b: a < b,
        14: lambda a, b: a > b,
        16: lambda a, b: a == b,
    }
    pairs = zip(left.flatten().tolist(), right.flatten().tolist())
    return same(
        torch.tensor([int(tests[kind](a, b)) for a, b in pairs], dtype=torch.int8).reshape(left.shape)
    )


def _quantised(kind: int, p: Param, t: Inputs) -> list[Expected]:
    x = t["x"].double()
    if kind == 6:
        return [Expected(x, torch.int8, torch.zeros_like(x))]
    if kind == 19:
        return by_row(x, torch.zeros_like(x), shifted=p["quantParam"]["asymmetric"])
    scale = t["scale"].double()
    offset = t["offset"].double() if "offset" in t else torch.zeros_like(scale)
    if kind == 17:
        small = x / scale + offset
        return [Expected(small, torch.int8, U * ((x / scale).abs() + small.abs()))]
    value = (x - offset) * scale
    return [Expected(value, torch.float16, U * value.abs())]


@oracle("WhereOperation")
def where(p: Param, t: Inputs) -> Sequence[Expected]:
    """One or the other, element by element."""
    size = np.broadcast_shapes(t["cond"].shape, t["x"].shape, t["y"].shape)
    cond, x, y = (t[name].expand(size) for name in ("cond", "x", "y"))
    result = x.clone()
    result[cond == 0] = y[cond == 0]
    return [same(result)]


@oracle("FillOperation")
def fill(p: Param, t: Inputs) -> Sequence[Expected]:
    """A value at some places, or everywhere."""
    if not p["withMask"]:
        return [same(torch.ones(p["outDim"], dtype=torch.float16) * p["value"][0])]
    result = t["x"].clone()
    result[t["mask"].bool()] = p["value"][0]
    return [same(result)]


@oracle("SwigluQuantOperation")
def swiglu_quant(p: Param, t: Inputs) -> Sequence[Expected]:
    """The product, then each row by its largest; what the product is off by counts in steps of its row."""
    half = t["x"].shape[-1] // 2
    gate, up = t["x"].double()[:, :half], t["x"].double()[:, half:]
    value = gate * _sigmoid(gate) * up
    error = 8 * U * (gate * up).abs() + TINY
    largest, off = value.abs().amax(-1), error.amax(-1)
    scale = largest / 127
    rows = torch.where(scale > 0, scale, 1.0)[:, None]
    small = value / rows
    lost = error / rows + small.abs() * (off[:, None] / (127 * rows)) + 3 * U * small.abs()
    return [
        Expected(small, torch.int8, lost),
        Expected(scale, torch.float32, off / 127 + U * scale),
    ]


# Products, by einsum in float64.


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


# Attention for training by torch's own function in float64, its gradients by autograd.


def _heads(p: Param, x: torch.Tensor) -> torch.Tensor:
    """`[b, heads, s, size]` in float64."""
    wide = x.double()
    if p["inputLayout"] == "BNSD":
        return wide
    s, b, _ = wide.shape
    return torch.stack([wide[:, i].reshape(s, p["headNum"], -1).transpose(0, 1) for i in range(b)])


def _laid_out(p: Param, heads: torch.Tensor) -> torch.Tensor:
    if p["inputLayout"] == "BNSD":
        return heads
    return torch.stack([one.transpose(0, 1).flatten(1) for one in heads], 1)


def _hidden(p: Param, t: Inputs, length: int) -> torch.Tensor:
    """Additive: hidden keys are out of reach, and so are, under a mask, those too far back."""
    bias = torch.zeros(length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            if "attenMask" in t and (float(t["attenMask"][i, j]) or i - j > p["preTokens"]):
                bias[i, j] = -torch.inf
    return bias


def _lost(q: torch.Tensor, k: torch.Tensor, scale: float, seen: torch.Tensor) -> torch.Tensor:
    """How far float32 scores may be off, the worst of each row."""
    sums = scale * (q.abs() @ k.abs().transpose(-1, -2))
    return ((q.shape[-1] + 3) * U * sums).where(seen, 0.0).amax(-1)


@oracle("LaserAttentionOperation")
def laser_attention(p: Param, t: Inputs) -> Sequence[Expected]:
    """Head by head; the row statistics as what they are."""
    q, k, v = (_heads(p, t[name]) for name in ("query", "key", "value"))
    each, scale, bias = q.shape[1] // k.shape[1], p["scaleValue"], _hidden(p, t, q.shape[2])
    k = torch.stack([k[:, h // each, :, : q.shape[-1]] for h in range(q.shape[1])], 1)
    v = torch.stack([v[:, h // each] for h in range(q.shape[1])], 1)
    out, error = attention_of(q, k, v, bias, scale)
    scores = scale * (q @ k.transpose(-1, -2)) + bias
    lost, highest = _lost(q, k, scale, (bias == 0)), scores.amax(-1)
    powers = (scores - highest[..., None]).exp()
    spread = (highest[..., None] - scores).where(bias == 0, 0.0)
    total = powers.sum(-1)
    total_off = (powers * (torch.expm1(2 * lost)[..., None] + (scores.shape[-1] + 4) * U + U * spread)).sum(
        -1
    )
    dtype = t["query"].dtype
    return [
        Expected(highest, torch.float32, lost + U * highest.abs()),
        Expected(total, torch.float32, total_off),
        same(torch.zeros(1, dtype=dtype)),
        Expected(_laid_out(p, out), dtype, _laid_out(p, error)),
    ]


@oracle("LaserAttentionGradOperation")
def laser_attention_grad(p: Param, t: Inputs) -> Sequence[Expected]:
    """autograd through softmax; what is lost follows the chain: weights, their gradients, the products."""
    leaves = [_heads(p, t[name]).requires_grad_() for name in ("query", "key", "value")]
    q, key, value = leaves
    each, width, scale = q.shape[1] // key.shape[1], q.shape[-1], p["scaleValue"]
    k, v = (one.repeat_interleave(each, 1) for one in (key[..., :width], value))
    bias, dy = _hidden(p, t, q.shape[2]), _heads(p, t["attentionOutGrad"])
    weights = (scale * (q @ k.transpose(-1, -2)) + bias).softmax(-1)
    out = weights @ v
    gradients = torch.autograd.grad(out, leaves, dy)
    q, k, v, weights, out = (one.detach() for one in (q, k, v, weights, out))
    n = q.shape[2]
    statistics = t["softmaxMax"].double().abs() + t["softmaxSum"].double().log().abs() + 2
    relative = torch.expm1(_lost(q, k, scale, bias == 0) + 4 * U * statistics)[..., None] + 4 * U
    back = dy @ v.transpose(-1, -2)
    mean = (out * dy).sum(-1, keepdim=True)
    far = (
        (v.shape[-1] + 3)
        * U
        * (dy.abs() @ v.abs().transpose(-1, -2) + (out * dy).abs().sum(-1, keepdim=True))
    )
    change = weights * (back - mean) * scale
    change_off = scale * weights * (relative * ((back - mean).abs() + far) + far) + 3 * U * change.abs()
    ones = (change.abs() + change_off, (n + 2) * U)
    dq_off = change_off @ k.abs() + ones[1] * ones[0] @ k.abs()
    dk_off = change_off.transpose(-1, -2) @ q.abs() + ones[1] * ones[0].transpose(-1, -2) @ q.abs()
    dv_off = ((relative + (n + 2) * U) * weights).transpose(-1, -2) @ dy.abs()
    dk_off, dv_off = ((1 + each * U) * one.unflatten(1, (-1, each)).sum(2) for one in (dk_off, dv_off))
    dk_off = torch.nn.functional.pad(dk_off, (0, key.shape[-1] - width))
    found = zip(gradients, (dq_off, dk_off, dv_off), ("query", "key", "value"))
    results = [
        Expected(_laid_out(p, value), t[name].dtype, _laid_out(p, off) + TINY) for value, off, name in found
    ]
    return [*results, same(torch.zeros(1, dtype=t["query"].dtype))]


@oracle("GenAttentionMaskOperation")
def gen_attention_mask(p: Param, t: Inputs) -> Sequence[Expected]:
    """Element by element: sequences, heads, rows, columns."""
    found = [
        float(mask[0, row, column])
        for mask, n in zip(t["mask"], p["seqLen"])
        for _ in range(p["headNum"])
        for row in range(n)
        for column in range(n)
    ]
    return [same(torch.tensor(found, dtype=t["mask"].dtype))]
