"""Latent attention sequence by sequence with torch's own function in float64; int8 weights one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .attention import attention_of
from .expected import Expected, U, written
from .table import Inputs, Param, oracle

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


def _bias(p: Param, t: Inputs, first: int, rows: int, columns: int) -> torch.Tensor:
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
        bias = _bias(p, t, first, count, total)
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
