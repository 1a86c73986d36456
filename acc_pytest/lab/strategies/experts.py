"""Shape rules of mixtures of experts: routing with shared scores, grouped products, int8 MLPs."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from ...operators.layout import nd_to_nz
from .values import (
    FLOATS,
    SHORT,
    Draw,
    Drawn,
    axis,
    counts,
    distinct,
    flag,
    floats,
    generator,
    integer,
    integers,
    numbers,
    one_of,
    order,
    rule,
    shape,
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


# Shape rules of reductions, sorting, counting and scattering.


@rule("SortOperation")
def sort(draw: Draw) -> Drawn:
    """The largest of the last dimension, equal ones among them."""
    size = shape(draw, 1, 3, 9)
    return {"num": [integer(draw, 1, size[-1])]}, [floats(draw, size, one_of(draw, *FLOATS))]


@rule("ReduceOperation")
def reduce(draw: Draw) -> Drawn:
    """Largest, smallest or sum over some axes."""
    size = shape(draw)
    axes = order(draw, len(size))[: integer(draw, 1, len(size))]
    axes = [axis - len(size) if flag(draw) else axis for axis in axes]
    param = {"reduceType": integer(draw, 1, 3), "axis": axes}
    if flag(draw):
        return param, [integers(draw, size, -1000, 1000, torch.int32)]
    return param, [floats(draw, size, one_of(draw, *FLOATS))]


@rule("CumsumOperation")
def cumsum(draw: Draw) -> Drawn:
    """Running sums either way."""
    size = shape(draw)
    param = {"axes": [axis(draw, len(size))], "exclusive": flag(draw), "reverse": flag(draw)}
    return param, [floats(draw, size, one_of(draw, *FLOATS))]


@rule("OnehotOperation")
def onehot(draw: Draw) -> Drawn:
    """Indices below the depth, the new dimension anywhere."""
    size, depth = shape(draw, 1, 3), integer(draw, 1, 8)
    dtype = one_of(draw, torch.int32, torch.int64)
    place = integer(draw, -len(size) - 1, len(size))
    unit, zero = torch.ones(1, dtype=dtype), torch.zeros(1, dtype=dtype)
    return {"axis": place, "depth": depth}, [integers(draw, size, 0, depth - 1, dtype), unit, zero]


@rule("NonzeroOperation")
def nonzero(draw: Draw) -> Drawn:
    """Numbers of which many are 0."""
    return {}, [integers(draw, shape(draw), -1, 1, one_of(draw, torch.int64, torch.float32))]


@rule("IndexAddOperation")
def index_add(draw: Draw) -> Drawn:
    """Updates at any rows, several at one too."""
    size, dtype = shape(draw, 1, 3), one_of(draw, *FLOATS)
    number = integer(draw, 1, 6)
    if flag(draw):
        valid = torch.tensor([integer(draw, 0, number)], dtype=torch.int32)
        place, last, param = 0, valid, {"indexType": 2, "axis": 0}
    else:
        place = axis(draw, len(size))
        last = floats(draw, [1], dtype)
        param = {"indexType": 1, "axis": place}
    updates = list(size)
    updates[place] = number
    indices = integers(draw, [number], 0, size[place] - 1, torch.int32)
    return param, [floats(draw, size, dtype), indices, floats(draw, updates, dtype), last]


@rule("ScatterElementsV2Operation")
def scatter_elements(draw: Draw) -> Drawn:
    """Updates along one axis; written ones at different places, added ones anywhere."""
    rows, width, added = integer(draw, 1, 6), integer(draw, 1, 8), flag(draw)
    number, dtype = integer(draw, 1, width), one_of(draw, *FLOATS)
    param: dict[str, Any] = {"axis": one_of(draw, -1, 1), "reduction": int(added)}
    if added:
        indices = integers(draw, [rows, number], -width, width - 1, torch.int64)
    else:
        # which of two updates of one place stays is open, so there are no two
        indices = torch.stack([distinct(draw, number, width, torch.int64) for _ in range(rows)])
    return param, [floats(draw, [rows, width], dtype), indices, floats(draw, [rows, number], dtype)]


@rule("GatingOperation")
def gating(draw: Draw) -> Drawn:
    """Tokens, each with some experts, all counted or those of this device."""
    tokens, top, experts = integer(draw, 1, 6), integer(draw, 1, 3), integer(draw, 1, 6)
    chosen = integers(draw, [tokens * top], 0, experts - 1, torch.int32)
    places = torch.arange(tokens * top, dtype=torch.int32)
    param: dict[str, Any] = {"topkExpertNum": top, "cumSumNum": experts, "cumSumInt64": flag(draw)}
    if flag(draw):
        local = sorted(order(draw, experts)[: integer(draw, 1, experts)])
        param["deviceExpert"] = local
    return param, [chosen, places]


@rule("GroupTopkOperation")
def group_topk(draw: Draw) -> Drawn:
    """The best groups of each row by their largest, or by the sum of some."""
    groups, group_size, tokens = integer(draw, 1, 4), integer(draw, 1, 4), integer(draw, 1, 5)
    param = {"groupNum": groups, "k": integer(draw, 1, groups), "groupMultiFlag": integer(draw, 0, 1)}
    param["n"] = integer(draw, 1, group_size) if param["groupMultiFlag"] else 1
    # multiples of 1/256, so that sums are exact and equal groups are equal in every precision
    token = (floats(draw, [tokens, groups * group_size], torch.float32) * 256).round().div(256).half().float()
    token = (token * 256).round().div(256).half()
    return param, [token, torch.arange(1024, dtype=torch.int32)]


# Shape rules of operators that draw: MultinomialOperation, TopkToppSamplingOperation.
#
# Probabilities are whole numbers of 1024ths, whose sums are exact in every dtype they come in: no place is
# kept or left because of a rounding.


_PARTS = 1024


def _probabilities(draw: Draw, batch: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that add up to 1; some probabilities are 0, some alike."""
    cuts = torch.randint(0, _PARTS + 1, (batch, width - 1), generator=generator(draw)).sort(-1).values
    ends = torch.nn.functional.pad(cuts, (1, 0)), torch.nn.functional.pad(cuts, (0, 1), value=_PARTS)
    return ((ends[1] - ends[0]).double() / _PARTS).to(dtype)


def _seed(draw: Draw) -> int:
    return (
        one_of(draw, 0, 1, 2**31 - 1, 2**31, 2**32 - 1)
        if integer(draw, 0, 3) == 3
        else integer(draw, 0, 2**32 - 1)
    )


@rule("MultinomialOperation")
def multinomial(draw: Draw) -> Drawn:
    """Some draws of each row, which all see the same numbers."""
    batch, width = integer(draw, 1, 4), integer(draw, 1, 12)
    dtype = one_of(draw, torch.float16, torch.float32)
    param = {"numSamples": integer(draw, 1, 6), "randSeed": _seed(draw)}
    return param, [_probabilities(draw, batch, width, dtype)]


@rule("TopkToppSamplingOperation")
def topk_topp_sampling(draw: Draw) -> Drawn:
    """All kinds: one topk and topp, or those of each row; numbers from seeds, or given."""
    kind, batch, width = integer(draw, 0, 4), integer(draw, 1, 4), integer(draw, 1, 12)
    dtype = one_of(draw, torch.float16, torch.float32 if kind == 0 else torch.bfloat16)
    # 1/8ths are exact in bfloat16 as well
    probs = _probabilities(draw, batch, width, torch.float16)
    if dtype == torch.bfloat16:
        probs = (probs * 8).round() / 8
    topp = (integers(draw, [batch, 1], 0, 8, torch.float16) / 8).to(dtype)
    param: dict[str, Any] = {"topkToppSamplingType": kind}
    if kind == 0:
        return {**param, "topk": integer(draw, 1, width), "randSeed": _seed(draw)}, [probs.to(dtype), topp]
    inputs = [probs.to(dtype), integers(draw, [batch, 1], 0, width, torch.int32), topp]
    if kind == 1:
        param["randSeeds"] = [_seed(draw) for _ in range(batch)]
    elif kind == 3:
        inputs.append(uniform(draw, [batch, 1], 0.0, 1.0))
    else:
        inputs.append(uniform(draw, [batch, width], 0.1, 3.0))
    if kind in (3, 4):
        param["logProbsSize"] = integer(draw, 1, width)
    return param, inputs
