"""Shape rules of mixtures of experts: routing with shared scores, grouped products, int8 MLPs."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from ..operators.layout import nd_to_nz
from .table import rule
from .values import (
    FLOATS,
    SHORT,
    Draw,
    Drawn,
    counts,
    flag,
    floats,
    generator,
    integer,
    integers,
    numbers,
    one_of,
    uniform,
)


@rule("FusedAddTopkDivOperation")
def fused_add_topk_div(draw: Draw) -> Drawn:
    """Scores whose order no rounding changes, positive and negative ones; with and without a mapping."""
    tokens, groups, group_size = integer(draw, 1, 4), integer(draw, 1, 4), integer(draw, 1, 3)
    experts, dtype = groups * group_size, one_of(draw, *FLOATS)
    param: dict[str, Any] = {
        "groupNum": groups,
        "groupTopk": integer(draw, 1, groups),
        "n": integer(draw, 1, group_size),
        "k": integer(draw, 1, experts),
        "isNorm": flag(draw),
        "scale": one_of(draw, 1.0, 2.5, 0.3),
        "enableExpertMapping": flag(draw),
    }
    # powers of two 4 apart: what a sigmoid adds never decides, and no two sums of some are the same
    source = generator(draw)
    powers = torch.stack([torch.randperm(experts, generator=source) for _ in range(tokens)])
    signs = torch.randint(0, 2, (tokens, experts), generator=source) * 2 - 1
    added = (4 * torch.exp2(powers.float()) * signs).to(dtype)
    inputs = [floats(draw, [tokens, experts], dtype), added]
    if param["enableExpertMapping"]:
        copies = integer(draw, 1, 3)
        inputs += [
            integers(draw, [experts], 0, copies, torch.int32),
            integers(draw, [experts, copies], 0, 99, torch.int32),
        ]
    return param, inputs


@rule("GroupedMatmulInplaceAddOperation")
def grouped_matmul_inplace_add(draw: Draw) -> Drawn:
    """Groups of the inner dimension, some of them empty, which need not cover all of it."""
    m, n, sizes = integer(draw, 1, 5), integer(draw, 1, 5), numbers(draw, 1, 4, 0, 6)
    k = max(sum(sizes) + integer(draw, 0, 2), 1)
    turned, second, dtype = flag(draw), flag(draw), one_of(draw, *SHORT)
    x = floats(draw, [k, m] if turned else [m, k], dtype)
    weight = floats(draw, [n, k] if second else [k, n], dtype)
    rows = [len(sizes), m, n] if flag(draw) else [len(sizes) * m, n]
    ends = torch.tensor(list(accumulate(sizes)))
    return {"transposeA": turned, "transposeB": second}, [x, weight, ends, floats(draw, rows, torch.float32)]


@rule("GroupedMatmulWithRoutingOperation")
def grouped_matmul_with_routing(draw: Draw) -> Drawn:
    """Up and down, float and int8; experts without a token."""
    tokens, top, experts = integer(draw, 1, 4), integer(draw, 1, 3), integer(draw, 1, 4)
    k, n, down = integer(draw, 1, 17), integer(draw, 1, 6), flag(draw)
    turned, eight = flag(draw), flag(draw)
    rows = tokens * top
    owner = integers(draw, [rows], 0, experts - 1, torch.int64)
    ends = counts(torch.bincount(owner, minlength=experts).cumsum(0).tolist())
    order = torch.randperm(rows, generator=generator(draw))
    indices = (torch.arange(rows) // top)[order].int()
    x, weight = [rows if down else tokens, k], [experts, *([n, k] if turned else [k, n])]
    param: dict[str, Any] = {"transposeB": turned, "topK": top, "moeType": int(down)}
    if not eight:
        dtype = one_of(draw, *SHORT)
        return param, [floats(draw, x, dtype), floats(draw, weight, dtype), ends, indices]
    param["outDataType"] = one_of(draw, 27, 0)
    scales = [floats(draw, size, torch.float32, positive=True) / 512 for size in ([experts, n], x[:1])]
    operands = [integers(draw, size, -128, 127, torch.int8) for size in (x, weight)]
    return param, [*operands, ends, indices, *scales]


def _mlp(draw: Draw, groups: int, rows: int) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Operands of int8 MLPs: numbers small enough for float16 between the products."""
    kind = integer(draw, 0, 1)
    n, k = (256, 128)[kind] * integer(draw, 1, 2), one_of(draw, 32, 1, 7, 33)
    up_turned, down_turned = flag(draw), flag(draw)
    x = integers(draw, [rows, k], -16, 16, torch.int8)
    up = integers(draw, [groups, *([n, k] if up_turned else [k, n])], -16, 16, torch.int8)
    down = integers(draw, [groups, *([k, n // 2] if down_turned else [n // 2, k])], -16, 16, torch.int8)
    # no gate is far out in the tail of the sigmoid, where the product of two tiny numbers would be lost
    scales = [uniform(draw, size, 0.02, 0.1) for size in ([groups, n], [rows])]
    last = uniform(draw, [groups, k], 0.01, 0.05)
    param = {
        "outputType": integer(draw, 0, 1),
        "weightUpPermuteType": kind,
        "transposeWeightUp": up_turned,
        "transposeWeightDown": down_turned,
    }
    if flag(draw):
        up, down = nd_to_nz(up, 32), nd_to_nz(down, 32)
    return param, [x, up, *scales, down, last]


@rule("MmDeqSwigluQuantMmDeqOperation")
def mm_deq_swiglu_quant_mm_deq(draw: Draw) -> Drawn:
    """One expert, weights plain or in tiles, any of them transposed."""
    param, (x, up, scale, rows, down, last) = _mlp(draw, 1, integer(draw, 1, 4))
    plain = up.ndim == 3
    return param, [x, up[0] if plain else up, scale[0], rows, down[0] if plain else down, last[0]]


@rule("GmmDeqSwigluQuantGmmDeqOperation")
def gmm_deq_swiglu_quant_gmm_deq(draw: Draw) -> Drawn:
    """Some experts, also without rows, and rows of nobody at the end."""
    sizes = numbers(draw, 1, 3, 0, 3)
    counted = flag(draw)
    param, (x, *weights, down, last) = _mlp(
        draw, len(sizes), sum(sizes) + integer(draw, 0, 1) + (not sum(sizes))
    )
    groups = torch.tensor(sizes if counted else list(accumulate(sizes)))
    return {**param, "groupListType": int(counted)}, [x, *weights, groups, down, last]
