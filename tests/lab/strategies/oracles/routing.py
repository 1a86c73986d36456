"""Reductions, sorting, counting and scattering, by Python's lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from .expected import Expected, U, same
from .table import Inputs, Param, oracle


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
