"""Operators element by element: formulas in float64, derivatives by autograd, casts by Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from .expected import TINY, Expected, U, same
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
