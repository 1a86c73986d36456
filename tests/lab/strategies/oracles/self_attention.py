"""SelfAttentionOperation head by head: rows collected in Python, torch's own attention in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .attention import attention_of
from .expected import TINY, Expected, U, same
from .latent import eight_bit
from .table import Inputs, Param, oracle


@dataclass
class _Sequence:
    """Rows of one sequence: query `[n, heads, size]`, keys and values `[m, heads, size]`, float64."""

    number: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    runs: bool = True
    masked: bool = True


@oracle("SelfAttentionOperation")
def self_attention(p: Param, t: Inputs) -> Sequence[Expected]:
    """Every sequence and head by itself; caches row by row."""
    heads, query = p["headNum"], t["query"]
    caches: list[torch.Tensor] = []
    if p["inputLayout"] == 1:
        found = _of_batch(p, t)
    elif p["calcType"] == 3:
        found = _of_packed(p, t)
    elif p["calcType"] == 4:
        found = _of_blocks(p, t)
    else:
        caches = _appended(p, t)
        found = _of_caches(p, t, caches)
    rows = [_rows(p, t, one) for one in found]
    if p["inputLayout"] == 1:
        shape = (*query.shape[:3], t["value"].shape[-1])
        value, error = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
        for b, (v, e) in enumerate(rows):
            value[b, :, : len(v)], error[b, :, : len(e)] = v.transpose(0, 1), e.transpose(0, 1)
        return [Expected(value, query.dtype, error)]
    value, error = (torch.cat(one) for one in zip(*rows))
    lead = query.shape[:-1]
    shape = (
        (*lead, value.shape[-1]) if lead[-1] == heads and query.ndim > 2 else (*lead, heads * value.shape[-1])
    )
    dtype = query.dtype
    if not dtype.is_floating_point:
        dtype = torch.bfloat16 if p["outDataType"] == 27 else torch.float16
    written = [same(cache) for cache in caches] if p["kvcacheCfg"] == 0 else []
    return [Expected(value.reshape(shape), dtype, error.reshape(shape)), *written]


def _rows(p: Param, t: Inputs, one: _Sequence) -> tuple[torch.Tensor, torch.Tensor]:
    n, heads = one.query.shape[:2]
    value = torch.zeros(n, heads, one.value.shape[-1], dtype=torch.float64)
    error = torch.zeros_like(value)
    if not n or not len(one.key) or not one.runs:
        return value, error
    each, scale = heads // one.key.shape[1], p["qkScale"]
    for head in range(heads):
        q, k, v = one.query[:, head], one.key[:, head // each], one.value[:, head // each]
        if "logN" in t:
            factor = t["logN"].double()
            q = q * (factor[one.number] if p["calcType"] == 2 else factor[:n, None])
        bias = (
            _bias(p, t, one.number, head, n, len(k))
            if one.masked
            else torch.zeros(n, len(k), dtype=torch.float64)
        )
        if "qkDescale" in t:
            first, last = float(t["qkDescale"][head].double()), float(t["vpvDescale"][head].double())
            scores, parts = q @ k.T * first * scale, (q @ k.T * first * scale).abs()
            step = float(t["pScale"][head].double()) if "pScale" in t else 127.0
            found = eight_bit(scores + bias, parts, v, step, last if "pScale" in t else last / 127)
        elif p["clampType"]:
            found = _clamped(q, k, v, bias, p)
        else:
            found = attention_of(q, k, v, bias, scale)
        value[:, head], error[:, head] = found[0], found[1]
    return value, error


def _clamped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, p: Param
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores between two bounds before the mask: they are off as before, or not at all."""
    products = p["qkScale"] * (q @ k.T)
    scores = products.clamp(p["clampMin"], p["clampMax"]) + bias
    lost = (q.shape[-1] + 2) * U * p["qkScale"] * (q.abs() @ k.abs().T)
    # beyond the bounds by more than that, a score is the bound itself
    far = (products - products.clamp(p["clampMin"], p["clampMax"])).abs() > lost
    lost = lost.masked_fill(far, 0.0) + 2 * U * (scores.abs() + bias.abs()).nan_to_num(0.0, 0.0)
    weights = scores.softmax(-1)
    lost = lost.where(weights > 0, 0.0).amax(-1, keepdim=True)
    spread = (scores.amax(-1, keepdim=True) - scores).where(weights > 0, 0.0).amax(-1, keepdim=True)
    relative = torch.expm1(2 * lost) + (2 * k.shape[0] + 8) * U + U * spread
    return weights @ v, relative * (weights @ v.abs()) + TINY


def _bias(p: Param, t: Inputs, sequence: int, head: int, n: int, m: int) -> torch.Tensor:
    """Pair by pair; the last query is the last key."""
    kind, bias = p["maskType"], torch.zeros(n, m, dtype=torch.float64)
    if kind == 0:
        return bias
    plane, by_position = None, kind in (3, 4, 5, 6, 8, 9) or p["calcType"] in (0, 1, 4)
    if not by_position:
        mask = t["mask"].double()
        if mask.ndim == 4:
            plane = mask[sequence, head]
        elif mask.ndim == 3:
            plane = mask[head if kind == 2 else sequence]
        else:
            plane = mask
        indicator = kind == 1 and float(mask.max()) > 0
        return (
            plane[:n, :m] * (-math.inf)
            if indicator and bool(plane[:n, :m].all())
            else _added(plane[:n, :m], indicator)
        )
    for i in range(n):
        for j in range(m):
            far = m - n + i - j
            if far < 0 or (kind == 8 and far >= p["windowSize"]):
                bias[i, j] = -torch.inf
            elif kind in (4, 5, 6):
                slope = float(t["slopes"][head].double())
                bias[i, j] = slope * {4: far, 5: math.sqrt(far), 6: j}[kind]
    return bias


def _added(plane: torch.Tensor, indicator: bool) -> torch.Tensor:
    """Numbers as they are, ones of an indicator as infinitely far away."""
    if not indicator:
        return plane
    return torch.zeros_like(plane).masked_fill(plane == 1, -torch.inf)


def _wide(rows: torch.Tensor, tokens: int, heads: int) -> torch.Tensor:
    size = rows.shape[-1] if rows.ndim > 2 else rows.shape[-1] // heads
    return rows.double().reshape(tokens, heads, size)


def _of_packed(p: Param, t: Inputs) -> Iterator[_Sequence]:
    both = t["seqLen"].tolist() if t["seqLen"].ndim == 2 else [t["seqLen"].tolist()] * 2
    query = _wide(t["query"], sum(both[0]), p["headNum"])
    key = _wide(t["key"], sum(both[1]), p["kvHeadNum"])
    value = (
        key[..., : p["mlaVHeadSize"]]
        if p["mlaVHeadSize"]
        else _wide(t["value"], sum(both[1]), p["kvHeadNum"])
    )
    first = start = 0
    for b, (n, m) in enumerate(zip(*both)):
        yield _Sequence(b, query[first : first + n], key[start : start + m], value[start : start + m])
        first, start = first + n, start + m


def _of_batch(p: Param, t: Inputs) -> Iterator[_Sequence]:
    for b, n in enumerate(t["seqLen"].tolist()):
        query, key, value = (t[name][b, :, :n].double().transpose(0, 1) for name in ("query", "key", "value"))
        yield _Sequence(b, query, key, value)


def _of_blocks(p: Param, t: Inputs) -> Iterator[_Sequence]:
    first, query = 0, _wide(t["query"], len(t["query"]), p["headNum"])
    for b, (n, m) in enumerate(zip(t["seqLen"].tolist(), t["kvSeqLen"].tolist())):
        block = t["key"].shape[1]
        places = [(int(t["blockTables"][b, i // block]), i % block) for i in range(m)]
        key, value = (torch.stack([t[name][place] for place in places]).double() for name in ("key", "value"))
        yield _Sequence(b, query[first : first + n], key, value)
        first += n


def _appended(p: Param, t: Inputs) -> list[torch.Tensor]:
    """Both caches with the new rows, one by one."""
    caches = [t["cacheK"].clone(), t["cacheV"].clone()]
    if p["kvcacheCfg"]:
        return caches
    layer, row = int(t["layerId"]), 0
    for b, (end, n) in enumerate(zip(t["tokenOffset"].tolist(), t["seqLen"].tolist())):
        for position in range(end - n, end):
            for cache, name in zip(caches, ("key", "value")):
                cache[layer, b, position] = t[name][row]
            row += 1
    return caches


def _of_caches(p: Param, t: Inputs, caches: list[torch.Tensor]) -> Iterator[_Sequence]:
    query, first, layer = _wide(t["query"], len(t["query"]), p["headNum"]) * p["qScale"], 0, int(t["layerId"])
    window = p["calcType"] == 2 and p["maskType"] == 7
    for b, (end, n) in enumerate(zip(t["tokenOffset"].tolist(), t["seqLen"].tolist())):
        rows = range(end)
        if window:
            width = p["windowSize"]
            rows = range(min(end, width)) if p["cacheType"] else range(max(end - width, 0), end)
        key, value = (_wide(cache[layer, b, list(rows)], len(rows), p["kvHeadNum"]) for cache in caches)
        runs = "batchRunStatus" not in t or bool(t["batchRunStatus"][b])
        yield _Sequence(b, query[first : first + n], key, value, runs, masked=not window)
        first += n
