"""Mixtures of experts: lists for choosing, loops over rows for products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .expected import TINY, Expected, U, same, written
from .table import Inputs, Param, oracle


@oracle("FusedAddTopkDivOperation")
def fused_add_topk_div(p: Param, t: Inputs) -> Sequence[Expected]:
    """Token by token with sorted lists; a sigmoid is off by some roundings and by that of its exponent."""
    groups, weights, errors, places = p["groupNum"], [], [], []
    for token, (row, more) in enumerate(zip(t["x"].double().tolist(), t["addNum"].double().tolist())):
        scores = [1 / (1 + math.exp(-x)) for x in row]
        ranked = [s + a for s, a in zip(scores, more)]
        each = len(row) // groups
        strength = [sum(sorted(ranked[g * each : (g + 1) * each])[-p["n"] :]) for g in range(groups)]
        best = sorted(range(groups), key=lambda g: (-strength[g], g))[: p["groupTopk"]]
        seen = [r if e // each in best else 0.0 for e, r in enumerate(ranked)]
        chosen = sorted(range(len(row)), key=lambda e: (-seen[e], e))[: p["k"]]
        total = sum(scores[e] for e in chosen) if p["isNorm"] else 1.0
        scale = p["scale"] if p["isNorm"] else 1.0
        weights.append([scores[e] / total * scale for e in chosen])
        lost = max(abs(row[e]) for e in chosen) + p["k"] + 12
        errors.append([lost * U * abs(weight) for weight in weights[-1]])
        if "mappingTable" in t:
            number = t["mappingNum"].tolist()
            chosen = [int(t["mappingTable"][e][token % max(number[e], 1)]) for e in chosen]
        places.append(chosen)
    value, error = (torch.tensor(rows, dtype=torch.float64) for rows in (weights, errors))
    return [Expected(value, torch.float32, error + TINY), same(torch.tensor(places, dtype=torch.int32))]


@oracle("GroupedMatmulInplaceAddOperation")
def grouped_matmul_inplace_add(p: Param, t: Inputs) -> Sequence[Expected]:
    """One outer product after the other."""
    x = t["x"].double().T if p["transposeA"] else t["x"].double()
    weight = t["weight"].double().T if p["transposeB"] else t["weight"].double()
    ends = t["groupList"].tolist()
    value = t["accum"].double().reshape(len(ends), x.shape[0], -1).clone()
    size = value.abs()
    for group, end in enumerate(ends):
        for i in range(ends[group - 1] if group else 0, end):
            value[group] += torch.outer(x[:, i], weight[i])
            size[group] += torch.outer(x[:, i], weight[i]).abs()
    error = (x.shape[1] + 2) * U * size
    shape = t["accum"].shape
    return [Expected(value.reshape(shape), t["accum"].dtype, error.reshape(shape))]


@oracle("GroupedMatmulWithRoutingOperation")
def grouped_matmul_with_routing(p: Param, t: Inputs) -> Sequence[Expected]:
    """Row by row: whose it is, which matrix it meets, where it goes."""
    x, weight, rows = t["x"].double(), t["weight"].double(), t["indices"].tolist()
    weight = weight.transpose(1, 2) if p["transposeB"] else weight
    down, eight = p["moeType"] == 1, t["x"].dtype == torch.int8
    value = torch.zeros(len(rows) // p["topK"] if down else len(rows), weight.shape[-1], dtype=torch.float64)
    size = torch.zeros_like(value)
    for i, token in enumerate(rows):
        expert = next(e for e, end in enumerate(t["expertCount"].tolist()) if i < end)
        source, target = (i, token) if down else (token, i)
        row, most = x[source] @ weight[expert], x[source].abs() @ weight[expert].abs()
        if eight:
            scale = t["mScale"][source].double() * t["nScale"][expert].double()
            row, most = row * scale, row.abs() * scale
        value[target] += row
        size[target] += most
    terms = (4 if eight else x.shape[1]) + p["topK"]
    dtype = torch.bfloat16 if eight else t["x"].dtype
    return [Expected(value, dtype, terms * U * size)]


def _plain(weight: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """`[groups, rows, columns]` from that, or from tiles of 32 columns, tile by tile."""
    if weight.ndim == 3:
        return weight.double()
    tiles = torch.cat([weight[:, i] for i in range(weight.shape[1])], -1)
    return tiles[:, :rows, :columns].double()


def _mlp(p: Param, t: Inputs, ends: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows one by one; what is rounded between the kernels may be rounded from either side."""
    x, groups = t["x"].double(), len(ends)
    scale_up, scale_down = (t[name].double().reshape(groups, -1) for name in ("scaleUp", "scaleDown"))
    n, k = scale_up.shape[1], x.shape[1]
    tile = (256, 128)[p["weightUpPermuteType"]]
    up, down = (w if w.ndim > 2 else w[None] for w in (t["weightUp"], t["weightDown"]))
    up = _plain(up, *((n, k) if p["transposeWeightUp"] else (k, n)))
    down = _plain(down, *((k, n // 2) if p["transposeWeightDown"] else (n // 2, k)))
    up = up.transpose(1, 2) if p["transposeWeightUp"] else up
    down = down.transpose(1, 2) if p["transposeWeightDown"] else down
    # column c of the tiled weight: the gate's half of a tile, then the value's
    columns = range(n)
    gates = [c for c in columns if c % tile < tile // 2]
    values = [c for c in columns if c % tile >= tile // 2]
    result, error = torch.zeros(len(x), k, dtype=torch.float64), torch.zeros(len(x), k, dtype=torch.float64)
    for i, row in enumerate(x):
        group = next((g for g, end in enumerate(ends) if i < end), None)
        if group is None:
            continue
        hidden = row @ up[group] * scale_up[group] * t["perTokenScale"][i].double()
        hidden, lost = written(hidden, 3 * U * hidden.abs(), torch.float16)
        (gate, value), (gate_lost, value_lost) = ((h[gates], h[values]) for h in (hidden, lost))
        silu = gate * torch.sigmoid(gate)
        active = silu * value
        # silu is nowhere steeper than 1.1
        active_lost = 1.1 * gate_lost * (value.abs() + value_lost) + silu.abs() * value_lost
        active_lost = active_lost + (10 + gate.abs()) * U * active.abs() + TINY
        step, step_lost = active.abs().max() / 127, active_lost.max() / 127
        if float(step) == 0:
            continue
        small_lost = active_lost / step + (active / step).abs() * (step_lost / step + 3 * U)
        small, off = written(active / step, small_lost, torch.int8)
        product = small @ down[group]
        result[i] = product * scale_down[group] * step
        relative = 4 * U + step_lost / step
        error[i] = (
            (off @ down[group].abs() * (1 + relative) + relative * product.abs()) * scale_down[group] * step
        )
    return result, error


_WRITTEN = (torch.float16, torch.bfloat16)


@oracle("MmDeqSwigluQuantMmDeqOperation")
def mm_deq_swiglu_quant_mm_deq(p: Param, t: Inputs) -> Sequence[Expected]:
    """All rows are of the one expert."""
    value, error = _mlp(p, t, [len(t["x"])])
    return [Expected(value, _WRITTEN[p["outputType"]], error)]


@oracle("GmmDeqSwigluQuantGmmDeqOperation")
def gmm_deq_swiglu_quant_gmm_deq(p: Param, t: Inputs) -> Sequence[Expected]:
    """Rows behind the last group are zero."""
    groups = t["groupList"].tolist()
    ends = [sum(groups[: i + 1]) for i in range(len(groups))] if p["groupListType"] else groups
    value, error = _mlp(p, t, ends)
    return [Expected(value, _WRITTEN[p["outputType"]], error)]
