"""Shape rules of the operators that norm, rotate and cache a key at once."""

from __future__ import annotations

import torch

from ..operators.layout import nd_to_nz
from .table import rule
from .values import SHORT, Draw, Drawn, distinct, flag, floats, integer, integers, one_of, uniform


def _slots(draw: Draw, tokens: int, rows: int) -> torch.Tensor:
    """Different slots, one of them perhaps skipped."""
    slots = distinct(draw, tokens, rows)
    if flag(draw):
        slots[integer(draw, 0, tokens - 1)] = -1
    return slots


@rule("NormRopeReshapeOperation")
def norm_rope_reshape(draw: Draw) -> Drawn:
    """Some heads of a latent and one rotated part, side by side in a slot."""
    tokens, heads = integer(draw, 1, 4), integer(draw, 1, 2)
    size, rope = integer(draw, 1, 9), 2 * integer(draw, 1, 4)
    dtype, block, blocks = one_of(draw, *SHORT), integer(draw, 1, 3), integer(draw, 4, 5)
    angles = floats(draw, [tokens, rope], torch.float32)
    cache = floats(draw, [blocks, block, 1, heads * size + rope], dtype)
    inputs = [floats(draw, [tokens, heads, size], dtype), floats(draw, [size], dtype)]
    inputs += [floats(draw, [tokens, rope], dtype), angles.cos().to(dtype), angles.sin().to(dtype)]
    param = {"epsilon": one_of(draw, 1e-5, 1e-6, 1e-2), "rotaryCoeff": 2}
    return param, [*inputs, _slots(draw, tokens, blocks * block), cache]


@rule("MlaPreprocessOperation")
def mla_preprocess(draw: Draw) -> Drawn:
    """All caches, quantised by tensor or by token, weights plain or in tiles."""
    mode, by_token, tiled = integer(draw, 0, 3), flag(draw), flag(draw)
    tokens, hidden = integer(draw, 1, 3), integer(draw, 1, 40)
    rank, heads = integer(draw, 1, 20), integer(draw, 1, 2)
    nope, latent, rope, dtype = 16, 32, 16, one_of(draw, *SHORT)
    first, second = latent + rope + rank, heads * (nope + rope)
    inputs: list[torch.Tensor] = [floats(draw, [tokens, hidden], dtype)]
    for width, columns in ((hidden, first), (rank, second)):
        inputs += [floats(draw, [width], dtype), floats(draw, [width], dtype)]
        inputs += [floats(draw, [1], dtype, positive=True) / 8, integers(draw, [1], -20, 20, torch.int8)]
        weight = integers(draw, [columns, width], -20, 20, torch.int8)
        scale = uniform(draw, [columns], 0.0001, 0.002)
        if dtype == torch.float16 and not by_token:
            scale = scale.view(torch.int32).to(torch.int64)
        inputs += [nd_to_nz(weight[None], 32) if tiled else weight, scale]
        inputs.append(integers(draw, [1, columns], -50, 50, torch.int32))
    angles = floats(draw, [tokens, rope], torch.float32)
    inputs += [floats(draw, [latent], dtype), angles.cos().to(dtype), angles.sin().to(dtype)]
    wuk = floats(draw, [heads, nope, latent], dtype)
    inputs.append(nd_to_nz(wuk) if tiled else wuk)
    block, blocks = 16, 2
    if mode == 0:
        caches = [floats(draw, [blocks, block, 1, latent + rope], dtype), torch.empty(0, dtype=dtype)]
    elif mode == 1:
        caches = [floats(draw, [blocks, block, 1, width], dtype) for width in (latent, rope)]
    else:
        cache = integers(draw, [blocks, latent // 32, block, 32], -20, 20, torch.int8)
        plain = floats(draw, [blocks, latent // 16, block, 16], dtype)
        caches = [cache if mode == 2 else plain, floats(draw, [blocks, rope // 16, block, 16], dtype)]
    inputs += [*caches, _slots(draw, tokens, blocks * block)]
    inputs += [floats(draw, [1], dtype, positive=True) / 8, floats(draw, [1, heads, 1], dtype, positive=True)]
    return {"cacheMode": mode, "quantMode": int(by_token)}, inputs
