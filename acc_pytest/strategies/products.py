"""Shape rules of products: LinearOperation, MatmulOperation, StridedBatchMatmulOperation."""

from __future__ import annotations

from typing import Any

import torch

from .table import rule
from .values import FLOATS, SHORT, Draw, Drawn, floats, one_of, whole, wholes, yes


@rule("LinearOperation")
def linear(draw: Draw) -> Drawn:
    """Float products with and without bias, accumulating ones, einsum, and int8 with its scales."""
    mode = one_of(draw, "plain", "batched", "accumulating", "einsum", "int8", "int8 by token")
    m, k, n = whole(draw, 1, 9), whole(draw, 1, 40), whole(draw, 1, 9)
    batch = whole(draw, 1, 3)
    if mode == "einsum":
        dtype = one_of(draw, *SHORT)
        einsum = {"transposeB": False, "hasBias": False, "matmulType": 1}
        return einsum, [floats(draw, [m, batch, k], dtype), floats(draw, [batch, k, n], dtype)]
    turned = mode != "accumulating" and yes(draw)
    second = yes(draw)
    lead = [batch] if mode == "batched" else []
    x, weight = [*lead, *([k, m] if turned else [m, k])], [*lead, *([n, k] if second else [k, n])]
    param: dict[str, bool] = {"transposeA": turned, "transposeB": second, "hasBias": False}
    if mode.startswith("int8"):
        return _eight_bit(draw, param, x, weight, n, m, by_token=mode == "int8 by token")
    dtype = one_of(draw, *FLOATS)
    inputs = [floats(draw, x, dtype), floats(draw, weight, dtype)]
    if mode == "accumulating":
        param["enAccum"] = True
        return param, [*inputs, floats(draw, [m, n], torch.float32)]
    param["hasBias"] = yes(draw)
    if param["hasBias"]:
        inputs.append(floats(draw, [n] if not lead else [batch, n], dtype))
    return param, inputs


def _eight_bit(
    draw: Draw, param: dict[str, bool], x: list[int], weight: list[int], n: int, m: int, *, by_token: bool
) -> Drawn:
    left, right = (wholes(draw, size, -128, 127, torch.int8) for size in (x, weight))
    bias = yes(draw)
    more = [wholes(draw, [n], -1000, 1000, torch.int32)] if bias else []
    # small enough for the results to stay inside float16
    scale = floats(draw, [n], torch.float32, positive=True) / 2048
    complete: dict[str, object] = {**param, "hasBias": bias, "outDataType": 27}
    if by_token:
        rows = floats(draw, [m], torch.float32, positive=True)
        return {**complete, "quantMode": 2}, [left, right, *more, scale, rows]
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
