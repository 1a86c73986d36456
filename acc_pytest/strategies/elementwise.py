"""Shape rules of operators element by element: ActivationOperation, ElewiseOperation, WhereOperation."""

from __future__ import annotations

from typing import Any

import torch

from ..operators.elewise import (
    ADD,
    AND,
    CAST,
    DEQUANT_CHANNEL,
    DIV,
    DYNAMIC,
    EQUAL,
    GREATER,
    LESS,
    MUL,
    MULS,
    NOT,
    OR,
    QUANT,
    QUANT_CHANNEL,
    SUB,
)
from .table import rule
from .values import FLOATS, SHORT, Draw, Drawn, axis, flag, floats, integer, integers, one_of, shape


@rule("ActivationOperation")
def activation(draw: Draw) -> Drawn:
    """Every function; SwiGLU and its gradient halve an even dimension."""
    kind, dtype, size = integer(draw, 1, 9), one_of(draw, *FLOATS), shape(draw)
    param: dict[str, Any] = {"activationType": kind}
    if kind in (6, 7):
        param["dim"] = axis(draw, len(size))
        half = list(size)
        size[param["dim"]] *= 2
        gradient = [floats(draw, half, dtype)] if kind == 7 else []
        return param, [*gradient, floats(draw, size, dtype)]
    if kind == 2:
        param["geluMode"] = integer(draw, 0, 1)
    if kind == 4:
        param["scale"] = one_of(draw, 1.0, 0.5, 1.702)
    return param, [floats(draw, size, dtype, positive=kind == 5)]


_NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.int64)
_CODES = {
    0: torch.float32,
    1: torch.float16,
    2: torch.int8,
    3: torch.int32,
    9: torch.int64,
    27: torch.bfloat16,
}


def _broadcast(draw: Draw) -> tuple[list[int], list[int]]:
    """Two shapes that broadcast: either may have ones or lack leading dimensions."""
    size = shape(draw)
    sides = [[1 if flag(draw) else n for n in size] if flag(draw) else list(size) for _ in range(2)]
    short = integer(draw, 0, 1)
    sides[short] = sides[short][integer(draw, 0, len(size) - 1) :]
    return sides[0], sides[1]


@rule("ElewiseOperation")
def elewise(draw: Draw) -> Drawn:
    """Every type, except quantisation to eight-bit floats, which has no dtype to draw."""
    kind, dtype = integer(draw, 1, 20), one_of(draw, *FLOATS)
    param, inputs = _ELEWISE.get(kind, _one_input)(draw, kind, dtype)
    return {"elewiseType": kind, **param}, inputs


def _one_input(draw: Draw, kind: int, dtype: torch.dtype) -> Drawn:
    return {}, [floats(draw, shape(draw), torch.float16 if kind == QUANT else dtype)]


def _cast(draw: Draw, _kind: int, _dtype: torch.dtype) -> Drawn:
    code = one_of(draw, *_CODES)
    dtype = one_of(draw, *_NUMBERS)
    size = shape(draw)
    x = floats(draw, size, dtype) if dtype.is_floating_point else integers(draw, size, -100, 100, dtype)
    return {"outTensorType": code}, [x]


def _multiple(draw: Draw, _kind: int, dtype: torch.dtype) -> Drawn:
    factor = {"varAttr": one_of(draw, 1.0, -0.5, 0.3, 3.0)}
    param: dict[str, Any] = factor if flag(draw) else {"mulsParam": factor}
    return param, [floats(draw, shape(draw), dtype)]


def _two_inputs(draw: Draw, kind: int, dtype: torch.dtype) -> Drawn:
    left, right = _broadcast(draw)
    if kind in (ADD, MUL, SUB) and flag(draw):
        # sums and products of whole numbers stay inside int32
        return {}, [integers(draw, s, -1000, 1000, torch.int32) for s in (left, right)]
    return {}, [floats(draw, left, dtype), floats(draw, right, dtype, positive=kind == DIV)]


def _truths(draw: Draw, kind: int, _dtype: torch.dtype) -> Drawn:
    truths = [integers(draw, size, 0, 1, torch.int8) for size in _broadcast(draw)]
    return {}, truths[:1] if kind == NOT else truths


def _by_channel(draw: Draw, kind: int, _dtype: torch.dtype) -> Drawn:
    size = shape(draw, 2, 3, 9)
    scale = floats(draw, size[-1:], torch.float16, positive=True)
    offset = [integers(draw, size[-1:], -20, 20, torch.int8)] if flag(draw) else []
    if kind == QUANT_CHANNEL:
        return {}, [floats(draw, size, torch.float16), scale, *offset]
    return {}, [integers(draw, size, -128, 127, torch.int8), scale, *offset]


def _by_row(draw: Draw, _kind: int, _dtype: torch.dtype) -> Drawn:
    shifted, size = flag(draw), shape(draw, 1, 3, 9)
    size[-1] += int(shifted)
    x = floats(draw, size, one_of(draw, *SHORT))
    if shifted:
        x[..., 0] = x.amax(-1) + 1  # a row of equal elements has no range
    return {"quantParam": {"asymmetric": shifted}}, [x]


_ELEWISE = {
    CAST: _cast,
    MULS: _multiple,
    **dict.fromkeys((ADD, MUL, DIV, LESS, GREATER, SUB, EQUAL), _two_inputs),
    **dict.fromkeys((NOT, AND, OR), _truths),
    **dict.fromkeys((QUANT_CHANNEL, DEQUANT_CHANNEL), _by_channel),
    DYNAMIC: _by_row,
}
"""The drawing function of each type that has not one input of any shape alone."""


@rule("WhereOperation")
def where(draw: Draw) -> Drawn:
    """A condition and two sides that broadcast."""
    left, right = _broadcast(draw)
    dtype = one_of(draw, *FLOATS)
    cond = integers(draw, left, 0, 1, torch.int8)
    return {}, [cond, floats(draw, right, dtype), floats(draw, right, dtype)]


@rule("FillOperation")
def fill(draw: Draw) -> Drawn:
    """A value where a mask says so, or a tensor of it."""
    value = one_of(draw, 0.0, 1.0, -3.5, 0.3)
    size = shape(draw)
    if not flag(draw):
        return {"withMask": False, "value": [value], "outDim": size}, []
    mask = integers(draw, size, 0, 1, torch.int8)
    return {"withMask": True, "value": [value]}, [floats(draw, size, one_of(draw, *FLOATS)), mask]


@rule("SwigluQuantOperation")
def swiglu_quant(draw: Draw) -> Drawn:
    """Rows of two halves, each row with a scale of its own."""
    rows, half = integer(draw, 1, 6), integer(draw, 1, 9)
    return {}, [floats(draw, [rows, 2 * half], one_of(draw, torch.float16, torch.bfloat16))]
