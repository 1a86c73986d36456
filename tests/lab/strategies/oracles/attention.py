"""Rotary embedding by complex numbers, attention by torch's own function in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .expected import TINY, Expected, U, same, written
from .table import Inputs, Param, oracle


def turned_heads(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, parts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Heads `[n, heads, size]` rotated in `parts` / 2 blocks, and what three roundings of its terms can lose.

    Element i of the first half of a block and the one of the second half are one pair (u, w).
    """
    size = x.shape[-1]
    width = size // parts
    value, terms = torch.empty_like(x), torch.empty_like(x)
    for start in range(0, size, 2 * width):
        for i in range(start, start + width):
            j = i + width
            u, w = x[..., i], x[..., j]
            value[..., i] = u * cos[:, i, None] - w * sin[:, i, None]
            value[..., j] = w * cos[:, j, None] + u * sin[:, j, None]
            terms[..., i] = (u * cos[:, i, None]).abs() + (w * sin[:, i, None]).abs()
            terms[..., j] = (w * cos[:, j, None]).abs() + (u * sin[:, j, None]).abs()
    return value, 3 * U * terms


@oracle("RopeOperation")
def rope(p: Param, t: Inputs) -> Sequence[Expected]:
    """Query and key, pair by pair."""
    cos, sin = t["cos"].double(), t["sin"].double()
    results = []
    for name in ("query", "key"):
        heads = t[name].double().reshape(len(cos), -1, cos.shape[-1])
        value, error = turned_heads(heads, cos, sin, p["rotaryCoeff"])
        shape = t[name].shape
        results.append(Expected(value.reshape(shape), t[name].dtype, error.reshape(shape)))
    return results


@oracle("RopeGradOperation")
def rope_grad(p: Param, t: Inputs) -> Sequence[Expected]:
    """Element by element: cos, and sin of the other half, taken off in the second half."""
    cos, sin = t["cos"].double().tolist(), t["sin"].double().tolist()
    size = len(cos[0])
    positions = [position for count in p["c_qSeqLen"] for position in range(count)]
    results = []
    for name in ("queryGrad", "keyGrad"):
        value, error = t[name].double().clone(), torch.zeros_like(t[name], dtype=torch.float64)
        for row, position in enumerate(positions):
            for column in range(value.shape[1]):
                i = column % size
                other = sin[position][i + size // 2] if i < size // 2 else -sin[position][i - size // 2]
                gradient = float(value[row, column])
                value[row, column] = gradient * (cos[position][i] + other)
                error[row, column] = 2 * U * abs(gradient) * (abs(cos[position][i]) + abs(other))
        results.append(Expected(value, t[name].dtype, error))
    return results


@oracle("RopeQConcatOperation")
def rope_q_concat(p: Param, t: Inputs) -> Sequence[Expected]:
    """Rotated halves, and the rest behind."""
    cos, sin, tail = t["cos"].double(), t["sin"].double(), t["concat"].double()
    value, error = turned_heads(t["query"].double().reshape(len(cos), tail.shape[1], -1), cos, sin, 2)
    both = torch.cat((value, tail), -1)
    return [Expected(both, t["query"].dtype, torch.cat((error, torch.zeros_like(tail)), -1))]


@oracle("DynamicNTKOperation")
def dynamic_ntk(p: Param, t: Inputs) -> Sequence[Expected]:
    """sin and cos token by token; the angle is rounded, and that error grows with it."""
    owner = [row for row, count in enumerate(t["seqLens"].tolist()) for _ in range(count)]
    angles = torch.stack(
        [position * t["invFreq"].double()[row] for position, row in zip(t["positionIds"].double(), owner)]
    )
    both = torch.cat((angles, angles), -1)
    dtype = {1: torch.float16, 27: torch.bfloat16}[p["outDataType"]]
    error = U * both.abs() + 4 * U
    return [Expected(both.sin(), dtype, error), Expected(both.cos(), dtype, error)]


def attention_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`[heads, n, size]` over `[heads, m, size]`, and what float32 can lose on the way.

    A score is a sum of size terms, scaled and biased: it is off by `lost`. Weights exp(score) / sum are
    then off by exp(2 lost), by the roundings of a sum of m terms, and by that of the difference from the
    largest score; the last product sums m terms again.
    """
    value = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    size, m = q.shape[-1], k.shape[-2]
    sums = scale * (q.abs() @ k.abs().transpose(-1, -2))
    scores = scale * (q @ k.transpose(-1, -2)) + bias
    lost = (size + 2) * U * sums + U * (scores.abs() + bias.abs().nan_to_num(0.0, 0.0))
    weights = scores.softmax(-1)
    seen = weights > 0
    spread = (scores.amax(-1, keepdim=True) - scores).where(seen, 0.0).amax(-1, keepdim=True)
    lost = lost.where(seen, 0.0).amax(-1, keepdim=True)
    relative = torch.expm1(2 * lost) + (2 * m + 8) * U + U * spread
    return value, relative * (weights @ v.abs()) + TINY


@oracle("FaUpdateOperation")
def fa_update(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each part weighted by its share of the whole sum, without subtracting the largest first."""
    sums, out = t["lse"].double(), t["out"].double()
    shares = sums.exp() / sums.exp().sum(0)
    value = torch.einsum("pn,pns->ns", shares, out)
    spread = (sums.amax(0) - sums.amin(0))[:, None]
    error = (2 * len(sums) + 8 + 2 * spread) * U * torch.einsum("pn,pns->ns", shares, out.abs()) + TINY
    return [Expected(value, t["out"].dtype, error)]


# SelfAttentionOperation head by head: rows collected in Python, torch's own attention in float64.


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


# Latent attention sequence by sequence with torch's own function in float64; int8 weights one by one.


_Found = tuple[torch.Tensor, torch.Tensor]


def _log_sum(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor, scale: float) -> _Found:
    """log of the sum of exponentials of one head's scores: off as much as the worst score, and by its sum."""
    scores = scale * (q @ k.T) + bias
    value = scores.logsumexp(-1)
    sums = scale * (q.abs() @ k.abs().T)
    lost = (q.shape[-1] + 2) * U * sums + 2 * U * scores.abs()
    lost = lost.where(scores > -torch.inf, 0.0).nan_to_num(0.0).amax(-1)
    return value, lost + (k.shape[0] + 4) * U + 2 * U * value.abs()


def _tokens(t: Inputs, b: int, name: str) -> torch.Tensor:
    """Rows of all blocks of sequence `b`, `[rows, width]`, from plain blocks or from tiles."""
    rows = []
    for block in t[name][t["blockTables"][b].long()].double():
        if block.shape[1] == 1:
            rows.append(block[:, 0])
        else:
            rows.append(torch.cat(list(block), -1))
    return torch.cat(rows)


def _latent_bias(p: Param, t: Inputs, first: int, rows: int, columns: int) -> torch.Tensor:
    if p["maskType"] == 1:
        return t["mask"].double()[first : first + rows, :columns]
    bias = torch.zeros(rows, columns, dtype=torch.float64)
    if p["maskType"] == 0:
        return bias
    for i in range(rows):
        for j in range(columns):
            far = columns - rows + i - j
            if far < 0 or (p["maskType"] == 4 and far >= p["windowSize"]):
                bias[i, j] = -torch.inf
    return bias


@oracle("MultiLatentAttentionOperation")
def multi_latent_attention(p: Param, t: Inputs) -> Sequence[Expected]:
    """Every head of every sequence by itself."""
    query, turned, dtype = t["query"].double(), t["queryRope"].double(), t["queryRope"].dtype
    prefill, eight = p["calcType"] == 4, t["query"].dtype == torch.int8
    counts = t["qSeqLen"].tolist() if "qSeqLen" in t else [1] * len(query)
    totals = (t["kvSeqLen"] if prefill else t["contextLens"]).tolist()
    groups, each = p["kvHeadNum"], p["headNum"] // p["kvHeadNum"]
    width = (
        t["value"].shape[-1] // (groups if t["value"].shape[1] != groups else 1)
        if prefill
        else query.shape[-1]
    )
    value = torch.zeros(len(query), p["headNum"], width, dtype=torch.float64)
    sums = torch.zeros(len(query), p["headNum"], dtype=torch.float64)
    error, sums_error = torch.zeros_like(value), torch.zeros_like(sums)
    first = 0
    for b, (count, total) in enumerate(zip(counts, totals)):
        part = slice(first, first + count)
        bias = _latent_bias(p, t, first, count, total)
        for head in range(p["headNum"]):
            if prefill:
                c, r, v = (
                    _of_prefill(t, name, totals, b, groups)[:, head // each]
                    for name in ("key", "keyRope", "value")
                )
            else:
                c, r = (_tokens(t, b, name)[:total] for name in ("kvCache", "kvCacheRope"))
                v = c
            q, turn = query[part, head], turned[part, head]
            if eight:
                scales = (float(t["qkDescale"][head].double()), float(t["pvDescale"][head].double()))
                products = q @ c.T * scales[0], turn @ r.T
                parts = products[0].abs() + (turn.shape[-1] + 2) * (turn.abs() @ r.abs().T)
                scores = p["qkScale"] * sum(products) + bias
                found = eight_bit(scores, p["qkScale"] * parts, v, 127.0, scales[1] / 127)
            else:
                both, keys = torch.cat((q, turn), -1), torch.cat((c, r), -1)
                one = attention_of(both, keys, v, bias, p["qkScale"])
                found = (*one, *_log_sum(both, keys, bias, p["qkScale"]))
            value[part, head], error[part, head], sums[part, head], sums_error[part, head] = found
        first += count
    shape = (*t["query"].shape[:-1], width)
    out = Expected(value.reshape(shape), dtype, error.reshape(shape))
    if p["calcType"] not in (2, 3):
        return [out]
    return [out, Expected(sums[..., None], torch.float32 if eight else dtype, sums_error[..., None])]


def _of_prefill(t: Inputs, name: str, totals: list[int], b: int, groups: int) -> torch.Tensor:
    keys = t[name].double()
    if keys.shape[1] == groups and len(keys) == sum(totals):
        start = sum(totals[:b])
        return keys[start : start + totals[b]]
    return keys[b, : totals[b]].reshape(totals[b], groups, -1)


def eight_bit(
    scores: torch.Tensor, parts: torch.Tensor, v: torch.Tensor, step: float, factor: float
) -> tuple[torch.Tensor, ...]:
    """Weights in `step` steps of the largest, each perhaps rounded the other way, times int8 values.

    `parts` are the sizes of what a score is summed of. The result, its error, the logarithms of the rows'
    sums, theirs.
    """
    seen = scores > -torch.inf
    lost = (4 * U * (parts + scores.abs())).where(seen, 0.0).nan_to_num(0.0)
    highest = scores.amax(-1, keepdim=True)
    powers = (scores - highest).exp()
    worst = lost.amax(-1, keepdim=True)
    relative = torch.expm1(2 * worst) + 4 * U + U * (highest - scores).where(seen, 0.0)
    total = powers.sum(-1, keepdim=True)
    half, half_off = written(powers * step, powers * step * relative, torch.float16)
    small, off = written(half, half_off, torch.int8)
    share = factor / total
    value = small @ v * share
    loose = relative.amax(-1, keepdim=True) + (v.shape[0] + 6) * U
    error = off @ v.abs() * abs(share) * (1 + loose) + loose * value.abs()
    sums = scores.logsumexp(-1)
    return value, error, sums, worst[:, 0] + (v.shape[0] + 4) * U + 2 * U * sums.abs()


@oracle("RingMLAOperation")
def ring_mla(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each part by itself, then weighted with what came before by the exponentials of both sums."""
    both = t["seqLen"].tolist() if t["seqLen"].ndim == 2 else [t["seqLen"].tolist()] * 2
    query = torch.cat((t["query"], t["queryRope"]), -1).double()
    key, v = torch.cat((t["key"], t["keyRope"]), -1).double(), t["value"].double()
    heads, each = p["headNum"], p["headNum"] // p["kvHeadNum"]
    value = torch.zeros(len(query), heads, v.shape[-1], dtype=torch.float64)
    error, sums = torch.zeros_like(value), torch.zeros(heads, len(query), dtype=torch.float64)
    sums_error = torch.zeros_like(sums)
    first = start = 0
    for count, total in zip(*both):
        part, keys = slice(first, first + count), slice(start, start + total)
        first, start = first + count, start + total
        for head in range(heads):
            before = (
                (t["prevOut"][part, head].double(), t["prevLse"][head, part].double())
                if "prevOut" in t
                else None
            )
            if not total:
                if before is not None:
                    value[part, head] = before[0]
                continue
            bias = torch.zeros(count, total, dtype=torch.float64)
            for i in range(count):
                if p["maskType"]:
                    bias[i, i + 1 :] = -torch.inf
            q, k = query[part, head], key[keys, head // each]
            out, off = attention_of(q, k, v[keys, head // each], bias, p["qkScale"])
            lse, lse_off = _log_sum(q, k, bias, p["qkScale"])
            if before is not None:
                out, off, lse, lse_off = _joined(out, off, lse, lse_off, *before)
            value[part, head], error[part, head] = out, off
            sums[head, part], sums_error[head, part] = lse, lse_off
    return [Expected(value, t["query"].dtype, error), Expected(sums, torch.float32, sums_error)]


def _joined(
    out: torch.Tensor,
    off: torch.Tensor,
    lse: torch.Tensor,
    lse_off: torch.Tensor,
    old: torch.Tensor,
    old_lse: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    share = torch.sigmoid(lse - old_lse)[:, None]
    value = share * out + (1 - share) * old
    total = torch.logaddexp(lse, old_lse)
    total_off = lse_off + 4 * U * (1 + lse.abs() + old_lse.abs() + total.abs())
    # a sum that is off by d moves both shares by at most 2 d of themselves
    relative = (torch.expm1(2 * (lse_off + total_off)) + 6 * U)[:, None]
    return value, off + relative * (share * out.abs() + (1 - share) * old.abs()), total, total_off


@oracle("RelayAttentionOperation")
def relay_attention(p: Param, t: Inputs) -> Sequence[Expected]:
    """Own and shared rows of each sequence, collected row by row."""
    heads, groups, owners = p["headNum"], p["kvHeadNum"], t["kvShareMap"].tolist()
    counts, totals, shared = (t[name].tolist() for name in ("seqLen", "kvSeqLen", "kvShareLen"))
    query = t["query"].double().reshape(sum(counts), heads, -1)
    size = query.shape[-1]
    value, error, first, start = torch.empty_like(query), torch.empty_like(query), 0, 0
    for count, total, owner in zip(counts, totals, owners):
        own = total - (shared[owner] if owner >= 0 else 0)
        for head in range(heads):
            rows = []
            for name in ("key", "value"):
                mine, common = (
                    t[one].double().reshape(-1, groups, size)[:, head // (heads // groups)]
                    for one in (name, f"{name}Share")
                )
                at = sum(shared[:owner]) if owner >= 0 else 0
                rows.append(torch.cat((mine[start : start + own], common[at : at + total - own])))
            part = slice(first, first + count)
            bias = torch.zeros(count, total, dtype=torch.float64)
            found = attention_of(query[part, head], rows[0], rows[1], bias, p["qkScale"])
            value[part, head], error[part, head] = found
        first, start = first + count, start + own
    shape = t["query"].shape
    return [Expected(value.reshape(shape), t["query"].dtype, error.reshape(shape))]


@oracle("RazorFusionAttentionOperation")
def razor_fusion_attention(p: Param, t: Inputs) -> Sequence[Expected]:
    """A picture's token sees a band of blocks in every picture; text sees all and is seen by all."""
    length, size = p["razorLen"], t["query"].shape[-1]
    rows, columns = length * p["tileQ"] + p["textQLen"], length * p["tileKv"] + p["textKvLen"]
    bias = torch.zeros(rows, columns, dtype=torch.float64)
    for i in range(length * p["tileQ"]):
        for block in range(-(-length // 128)):
            far = block - i % length // 128
            if not -p["preTokens"] // 128 < far < p["nextTokens"] // 128:
                for tile in range(p["tileKv"]):
                    start = tile * length
                    bias[i, start + block * 128 : start + min((block + 1) * 128, length)] = -10000.0
    value, error = (
        torch.empty(t["query"].shape, dtype=torch.float64),
        torch.empty(t["query"].shape, dtype=torch.float64),
    )
    for b in range(len(t["query"]) // rows):
        q, k, v = (
            t[name].double().reshape(-1, size)[b * n : (b + 1) * n]
            for name, n in (("query", rows), ("key", columns), ("value", columns))
        )
        found = attention_of(q, k, v, bias, p["qkScale"])
        part = slice(b * rows, (b + 1) * rows)
        value[part], error[part] = (one.reshape(value[part].shape) for one in found)
    return [Expected(value, t["query"].dtype, error)]
