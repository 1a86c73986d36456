"""ElewiseOperation: arithmetic, comparison, casts and quantisation element by element."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .layout import as_type, torch_dtype
from .param import Key, Param, Schema, choice, data_type, flag, integer, number
from .quantise import quantise_dynamic
from .registry import As, OperatorCall, Output, Outputs, Tensors, operator

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
