"""Shape rules of reductions, sorting, counting and scattering."""

from __future__ import annotations

from typing import Any

import torch

from .table import rule
from .values import FLOATS, Draw, Drawn, axis, distinct, flag, floats, integer, integers, one_of, order, shape


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
