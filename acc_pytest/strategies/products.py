"""Shape rules of products: LinearOperation, MatmulOperation, StridedBatchMatmulOperation."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch

from ..operators.layout import nd_to_nz
from .table import rule
from .values import FLOATS, SHORT, Draw, Drawn, flag, floats, integer, integers, one_of


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
