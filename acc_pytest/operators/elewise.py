"""ElewiseOperation: arithmetic, comparison, casts and quantisation element by element."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .layout import as_type, quantise_dynamic, torch_dtype
from .registry import (
    As,
    Key,
    OperatorCall,
    Output,
    Outputs,
    Param,
    Schema,
    Tensors,
    choice,
    data_type,
    flag,
    integer,
    integers,
    number,
    operator,
)

NAMES = (
    "cast",
    "x * varAttr",
    "cos",
    "sin",
    "-x",
    "quantise",
    "not",
    "x + y",
    "x * y",
    "x / y",
    "and",
    "or",
    "x < y",
    "x > y",
    "x - y",
    "x == y",
    "quantise per channel",
    "dequantise per channel",
    "quantise per token",
    "tanh",
)
CAST, MULS, COS, SIN, NEG, QUANT, NOT, ADD, MUL, DIV = range(1, 11)
AND, OR, LESS, GREATER, SUB, EQUAL, QUANT_CHANNEL, DEQUANT_CHANNEL, DYNAMIC, TANH = range(11, 21)

ELEWISE: Schema = {
    "elewiseType": choice(0, *NAMES, start=1, extra={0: "undefined"}),
    "quantParam": {"inputScale": number(1.0), "asymmetric": flag(), "inputOffset": integer()},
    "mulsParam": {"varAttr": number()},
    "outTensorType": data_type(alias="OutTensorType"),
    # ATB's own CSV tests have it here
    "varAttr": Key("float", None),
}

_UNARY: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    COS: torch.cos,
    SIN: torch.sin,
    NEG: torch.neg,
    TANH: torch.tanh,
}
_TWO: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ADD: torch.add,
    MUL: torch.mul,
    DIV: torch.div,
    SUB: torch.sub,
}
_COMPARE: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    AND: torch.logical_and,
    OR: torch.logical_or,
    LESS: torch.lt,
    GREATER: torch.gt,
    EQUAL: torch.eq,
}


def _inputs(param: Param) -> tuple[str, ...]:
    kind = param["elewiseType"]
    if kind in _TWO or kind in _COMPARE:
        return "x", "y"
    return ("x", "scale", "offset?") if kind in (QUANT_CHANNEL, DEQUANT_CHANNEL) else ("x",)


@operator("ElewiseOperation", ELEWISE, _inputs, by_chip=True)
def elewise(call: OperatorCall, t: Tensors) -> Outputs:
    """One of twenty computations on `x` (and `y`, broadcast from the right as numpy does)."""
    kind = call.param["elewiseType"]
    call.need(kind != 0, "parameter elewiseType is missing")
    x = t["x"]
    if kind == DYNAMIC:
        return _dynamic(call, call.wide(x))
    if kind in _UNARY:
        return [As(_UNARY[kind](call.wide(x)), x.dtype)]
    if "y" in t:
        return [_binary(call, kind, x, t["y"])]
    if kind == MULS:
        outer = call.param["varAttr"]
        return [As(call.wide(x) * (call.param["mulsParam"]["varAttr"] if outer is None else outer), x.dtype)]
    if kind == NOT:
        return [(x == 0).to(torch.int8)]
    if kind == CAST:
        # floats to nearest, integers by truncation toward zero; nothing in between, so it is exact
        return [x.to(torch_dtype(call.param["outTensorType"], x.dtype))]
    return [_quantised(call, kind, t)]


def _binary(call: OperatorCall, kind: int, x: torch.Tensor, y: torch.Tensor) -> Output:
    sizes = zip(reversed(x.shape), reversed(y.shape))
    call.need(
        all(a == b or 1 in (a, b) for a, b in sizes),
        f"x {list(x.shape)} and y {list(y.shape)} do not broadcast",
    )
    if kind in _COMPARE:
        return _COMPARE[kind](x, y).to(torch.int8)
    if not x.is_floating_point():
        return _TWO[kind](x, y).to(x.dtype)
    value = _TWO[kind](call.wide(x), call.wide(y))
    if kind == MUL and x.dtype == torch.float16 and call.soc != "Ascend910B":
        value = value.clamp(-65504, 65504)  # the other chips saturate instead of overflowing
    return As(value, x.dtype)


_EIGHT_BIT = {34: 32768.0, 35: 57344.0, 36: 448.0}
"""Largest value of the 8-bit float types."""


def _dynamic(call: OperatorCall, x: torch.Tensor) -> Outputs:
    target = call.param["outTensorType"]
    if target not in _EIGHT_BIT:
        return quantise_dynamic(call, x, asymmetric=call.param["quantParam"]["asymmetric"])
    scale = x.abs().amax(-1) / _EIGHT_BIT[target]
    return [as_type(x / scale[..., None], target, x.dtype), As(scale, torch.float32)]


def _quantised(call: OperatorCall, kind: int, t: Tensors) -> As:
    x = call.wide(t["x"])
    if kind == QUANT:
        if call.soc != "Ascend950":
            return As(x, torch.int8)  # the kernels of the older chips ignore scale and offset
        quant = call.param["quantParam"]
        scale, shift = (
            call.wide(torch.tensor(quant[k], dtype=t["x"].dtype)) for k in ("inputScale", "inputOffset")
        )
        return as_type(x * scale + shift, call.param["outTensorType"], torch.int8)
    scale = call.wide(t["scale"])
    offset = call.wide(t["offset"]) if "offset" in t else torch.zeros((), dtype=call.accumulate)
    if kind == QUANT_CHANNEL:
        return As(x / scale + offset, torch.int8)
    return As(((x - offset) * scale).clamp(-65504, 65504), torch.float16)


# ActivationOperation: the nonlinear functions and SwiGLU, forward and backward.


RELU, GELU, FAST_GELU, SWISH, LOG, SWIGLU, SWIGLU_BACKWARD, SIGMOID, FASTER_GELU = range(1, 10)
_NAMES = (
    "relu", "gelu", "fast gelu", "swish", "log", "swiglu", "swiglu backward", "sigmoid", "faster gelu",
)  # fmt: skip
ACTIVATION = {
    "activationType": choice(0, *_NAMES, start=1, extra={0: "undefined"}),
    "scale": number(1.0),
    "dim": integer(-1),
    "geluMode": choice(0, "tanh approximation", "exact"),
}


@operator(
    "ActivationOperation",
    ACTIVATION,
    lambda param: ("dy", "x") if param["activationType"] == SWIGLU_BACKWARD else ("x",),
)
def activation(call: OperatorCall, t: Tensors) -> Outputs:
    """One nonlinearity of `x`; SwiGLU halves the dimension `dim`, its backward takes `dy` and `x`."""
    kind = call.param["activationType"]
    call.need(kind != 0, "parameter activationType is missing")
    x = call.wide(t["x"])
    if kind in (SWIGLU, SWIGLU_BACKWARD):
        dim = call.param["dim"]
        call.need(-x.ndim <= dim < x.ndim, f"x has no dimension {dim}")
        call.need(x.shape[dim] % 2 == 0, f"dimension {dim} of x has odd size {x.shape[dim]}")
        gate, up = x.chunk(2, dim)
        if kind == SWIGLU:
            return [As(F.silu(gate) * up, t["x"].dtype)]
        call.need(t["dy"].shape == gate.shape, f"dy {list(t['dy'].shape)} is not half of x {list(x.shape)}")
        dy, s = call.wide(t["dy"]), torch.sigmoid(gate)
        slope = s + gate * s * (1 - s)
        return [As(torch.cat((up * dy * slope, dy * gate * s), dim), t["x"].dtype)]
    return [As(_FUNCTIONS[kind](call, x), t["x"].dtype)]


_FUNCTIONS: dict[int, Callable[[OperatorCall, torch.Tensor], torch.Tensor]] = {
    RELU: lambda _, x: F.relu(x),
    GELU: lambda call, x: F.gelu(x, approximate="none" if call.param["geluMode"] else "tanh"),
    FAST_GELU: lambda _, x: x * torch.sigmoid(1.702 * x),
    SWISH: lambda call, x: x * torch.sigmoid(call.param["scale"] * x),
    LOG: lambda _, x: torch.log(x),
    SIGMOID: lambda _, x: torch.sigmoid(x),
    # the kernels write the two differently (exp(0.851 (x - |x|)) keeps exp small), the function is one
    FASTER_GELU: lambda _, x: x * torch.sigmoid(1.702 * x),
}


# SoftmaxOperation over one or several neighbouring axes.


@operator("SoftmaxOperation", {"axes": integers()}, ("x",))
def softmax(call: OperatorCall, t: Tensors) -> Outputs:
    """Softmax of `x` over all `axes` together; they are neighbours and may count from the end."""
    x = t["x"]
    axes = sorted(axis + x.ndim if axis < 0 else axis for axis in call.param["axes"])
    call.need(
        bool(axes) and axes[0] >= 0 and axes[-1] < x.ndim and axes == list(range(axes[0], axes[-1] + 1)),
        f"parameter axes is {list(call.param['axes'])}; it must name neighbouring axes of {list(x.shape)}",
    )
    first, last = axes[0], axes[-1]
    flat = call.wide(x).flatten(first, last).softmax(first)
    return [As(flat.reshape(x.shape), x.dtype)]
