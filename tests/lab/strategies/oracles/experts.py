"""Mixtures of experts: lists for choosing, loops over rows for products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
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


# Reductions, sorting, counting and scattering, by Python's lists.


def by_value(values: Sequence[float]) -> Callable[[int], tuple[float, int]]:
    """The order of positions: the largest value first, the first of equal ones first."""
    return lambda position: (-values[position], position)


@oracle("SortOperation")
def sort(p: Param, t: Inputs) -> Sequence[Expected]:
    """Positions sorted by value, the first of equal ones first."""
    x, number = t["x"], p["num"][0]
    rows = x.double().reshape(-1, x.shape[-1]).tolist()
    places = [sorted(range(len(row)), key=by_value(row))[:number] for row in rows]
    values = [[row[i] for i in order] for row, order in zip(rows, places)]
    size = (*x.shape[:-1], number)
    return [
        same(torch.tensor(values, dtype=torch.float64).to(x.dtype).reshape(size)),
        same(torch.tensor(places, dtype=torch.int32).reshape(size)),
    ]


@oracle("ReduceOperation")
def reduce(p: Param, t: Inputs) -> Sequence[Expected]:
    """numpy's reductions; float sums are off by a rounding for each term."""
    x = t["x"]
    axes = tuple(axis % x.ndim for axis in p["axis"])
    wide = x.double().numpy()
    functions: dict[int, Callable[..., np.ndarray]] = {1: np.max, 2: np.min, 3: np.sum}
    value = torch.as_tensor(functions[p["reduceType"]](wide, axis=axes), dtype=torch.float64)
    if p["reduceType"] != 3 or not x.is_floating_point():
        return [same(value.to(x.dtype))]
    terms = x.numel() // max(value.numel(), 1)
    size = torch.as_tensor(np.sum(np.abs(wide), axis=axes), dtype=torch.float64)
    return [Expected(value, x.dtype, terms * U * size)]


@oracle("CumsumOperation")
def cumsum(p: Param, t: Inputs) -> Sequence[Expected]:
    """Products with a triangle of ones."""
    x, axis = t["x"].double(), p["axes"][0] % t["x"].ndim
    n = x.shape[axis]
    ones = torch.ones(n, n, dtype=torch.float64)
    edge = 1 if p["exclusive"] else 0
    chosen = ones.triu(edge) if p["reverse"] else ones.tril(-edge)
    whole = ones.triu() if p["reverse"] else ones.tril()
    value = (x.movedim(axis, -1) @ chosen.T).movedim(-1, axis)
    # the element itself is taken out of the sum again
    size = (x.abs().movedim(axis, -1) @ whole.T).movedim(-1, axis)
    return [Expected(value, t["x"].dtype, (n + 1) * U * size)]


@oracle("OnehotOperation")
def onehot(p: Param, t: Inputs) -> Sequence[Expected]:
    """torch's own, with the new dimension moved."""
    hot = torch.nn.functional.one_hot(t["x"].long(), p["depth"])
    return [same(hot.movedim(-1, p["axis"]).to(t["x"].dtype))]


@oracle("NonzeroOperation")
def nonzero(p: Param, t: Inputs) -> Sequence[Expected]:
    """numpy's coordinates, zeros behind."""
    found = np.stack(np.nonzero(t["x"].numpy()))
    places = np.zeros((t["x"].ndim, t["x"].numel()), np.int64)
    places[:, : found.shape[1]] = found
    return [same(torch.from_numpy(places)), same(torch.tensor([found.shape[1]]))]


@oracle("IndexAddOperation")
def index_add(p: Param, t: Inputs) -> Sequence[Expected]:
    """One update after the other."""
    counted = "validIndicesNum" in t
    axis = 0 if counted else p["axis"]
    number = int(t["validIndicesNum"]) if counted else len(t["indices"])
    alpha = 1.0 if counted else float(t["alpha"].double())
    value = t["var"].double().movedim(axis, 0).clone()
    size = value.abs()
    updates = t["updates"].double().movedim(axis, 0)
    for place, row in zip(t["indices"].tolist()[:number], updates):
        value[place] += alpha * row
        size[place] += abs(alpha) * row.abs()
    error = (number + 1) * U * size.movedim(0, axis)
    return [Expected(value.movedim(0, axis), t["var"].dtype, error)]


@oracle("ScatterElementsV2Operation")
def scatter_elements(p: Param, t: Inputs) -> Sequence[Expected]:
    """Element by element along the last axis."""
    value, updates = t["input"].double().clone(), t["updates"].double()
    size, number = value.abs(), updates.shape[-1]
    for row, places in enumerate(t["indices"].tolist()):
        for i, place in enumerate(places):
            if p["reduction"]:
                value[row, place] += updates[row, i]
                size[row, place] += updates[row, i].abs()
            else:
                value[row, place] = updates[row, i]
    if not p["reduction"]:
        return [same(value.to(t["input"].dtype))]
    return [Expected(value, t["input"].dtype, number * U * size)]


@oracle("GatingOperation")
def gating(p: Param, t: Inputs) -> Sequence[Expected]:
    """Pairs sorted by expert in a list."""
    chosen, top = t["topk"].tolist(), p["topkExpertNum"]
    pairs = sorted(zip(chosen, t["idxArr"].tolist()))
    local = p["deviceExpert"]
    kept = [place for expert, place in pairs if not local or expert in local]
    running, total = [], 0
    for expert in local or range(p["cumSumNum"]):
        total += chosen.count(expert)
        running.append(total)
    packed = kept + [0] * (len(pairs) - len(kept))
    counts = torch.tensor(running, dtype=torch.int64 if p["cumSumInt64"] else torch.int32)
    places = torch.tensor(packed, dtype=torch.int32)
    tokens = torch.tensor([place // top for place in packed], dtype=torch.int32)
    last = [same(torch.tensor([len(kept)], dtype=torch.int32))] if local else []
    return [same(tokens), same(counts), same(places), *last]


@oracle("GroupTopkOperation")
def group_topk(p: Param, t: Inputs) -> Sequence[Expected]:
    """Groups sorted by strength in a list, the first of equal ones first."""
    groups, n = p["groupNum"], p["n"] if p["groupMultiFlag"] else 1
    result = torch.zeros_like(t["token"])
    each = t["token"].shape[-1] // groups
    for row, values in enumerate(t["token"].double().tolist()):
        parts = [values[g * each : (g + 1) * each] for g in range(groups)]
        strength = [sum(sorted(part)[-n:]) for part in parts]
        for g in sorted(range(groups), key=by_value(strength))[: p["k"]]:
            result[row, g * each : (g + 1) * each] = t["token"][row, g * each : (g + 1) * each]
    return [same(result)]


# Draws by C's generator as its source has it, and by lists of Python's numbers.


def _numbers(seed: int) -> Iterator[float]:
    """`srandom_r` and `random_r`: 31 words, two places that move through them, signed 32-bit arithmetic."""
    word = seed % 2**32
    word = (word - 2**32 if word >= 2**31 else word) or 1
    table = [word]
    for _ in range(30):
        high = int(math.copysign(abs(word) // 127773, word))
        word = 16807 * (word - 127773 * high) - 2836 * high
        if word < 0:
            word += 2147483647
        table.append(word)
    front, rear, drawn = 3, 0, 0
    while True:
        table[front] = (table[front] + table[rear]) & 0xFFFFFFFF
        if drawn >= 310:
            yield (table[front] >> 1) / 2147483647
        front, rear, drawn = (front + 1) % 31, (rear + 1) % 31, drawn + 1


@oracle("MultinomialOperation")
def multinomial(p: Param, t: Inputs) -> Sequence[Expected]:
    """Walk each row until the sum passes the number; without such a place it is the first."""
    numbers = _numbers(p["randSeed"])
    draws = [next(numbers) for _ in range(p["numSamples"])]
    rows = []
    for row in t["probs"].double().numpy():
        total, sums = np.float16(0), []
        for one in row:
            total = np.float16(np.float32(total) + np.float32(one))
            sums.append(float(total))
        rows.append([next((i for i, s in enumerate(sums) if s > number), 0) for number in draws])
    return [same(torch.tensor(rows, dtype=torch.int32))]


@oracle("TopkToppSamplingOperation")
def topk_topp_sampling(p: Param, t: Inputs) -> Sequence[Expected]:
    """Row by row over a sorted list."""
    kind, chosen, logs = p["topkToppSamplingType"], [], []
    numbers = _numbers(p["randSeed"])
    for b, row in enumerate(t["probs"].double().tolist()):
        ranked = sorted(range(len(row)), key=lambda i: (-row[i], i))
        values = [row[i] for i in ranked]
        if kind == 0:
            values = values[: p["topk"]]
        else:
            least = values[min(int(t["topk"][b]), len(values) - 1)]
            values = [value if value >= least else 0.0 for value in values]
        sums = [math.fsum(values[: i + 1]) for i in range(len(values))]
        topp = float(t["topp"][b])
        last = max(len([s for s in sums if s < topp]) - 1, 0)
        if kind in (2, 4):
            noise = t["exp"][b].tolist()
            weights = [0.0 if s > topp else value / e for s, value, e in zip(sums, values, noise)]
            rank = weights.index(max(weights))
        else:
            number = (
                float(t["rand"][b])
                if kind == 3
                else next(numbers if kind == 0 else _numbers(p["randSeeds"][b]))
            )
            limit = sums[last] * number
            rank = len([s for s in sums if (s <= limit if kind == 0 else s < limit)])
            rank = min(rank, len(values) - 1)
        chosen.append(ranked[rank])
        shares = [value / sums[last] if sums[last] else math.nan for value in values[: p["logProbsSize"]]]
        logs.append([-9999.0 if i > last else math.log(s) if s else -math.inf for i, s in enumerate(shares)])
    index = torch.tensor(chosen, dtype=torch.int32)[:, None]
    found = [same(index), same(t["probs"].gather(1, index.long()))]
    if kind in (3, 4):
        value = torch.tensor(logs, dtype=torch.float64)
        # the share is rounded, which moves its logarithm by as much, and the logarithm is
        found.append(Expected(value, torch.float32, 4 * U + 2 * U * value.abs()))
    return found
