"""Arithmetic and comparisons element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from .registry import REQUIRED, GeCall, Unrounded, ge_operator

_Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _binary(types: str, compute: _Binary, singly: bool = True) -> None:
    @ge_operator(types, "x1 x2")
    def body(call: GeCall, x1: torch.Tensor, x2: torch.Tensor) -> Unrounded:
        call.common(x1, x2)
        return Unrounded(compute(x1, x2), singly=singly)


def unary(types: str, compute: Callable[[torch.Tensor], torch.Tensor], singly: bool = False) -> None:
    """Register a function of one tensor that torch has; `singly` is of `Unrounded`."""

    @ge_operator(types, "x")
    def body(_call: GeCall, x: torch.Tensor) -> Unrounded:
        return Unrounded(compute(x), singly=singly)


def _divided(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    if x1.is_floating_point() or x2.is_floating_point():
        return x1 / x2
    return torch.div(x1, x2, rounding_mode="trunc")


_binary("Add AddV2", torch.add)
_binary("Sub", torch.sub)
_binary("Mul", torch.mul)
_binary("Div RealDiv", _divided)
_binary("FloorDiv", torch.floor_divide)
_binary("FloorMod", torch.remainder)
_binary("Mod", torch.fmod)
_binary("Maximum", torch.maximum)
_binary("Minimum", torch.minimum)
_binary("SquaredDifference", lambda x1, x2: (x1 - x2).square(), singly=False)
_binary("Xlogy", torch.xlogy, singly=False)
_binary("Equal", torch.eq)
_binary("NotEqual", torch.ne)
_binary("Greater", torch.gt)
_binary("GreaterEqual", torch.ge)
_binary("Less", torch.lt)
_binary("LessEqual", torch.le)
_binary("LogicalAnd", torch.logical_and)
_binary("LogicalOr", torch.logical_or)
_binary("BitwiseAnd", torch.bitwise_and)
_binary("BitwiseOr", torch.bitwise_or)
_binary("BitwiseXor", torch.bitwise_xor)

unary("Neg", torch.neg, singly=True)
unary("Abs", torch.abs, singly=True)
unary("Expm1", torch.expm1)
unary("Log1p", torch.log1p)
unary("Sqrt", torch.sqrt)
unary("Rsqrt", torch.rsqrt)
unary("Square", torch.square, singly=True)
unary("Reciprocal", torch.reciprocal)
unary("Erf", torch.erf)
unary("Floor", torch.floor)
unary("Ceil", torch.ceil)
unary("Trunc", torch.trunc)
unary("Sign", torch.sign)
unary("Round", torch.round)
unary("LogicalNot", torch.logical_not)
unary("Invert", torch.bitwise_not)
unary("IsNan", torch.isnan)
unary("IsInf", torch.isinf)
unary("IsFinite", torch.isfinite)


@ge_operator("Sin Cos", "x")
def _of_angles(call: GeCall, x: torch.Tensor) -> Unrounded:
    # An argument of many turns is reduced in the operator's own precision: its error is relative to it.
    return Unrounded(x.sin() if call.op_type == "Sin" else x.cos(), magnitude=x.abs)


@ge_operator("Exp", "x", base=-1.0, scale=1.0, shift=0.0)
def _exp(call: GeCall, x: torch.Tensor) -> Unrounded:
    power = x * call.attrs["scale"] + call.attrs["shift"]
    base = call.attrs["base"]
    call.need(base == -1.0 or base > 0, f"base {base} has no powers")
    value = power.exp() if base == -1.0 else torch.pow(base, power)
    return Unrounded(value, magnitude=lambda: value * (1 + power.abs()))


@ge_operator("Log", "x", base=-1.0, scale=1.0, shift=0.0)
def _log(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    base = call.attrs["base"]
    call.need(base == -1.0 or (base > 0 and base != 1), f"base {base} has no logarithms")
    logarithm = (x * call.attrs["scale"] + call.attrs["shift"]).log()
    return logarithm if base == -1.0 else torch.div(logarithm, math.log(base))


@ge_operator("Pow", "x1 x2")
def _pow(call: GeCall, x1: torch.Tensor, x2: torch.Tensor) -> Unrounded:
    call.common(x1, x2)
    value = torch.pow(x1, x2)
    # By way of x2 * log(x1), whose rounding becomes relative to the result.
    return Unrounded(value, magnitude=lambda: value.abs() * (1 + torch.xlogy(x2, x1.abs()).abs()))


@ge_operator("Muls Adds", "x value#", value=REQUIRED)
def _with_number(call: GeCall, x: torch.Tensor, value: float) -> Unrounded:
    return Unrounded((torch.mul if call.op_type == "Muls" else torch.add)(x, value), singly=True)


@ge_operator("Axpy", "x1 x2", alpha=REQUIRED)
def _axpy(call: GeCall, x1: torch.Tensor, x2: torch.Tensor) -> Unrounded:
    call.common(x1, x2)
    return _sum_of([x1, x2 * call.attrs["alpha"]])


@ge_operator("AxpyV2", "x1 x2 alpha")
def _axpy_of(call: GeCall, x1: torch.Tensor, x2: torch.Tensor, alpha: torch.Tensor) -> Unrounded:
    call.common(x1, x2, alpha)
    return _sum_of([x1, x2 * alpha])


@ge_operator("AddN AccumulateNV2", "*x", N=0)
def _add_all(_call: GeCall, x: list[torch.Tensor]) -> Unrounded:
    return _sum_of(x)


@ge_operator("Addcmul Addcdiv", "input_data x1 x2 value")
def _addc(
    call: GeCall, x: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, value: torch.Tensor
) -> Unrounded:
    call.common(x, x1, x2, value)
    return _sum_of([x, (x1 * x2 if call.op_type == "Addcmul" else x1 / x2) * value])


@ge_operator("Lerp", "start end weight")
def _lerp(call: GeCall, start: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> Unrounded:
    call.common(start, end, weight)
    return _sum_of([start, weight * end, -weight * start])


@ge_operator("ClipByValue ClipByValueV2", "x clip_value_min clip_value_max")
def _clip(call: GeCall, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    call.common(x, low, high)
    return torch.minimum(torch.maximum(x, low), high)


def _sum_of(addends: Sequence[torch.Tensor]) -> Unrounded:
    """A sum of several that are no inputs: what cancels leaves the rounding of each."""
    value = sum(addends[1:], start=addends[0])
    return Unrounded(
        value, len(addends), lambda: sum((addend.abs() for addend in addends[1:]), start=addends[0].abs())
    )


# Activation functions, gated ones included.


_FAST = 1.702
"""FastGelu: x * sigmoid(1.702 x)."""


def _gelus(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gelu by erf, and by tanh."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), 0.5 * x * (1 + torch.tanh(inner))


@ge_operator("Gelu", "x")
def _gelu(_call: GeCall, x: torch.Tensor) -> Unrounded:
    # Kernels compute it by erf or by tanh; the graph does not say which.
    by_erf, by_tanh = _gelus(x)
    return Unrounded(by_erf, magnitude=x.abs, others=(by_tanh,))


@ge_operator("GeluV2", "x", approximate="none")
def _gelu_v2(call: GeCall, x: torch.Tensor) -> Unrounded:
    form = call.attrs["approximate"]
    call.need(form in ("none", "tanh"), f"approximate={form!r:.100} is not known")
    return Unrounded(_gelus(x)[form == "tanh"], magnitude=x.abs)


@ge_operator("FastGelu FastGeluV2", "x")
def _fast_gelu(_call: GeCall, x: torch.Tensor) -> Unrounded:
    return Unrounded(x * torch.sigmoid(_FAST * x), magnitude=x.abs)


unary("Sigmoid", torch.sigmoid)
unary("Silu", functional.silu)
unary("LogSigmoid", functional.logsigmoid)
unary("Mish", functional.mish)
unary("Relu", torch.relu)
unary("Tanh", torch.tanh)
unary("Softplus", lambda x: torch.logaddexp(x, torch.zeros_like(x)))
unary("HardSwish", functional.hardswish)


@ge_operator("Swish", "x", scale=1.0)
def _swish(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(call.attrs["scale"] * x)


@ge_operator("LeakyRelu", "x", negative_slope=0.0)
def _leaky_relu(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    return torch.where(x >= 0, x, x * call.attrs["negative_slope"])


@ge_operator("Elu", "x", alpha=1.0, scale=1.0, input_scale=1.0)
def _elu(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    alpha, scale, inner = (call.attrs[name] for name in ("alpha", "scale", "input_scale"))
    return torch.where(x > 0, x, alpha * torch.expm1(x * inner)) * torch.tensor(scale)


@ge_operator("SoftplusV2", "x", beta=1.0, threshold=20.0)
def _softplus_v2(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    return functional.softplus(x, call.attrs["beta"], call.attrs["threshold"])


@ge_operator("SwiGlu", "x", dim=-1)
def _swiglu(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    left, right = _halves(call, x)
    return functional.silu(left) * right


@ge_operator("GeGluV2", "x", dim=-1, approximate=1, activate_left=False)
def _geglu(call: GeCall, x: torch.Tensor) -> list[Unrounded]:
    """Outputs are the gated product and the activated half. `approximate` 1 is tanh, 0 erf."""
    left, right = _halves(call, x)
    active, linear = (left, right) if call.attrs["activate_left"] else (right, left)
    call.need(call.attrs["approximate"] in (0, 1), "only approximate 0 and 1 are known")
    gelu = _gelus(active)[call.attrs["approximate"]]
    return [
        Unrounded(gelu * linear, magnitude=lambda: (active * linear).abs()),
        Unrounded(gelu, magnitude=active.abs),
    ]


def _halves(call: GeCall, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    axis = call.axis(call.attrs["dim"], x.ndim)
    call.need(x.shape[axis] % 2 == 0, f"{x.shape[axis]} columns have no halves")
    return torch.chunk(x, 2, axis)
