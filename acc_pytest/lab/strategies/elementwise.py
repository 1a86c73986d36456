"""Shape rules of operators element by element: ActivationOperation, ElewiseOperation, WhereOperation."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch

from ...operators.elewise import (
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
from ...operators.layout import nd_to_nz
from .values import FLOATS, SHORT, Draw, Drawn, axis, flag, floats, integer, integers, one_of, rule, shape


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


# Shape rules of products: LinearOperation, MatmulOperation, StridedBatchMatmulOperation.


class _Sizes(NamedTuple):
    """`batch` products of `[m, k]` and `[k, n]` in `dtype`, whose weights may lie in tiles."""

    m: int
    k: int
    n: int
    batch: int
    dtype: torch.dtype
    tiled: bool


class _Operands(NamedTuple):
    """The shapes of x, of the weight (in rows and columns) and of the result, and the parameters so far."""

    x: list[int]
    weight: list[int]
    result: list[int]
    tiled: bool
    param: dict[str, Any]

    def stored(self, weight: torch.Tensor, group: int = 16) -> torch.Tensor:
        """`weight` as the operator is given it: in tiles, and a matrix where x is one."""
        if self.tiled:
            return nd_to_nz(weight, group)
        return weight.reshape(self.weight[-2:]) if len(self.x) == 2 else weight

    def of_columns(self, draw: Draw) -> list[int]:
        """The shape of one value for each column: of all matrices, or of each."""
        *lead, _, n = self.result
        return one_of(draw, [n], [1, n], [*lead, n])


@rule("LinearOperation")
def linear(draw: Draw) -> Drawn:
    """Float products with and without bias, accumulating, einsum, int8 with its scales; tiled weights."""
    mode = one_of(draw, "plain", "batched", "accumulating", "einsum", "int8", "int8 by token")
    sizes = _sizes(draw, mode)
    if mode == "einsum":
        return _einsum(draw, sizes)
    operands = _operands(draw, mode, sizes)
    if mode.startswith("int8"):
        return _eight_bit(draw, operands, by_token="token" in mode)
    weight = floats(draw, operands.weight, sizes.dtype)
    inputs = [floats(draw, operands.x, sizes.dtype), operands.stored(weight)]
    if mode == "accumulating":
        accumulator = [floats(draw, operands.result, torch.float32)]
        return {**operands.param, "hasBias": False, "enAccum": True}, [*inputs, *accumulator]
    biased = flag(draw)
    if biased:
        inputs.append(floats(draw, operands.of_columns(draw), one_of(draw, sizes.dtype, torch.float32)))
    return {**operands.param, "hasBias": biased}, inputs


def _sizes(draw: Draw, mode: str) -> _Sizes:
    m, k, n = integer(draw, 1, 9), integer(draw, 1, 40), integer(draw, 1, 9)
    batch, dtype = integer(draw, 1, 3), one_of(draw, *(SHORT if mode == "einsum" else FLOATS))
    if mode == "accumulating" or not flag(draw):
        return _Sizes(m, k, n, batch, dtype, tiled=False)
    # a tiled weight has whole tiles of columns
    return _Sizes(m, k, 32, batch, one_of(draw, *SHORT), tiled=True)


def _einsum(draw: Draw, sizes: _Sizes) -> Drawn:
    """Batches between the rows and columns of x, with one weight for all of them or for each."""
    m, k, n, batch, dtype, tiled = sizes
    weight, biased = floats(draw, [batch, k, n] if flag(draw) else [k, n], dtype), flag(draw)
    x = floats(draw, [m, batch, k], dtype)
    if tiled:
        weight = nd_to_nz(weight if weight.ndim == 3 else weight[None])
    bias = [floats(draw, [n], dtype)] if biased else []
    return {"transposeB": False, "hasBias": biased, "matmulType": 1}, [x, weight, *bias]


def _operands(draw: Draw, mode: str, sizes: _Sizes) -> _Operands:
    """Either operand may be transposed; a weight may have a batch of its own, or one of size 1."""
    m, k, n, batch, _, tiled = sizes
    first = mode != "accumulating" and flag(draw)
    second = flag(draw)
    lead = [batch] if mode == "batched" or (mode.startswith("int8") and flag(draw)) else []
    x, weight = [*lead, *([k, m] if first else [m, k])], [n, k] if second else [k, n]
    batched = bool(lead) and flag(draw)
    if tiled or batched or flag(draw):
        weight = [batch if batched else 1, *weight]
    return _Operands(x, weight, [*lead, m, n], tiled, {"transposeA": first, "transposeB": second})


def _eight_bit(draw: Draw, operands: _Operands, *, by_token: bool) -> Drawn:
    x = integers(draw, operands.x, -128, 127, torch.int8)
    weight = integers(draw, operands.weight, -128, 127, torch.int8)
    bias, half = flag(draw), flag(draw)
    inputs = [x, operands.stored(weight, 32)]
    if bias:
        inputs.append(integers(draw, operands.of_columns(draw), -1000, 1000, torch.int32))
    # small enough for the results to stay inside float16
    scale = floats(draw, operands.of_columns(draw), torch.float32, positive=True) / 2048
    param = {**operands.param, "hasBias": bias, "outDataType": 1 if half else 27}
    if by_token:
        *lead, m, _ = operands.result
        rows = floats(draw, one_of(draw, [m * prod(lead)], [*lead, m]), torch.float32, positive=True)
        return {**param, "quantMode": 2}, [*inputs, scale, rows / 64 if half else rows]
    if half and flag(draw):
        # the bits in the low half, and what the conversion of the device's library sets above them
        scale = scale.view(torch.int32).long() + one_of(draw, 0, 1 << 46)
    return param, [*inputs, scale]


@rule("MatmulOperation")
def matmul(draw: Draw) -> Drawn:
    """Products of matrices, either transposed."""
    m, k, n = integer(draw, 1, 9), integer(draw, 1, 40), integer(draw, 1, 9)
    first, second, dtype = flag(draw), flag(draw), one_of(draw, *FLOATS)
    x = floats(draw, [k, m] if first else [m, k], dtype)
    return {"transposeA": first, "transposeB": second}, [x, floats(draw, [n, k] if second else [k, n], dtype)]


@rule("StridedBatchMatmulOperation")
def strided_batch_matmul(draw: Draw) -> Drawn:
    """Heads behind each other, or side by side in the rows of each operand; batches of different sizes."""
    batch, heads = integer(draw, 1, 3), integer(draw, 1, 3)
    first, second = flag(draw), flag(draw)
    param: dict[str, Any] = {"transposeA": first, "transposeB": second, "batch": batch, "headNum": heads}
    keys = ("m", "n", "k", "lda", "ldb", "ldc", "strideA", "strideB", "strideC")
    lists: dict[str, list[int]] = {key: [] for key in keys}
    sizes = [0, 0]
    for _ in range(batch):
        m, n, k = integer(draw, 1, 5), integer(draw, 1, 5), integer(draw, 1, 9)
        for key, size in zip("mnk", (m, n, k)):
            lists[key].append(size)
        matrices = ((k, m) if first else (m, k), (n, k) if second else (k, n), (m, n))
        for letter, (rows, columns) in zip("abc", matrices):
            side_by_side = flag(draw)
            lists[f"ld{letter}"].append(columns * heads if side_by_side else columns)
            lists[f"stride{letter.upper()}"].append(columns if side_by_side else rows * columns)
        sizes = [sizes[0] + m * k * heads, sizes[1] + n * k * heads]
    return {**param, **lists}, [floats(draw, [size], torch.float16) for size in sizes]
