"""Shape rules of rotary embedding and of joining partial attention."""

from __future__ import annotations

import torch

from .table import rule
from .values import FLOATS, SHORT, Draw, Drawn, counts, flag, floats, integer, integers, numbers, one_of


@rule("RopeOperation")
def rope(draw: Draw) -> Drawn:
    """Heads of query and key, side by side or apart, rotated by halves, by quarters or by pairs."""
    size = 4 * integer(draw, 1, 4)
    batch, length = integer(draw, 1, 3), integer(draw, 1, 4)
    dtype, form = one_of(draw, *FLOATS), one_of(draw, "beside", "apart", "batch")
    table = torch.float32 if flag(draw) else dtype
    angles = floats(draw, [batch * length, size], torch.float32)
    vectors = []
    for _ in range(2):
        heads = integer(draw, 1, 3)
        vector = floats(draw, [batch * length, heads * size], dtype)
        shapes = {"apart": [batch * length, heads, size], "batch": [batch, length, heads, size]}
        vectors.append(vector.reshape(shapes.get(form, [batch * length, heads * size])))
    param = {"rotaryCoeff": one_of(draw, 2, 4, size)}
    return param, [*vectors, angles.cos().to(table), angles.sin().to(table), counts([length] * batch)]


@rule("RopeGradOperation")
def rope_grad(draw: Draw) -> Drawn:
    """Gradients of packed sequences, each from the first row of the tables on."""
    lengths, size = numbers(draw, 1, 3, 0, 5), 2 * integer(draw, 1, 8)
    angles = floats(draw, [max(lengths) + integer(draw, 1, 2), size], torch.float32)
    gradients = [floats(draw, [sum(lengths), integer(draw, 1, 3) * size], torch.float16) for _ in range(2)]
    return {"c_qSeqLen": lengths}, [*gradients, angles.cos().half(), angles.sin().half()]


@rule("RopeQConcatOperation")
def rope_q_concat(draw: Draw) -> Drawn:
    """Rotated heads with what is put behind them."""
    size, dtype = 2 * integer(draw, 1, 8), one_of(draw, *SHORT)
    tokens, heads, width = integer(draw, 1, 6), integer(draw, 1, 3), integer(draw, 1, 8)
    angles = floats(draw, [tokens, size], torch.float32)
    query, tail = floats(draw, [tokens, heads * size], dtype), floats(draw, [tokens, heads, width], dtype)
    return {}, [query, angles.cos().to(dtype), angles.sin().to(dtype), tail]


@rule("DynamicNTKOperation")
def dynamic_ntk(draw: Draw) -> Drawn:
    """Positions of some sequences, frequencies for each."""
    lengths, half = numbers(draw, 1, 3, 1, 5), integer(draw, 1, 8)
    positions = integers(draw, [sum(lengths)], 0, 50, torch.int32)
    frequencies = floats(draw, [len(lengths), half], torch.float32)
    return {"outDataType": one_of(draw, 1, 27)}, [positions, frequencies, counts(lengths)]


@rule("FaUpdateOperation")
def fa_update(draw: Draw) -> Drawn:
    """Partial results of some ranks with the logarithms of their sums."""
    ranks, rows, size = integer(draw, 1, 4), integer(draw, 1, 6), integer(draw, 1, 8)
    sums = floats(draw, [ranks, rows], torch.float32)
    return {"sp": ranks}, [sums, floats(draw, [ranks, rows, size], torch.float32)]
