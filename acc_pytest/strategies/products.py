"""Shape rules of products: LinearOperation, MatmulOperation, StridedBatchMatmulOperation."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ..operators.layout import nd_to_nz
from .table import rule
from .values import FLOATS, SHORT, Draw, Drawn, floats, one_of, whole, wholes, yes


@rule("LinearOperation")
def linear(draw: Draw) -> Drawn:
    """Float products with and without bias, accumulating, einsum, int8 with its scales; tiled weights."""
    mode = one_of(draw, "plain", "batched", "accumulating", "einsum", "int8", "int8 by token")
    m, k, n = whole(draw, 1, 9), whole(draw, 1, 40), whole(draw, 1, 9)
    batch, dtype = whole(draw, 1, 3), one_of(draw, *(SHORT if mode == "einsum" else FLOATS))
    tiled = mode != "accumulating" and yes(draw)
    if tiled:
        n = 32  # a tiled weight has whole tiles of columns
        dtype = one_of(draw, *SHORT)
    if mode == "einsum":
        weight, biased = floats(draw, [batch, k, n] if yes(draw) else [k, n], dtype), yes(draw)
        inputs = [
            floats(draw, [m, batch, k], dtype),
            nd_to_nz(weight if weight.ndim == 3 else weight[None]) if tiled else weight,
        ]
        inputs += [floats(draw, [n], dtype)] if biased else []
        return {"transposeB": False, "hasBias": biased, "matmulType": 1}, inputs
    turned = mode != "accumulating" and yes(draw)
    second = yes(draw)
    lead = [batch] if mode == "batched" or (mode.startswith("int8") and yes(draw)) else []
    x, weights = [*lead, *([k, m] if turned else [m, k])], [n, k] if second else [k, n]
    own = bool(lead) and yes(draw)
    weights = [batch if own else 1, *weights] if tiled or own or yes(draw) else weights
    param: dict[str, bool] = {"transposeA": turned, "transposeB": second, "hasBias": False}
    if mode.startswith("int8"):
        return _eight_bit(draw, param, x, weights, [*lead, m, n], tiled=tiled, by_token="token" in mode)
    weight = floats(draw, weights, dtype)
    inputs = [floats(draw, x, dtype), nd_to_nz(weight) if tiled else weight]
    if mode == "accumulating":
        param["enAccum"] = True
        inputs[1] = weight.reshape(weights[-2:])
        return param, [*inputs, floats(draw, [m, n], torch.float32)]
    if not lead and not tiled:
        inputs[1] = weight.reshape(weights[-2:])
    param["hasBias"] = yes(draw)
    if param["hasBias"]:
        inputs.append(floats(draw, _of_columns(draw, lead, n), one_of(draw, dtype, torch.float32)))
    return param, inputs


def _of_columns(draw: Draw, lead: list[int], n: int) -> list[int]:
    """The shape of one value for each column: of all matrices, or of each."""
    return one_of(draw, [n], [1, n], [*lead, n])


def _eight_bit(
    draw: Draw,
    param: dict[str, bool],
    x: list[int],
    weights: list[int],
    result: list[int],
    *,
    tiled: bool,
    by_token: bool,
) -> Drawn:
    left, right = (wholes(draw, size, -128, 127, torch.int8) for size in (x, weights))
    if tiled:
        right = nd_to_nz(right, 32)
    elif len(x) == 2:
        right = right.reshape(weights[-2:])
    *lead, m, n = result
    bias, half = yes(draw), yes(draw)
    more = [wholes(draw, _of_columns(draw, lead, n), -1000, 1000, torch.int32)] if bias else []
    # small enough for the results to stay inside float16
    scale = floats(draw, _of_columns(draw, lead, n), torch.float32, positive=True) / 2048
    complete: dict[str, object] = {**param, "hasBias": bias, "outDataType": 1 if half else 27}
    if by_token:
        rows = floats(draw, one_of(draw, [m * prod(lead)], [*lead, m]), torch.float32, positive=True)
        return {**complete, "quantMode": 2}, [left, right, *more, scale, rows / 64 if half else rows]
    if half and yes(draw):
        # the bits in the low half, and what the conversion of the device's library sets above them
        scale = scale.view(torch.int32).long() + one_of(draw, 0, 1 << 46)
    return complete, [left, right, *more, scale]


@rule("MatmulOperation")
def matmul(draw: Draw) -> Drawn:
    """Products of matrices, either transposed."""
    m, k, n = whole(draw, 1, 9), whole(draw, 1, 40), whole(draw, 1, 9)
    first, second, dtype = yes(draw), yes(draw), one_of(draw, *FLOATS)
    x = floats(draw, [k, m] if first else [m, k], dtype)
    return {"transposeA": first, "transposeB": second}, [x, floats(draw, [n, k] if second else [k, n], dtype)]


@rule("StridedBatchMatmulOperation")
def strided_batch_matmul(draw: Draw) -> Drawn:
    """Heads behind each other, or side by side in the rows of each operand; batches of different sizes."""
    batch, heads = whole(draw, 1, 3), whole(draw, 1, 3)
    first, second = yes(draw), yes(draw)
    param: dict[str, Any] = {"transposeA": first, "transposeB": second, "batch": batch, "headNum": heads}
    keys = ("m", "n", "k", "lda", "ldb", "ldc", "strideA", "strideB", "strideC")
    lists: dict[str, list[int]] = {key: [] for key in keys}
    sizes = [0, 0]
    for _ in range(batch):
        m, n, k = whole(draw, 1, 5), whole(draw, 1, 5), whole(draw, 1, 9)
        for key, size in zip("mnk", (m, n, k)):
            lists[key].append(size)
        matrices = ((k, m) if first else (m, k), (n, k) if second else (k, n), (m, n))
        for letter, (rows, columns) in zip("abc", matrices):
            beside = yes(draw)
            lists[f"ld{letter}"].append(columns * heads if beside else columns)
            lists[f"stride{letter.upper()}"].append(columns if beside else rows * columns)
        sizes = [sizes[0] + m * k * heads, sizes[1] + n * k * heads]
    return {**param, **lists}, [floats(draw, [size], torch.float16) for size in sizes]
