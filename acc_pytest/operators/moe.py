"""Mixture of experts: choosing experts, and the grouped matrix products that they compute."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F

from .cache import lengths
from .layout import int8_weight, integer_matmul, quantise_dynamic, torch_dtype
from .registry import (
    As,
    OperatorCall,
    Outputs,
    Param,
    Tensors,
    choice,
    data_type,
    flag,
    integer,
    number,
    operator,
    rounded,
)

GROUP_TOPK = {
    "groupNum": integer(1),
    "k": integer(),
    "groupMultiFlag": choice(0, "largest", "sum of the n largest"),
    "n": integer(1),
}


def _best_groups(call: OperatorCall, scores: torch.Tensor, groups: int, best: int, n: int) -> torch.Tensor:
    """A mask of `[t, e]`: the elements of the `best` groups by the sum of their `n` largest."""
    experts = scores.shape[-1]
    call.need(
        groups > 0 and experts % groups == 0 and 0 < best <= groups and 0 < n <= experts // groups,
        f"{experts} experts, {groups} groups, the best {best} by {n}: these do not fit",
    )
    grouped = scores.reshape(len(scores), groups, experts // groups)
    strength = grouped.topk(n, -1).values.sum(-1)
    order = torch.sort(strength, dim=-1, descending=True, stable=True).indices[:, :best]
    chosen = torch.zeros(len(scores), groups, dtype=torch.bool).scatter_(1, order, True)
    return chosen.repeat_interleave(experts // groups, 1)


@operator("GroupTopkOperation", GROUP_TOPK, ("token", "idxArr"), aliases={0: "token"})
def group_topk(call: OperatorCall, t: Tensors) -> Outputs:
    """Zero all but the `k` best of `groupNum` groups of each row; of equal groups the first is kept."""
    p = call.param
    n = p["n"] if p["groupMultiFlag"] else 1
    chosen = _best_groups(call, call.wide(t["token"]), p["groupNum"], p["k"], n)
    return [torch.where(chosen, t["token"], torch.zeros((), dtype=t["token"].dtype))]


SIGMOID = 8
FUSED_ADD = {
    "groupNum": integer(1),
    "groupTopk": integer(1),
    "n": integer(1),
    "k": integer(1),
    "activationType": choice(SIGMOID, "sigmoid", start=SIGMOID),
    "isNorm": flag(True),
    "scale": number(1.0),
    "enableExpertMapping": flag(),
}


def _fused_inputs(param: Param) -> tuple[str, ...]:
    return ("x", "addNum", "mappingNum", "mappingTable") if param["enableExpertMapping"] else ("x", "addNum")


@operator("FusedAddTopkDivOperation", FUSED_ADD, _fused_inputs)
def fused_add_topk_div(call: OperatorCall, t: Tensors) -> Outputs:
    """The `k` best experts of the best groups by sigmoid(x) + addNum: their sigmoid(x) as weights, and who.

    `isNorm` divides the weights by their sum and multiplies them by `scale`; without it they are left as they
    are (ATB's golden scales what it normalises, and nothing else). With a mapping, expert e of token i is
    replaced by mappingTable[e][i mod mappingNum[e]].
    """
    p = call.param
    scores = torch.sigmoid(call.wide(t["x"]))
    ranked = scores + call.wide(t["addNum"])
    chosen = _best_groups(call, ranked, p["groupNum"], p["groupTopk"], p["n"])
    call.need(0 < p["k"] <= scores.shape[-1], f"parameter k is {p['k']}, x has {scores.shape[-1]} experts")
    hidden = ranked.masked_fill(~chosen, 0.0)  # so the kernel does: a worse score in a kept group loses to it
    indices = torch.sort(hidden, dim=-1, descending=True, stable=True).indices[:, : p["k"]]
    weights = scores.gather(1, indices)
    if p["isNorm"]:
        weights = weights / weights.sum(-1, keepdim=True) * p["scale"]
    if "mappingTable" in t:
        number = t["mappingNum"].flatten().long()[indices].clamp(min=1)
        token = torch.arange(len(indices))[:, None]
        indices = t["mappingTable"].long()[indices, token % number]
    return [As(weights, torch.float32), indices.int()]


@operator("SwigluQuantOperation", {"quantType": choice(0, "per token")}, ("x",))
def swiglu_quant(call: OperatorCall, t: Tensors) -> Outputs:
    """silu of the first half times the second, quantised by the scale of each row."""
    call.need(t["x"].shape[-1] % 2 == 0, f"x {list(t['x'].shape)} cannot be split into halves")
    gate, up = call.wide(t["x"]).chunk(2, -1)
    return quantise_dynamic(call, F.silu(gate) * up, asymmetric=False)


INPLACE_ADD = {"transposeA": flag(), "transposeB": flag()}


@operator(
    "GroupedMatmulInplaceAddOperation",
    INPLACE_ADD,
    ("x", "weight", "groupList", "accum"),
    aliases={0: "accum"},
)
def grouped_matmul_inplace_add(call: OperatorCall, t: Tensors) -> Outputs:
    """accum + the products over each group of the inner dimension, one below the other.

    `groupList` holds the end of every group.
    """
    call.need(t["x"].ndim == t["weight"].ndim == 2, "x and weight are not matrices")
    x = call.wide(t["x"].T if call.param["transposeA"] else t["x"])
    weight = call.wide(t["weight"].T if call.param["transposeB"] else t["weight"])
    ends = [int(end) for end in t["groupList"].flatten().tolist()]
    call.need(
        x.shape[1] == weight.shape[0] and ends == sorted(ends) and (not ends or ends[-1] <= x.shape[1]),
        f"x {list(x.shape)}, weight {list(weight.shape)} and groupList {ends} do not fit",
    )
    products = [x[:, a:b] @ weight[a:b] for a, b in zip([0, *ends], ends)]
    total = torch.cat(products)
    call.need(
        total.numel() == t["accum"].numel(),
        f"accum {list(t['accum'].shape)} does not hold {list(total.shape)}",
    )
    return [As(call.wide(t["accum"]) + total.reshape(t["accum"].shape), t["accum"].dtype)]


UP, DOWN = 0, 1
BFLOAT16 = 27
ROUTING = {
    "transposeB": flag(True),
    "topK": integer(),
    "moeType": choice(0, "up", "down"),
    "outDataType": data_type(),
    "groupedMatmulType": choice(-1, "up", "down", extra={-1: "see moeType"}),
}


@operator(
    "GroupedMatmulWithRoutingOperation",
    ROUTING,
    ("x", "weight", "expertCount", "indices", "nScale?", "mScale?"),
)
def grouped_matmul_with_routing(call: OperatorCall, t: Tensors) -> Outputs:
    """Each expert's matrix times the rows routed to it; `expertCount` is the running number of rows.

    up: row i of the result is x[indices[i]] W. down: row i of x, times W, is added to row indices[i] of
    the result, which has as many rows as tokens. int8: the product times mScale of the row of x and
    nScale of the expert's column.
    """
    p, indices = call.param, t["indices"].flatten().long()
    down = (p["moeType"] if p["groupedMatmulType"] < 0 else p["groupedMatmulType"]) == DOWN
    weight = t["weight"].transpose(1, 2) if p["transposeB"] else t["weight"]
    ends = _ends_of_experts(call, t, weight)
    call.need(not down or p["topK"] > 0, f"parameter topK is {p['topK']}, not above 0")
    scaled = "nScale" in t and "mScale" in t
    call.need(scaled or t["x"].dtype != torch.int8, "int8 operands need nScale and mScale")
    rows = len(indices) // p["topK"] if down else len(indices)
    result = torch.zeros(rows, weight.shape[2], dtype=call.accumulate)
    for expert, (start, stop) in enumerate(zip([0, *ends], ends)):
        if down:
            product = _of_expert(call, t, torch.arange(start, stop), weight, expert)
            result.index_add_(0, indices[start:stop], product)
        else:
            result[start:stop] = _of_expert(call, t, indices[start:stop], weight, expert)
    if t["x"].dtype != torch.int8:
        return [As(result, torch_dtype(p["outDataType"], t["x"].dtype))]
    # of quantised products ATB's own tests call bfloat16 0
    return [As(result, torch_dtype(p["outDataType"] or BFLOAT16, torch.float16))]


def _ends_of_experts(call: OperatorCall, t: Tensors, weight: torch.Tensor) -> list[int]:
    """Up to which row each expert has some. Raises `OperatorError` where the operands do not fit."""
    x, ends = t["x"], [int(end) for end in t["expertCount"].flatten().tolist()]
    call.need(
        weight.ndim == 3
        and weight.shape[1] == x.shape[1]
        and ends == sorted(ends)
        and len(ends) == len(weight)
        and (not ends or ends[-1] <= t["indices"].numel()),
        f"x {list(x.shape)}, weight {list(t['weight'].shape)}, expertCount {ends} do not fit",
    )
    return ends


def _of_expert(
    call: OperatorCall, t: Tensors, rows: torch.Tensor, weight: torch.Tensor, expert: int
) -> torch.Tensor:
    """These rows of x times the expert's matrix, wide; int8 is scaled back."""
    x = t["x"][rows]
    if x.dtype != torch.int8:
        return call.wide(x) @ call.wide(weight[expert])
    product = call.wide(integer_matmul(x, weight[expert]))
    return product * call.wide(t["mScale"]).flatten()[rows, None] * call.wide(t["nScale"][expert])


# The int8 MLPs that ATB computes in one kernel: up product, SwiGLU, quantisation by row, down product.


TILES = (256, 128)
"""Columns of the up product that the kernel computes at once, by `weightUpPermuteType`."""

_DTYPES = (torch.float16, torch.bfloat16)
_COMMON = {
    "outputType": choice(0, "float16", "bfloat16"),
    "weightUpPermuteType": choice(0, "tiles of 256 columns", "tiles of 128 columns"),
    "transposeWeightUp": flag(),
    "transposeWeightDown": flag(True),
}
_CUMSUM = 0
_GROUPED = {**_COMMON, "groupListType": choice(_CUMSUM, "ends", "counts")}
_UP, _DOWN = ("x", "weightUp", "scaleUp", "perTokenScale"), ("weightDown", "scaleDown")


@operator("MmDeqSwigluQuantMmDeqOperation", _COMMON, (*_UP, *_DOWN))
def mm_deq_swiglu_quant_mm_deq(call: OperatorCall, t: Tensors) -> Outputs:
    """One expert: `[m, k]` int8 by `[k, n]`, halved by SwiGLU, by `[n / 2, k']` to `[m, k']`.

    Weights come as matrices or as NZ tiles `[(1,) n1, m', 32]`.
    """
    result = _mlp(call, t, t["x"], t["perTokenScale"], None)
    return [As(result, _DTYPES[call.param["outputType"]])]


@operator("GmmDeqSwigluQuantGmmDeqOperation", _GROUPED, (*_UP, "groupList", *_DOWN))
def gmm_deq_swiglu_quant_gmm_deq(call: OperatorCall, t: Tensors) -> Outputs:
    """Some experts, each with the rows of its group; `groupList` has the groups' ends or sizes.

    Rows behind the last group are zero (the device leaves them as they are).
    """
    x, sizes = t["x"], lengths(t["groupList"])
    ends = sizes if call.param["groupListType"] == _CUMSUM else list(accumulate(sizes))
    call.need(
        ends == sorted(ends) and (not ends or 0 <= ends[0] <= ends[-1] <= len(x)),
        f"groupList {sizes} does not cut x {list(x.shape)} into groups",
    )
    products = [
        _mlp(call, t, x[start:stop], t["perTokenScale"].flatten()[start:stop], group)
        for group, (start, stop) in enumerate(pairwise([0, *ends]))
    ]
    call.need(bool(products), "groupList is empty")
    result = products[0].new_zeros(len(x), products[0].shape[1])
    result[: ends[-1]] = torch.cat(products)
    return [As(result, _DTYPES[call.param["outputType"]])]


def _mlp(
    call: OperatorCall, t: Tensors, x: torch.Tensor, row_scale: torch.Tensor, group: int | None
) -> torch.Tensor:
    """The rows of one expert; what the first product gives is float16, what the second takes int8."""
    p, tile = call.param, TILES[call.param["weightUpPermuteType"]]
    up = _matrix(call, t["weightUp"], "weightUp", group, transposed=p["transposeWeightUp"])
    down = _matrix(call, t["weightDown"], "weightDown", group, transposed=p["transposeWeightDown"])
    scale_up, scale_down = (_scale(call, t[name], group) for name in ("scaleUp", "scaleDown"))
    # NZ tiles are padded; the scales and the operand have the sizes
    up, down = up[: x.shape[1], : len(scale_up)], down[: len(scale_up) // 2, : len(scale_down)]
    call.need(
        up.shape == (x.shape[1], len(scale_up)) and down.shape == (len(scale_up) // 2, len(scale_down)),
        f"x {list(x.shape)}, weightUp {list(t['weightUp'].shape)}, weightDown {list(t['weightDown'].shape)} "
        f"and scales of {len(scale_up)} and {len(scale_down)} columns do not fit",
    )
    up, scale_up = _in_order(call, up, tile), _in_order(call, scale_up, tile)
    rows = call.wide(row_scale).reshape(-1, 1)
    hidden = call.wide(integer_matmul(x, up)) * scale_up * rows
    gate, value = call.between(hidden, torch.float16).chunk(2, -1)
    activated = F.silu(gate) * value
    step = activated.abs().amax(-1, keepdim=True) / 127
    small = rounded(activated / step, torch.int8)
    return call.wide(integer_matmul(small, down)) * scale_down * step


def _in_order(call: OperatorCall, columns: torch.Tensor, tile: int) -> torch.Tensor:
    """Columns as they were before the two halves were interleaved, half a tile of each in turn."""
    call.need(
        columns.shape[-1] % tile == 0,
        f"{columns.shape[-1]} columns of weightUp are not whole tiles of {tile} (weightUpPermuteType)",
    )
    return torch.unflatten(columns, -1, (-1, 2, tile // 2)).transpose(-3, -2).flatten(-3)


def _matrix(
    call: OperatorCall, weight: torch.Tensor, name: str, group: int | None, *, transposed: bool
) -> torch.Tensor:
    """`[k, n]` of one expert."""
    plain = 2 if group is None else 3
    weight = int8_weight(call, weight, name, plain)
    call.need(
        weight.ndim == plain and (group is None or group < len(weight)),
        f"{name} {list(weight.shape)} is no matrix for {'every' if group is not None else 'the one'} expert",
    )
    matrix = weight if group is None else weight[group]
    return matrix.T if transposed else matrix


def _scale(call: OperatorCall, scale: torch.Tensor, group: int | None) -> torch.Tensor:
    rows = scale.reshape(1 if group is None else len(scale), -1)
    call.need((group or 0) < len(rows), f"scales {list(scale.shape)} have no row for expert {group}")
    return call.wide(rows[group or 0])
