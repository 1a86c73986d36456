"""Mixture of experts: choosing experts, and the grouped matrix products that they compute."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .layout import torch_dtype
from .param import Param, choice, data_type, flag, integer, number
from .quantise import integer_matmul, quantise_dynamic
from .registry import As, OperatorCall, Outputs, Tensors, operator

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
