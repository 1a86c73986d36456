"""Rotary embedding by complex numbers, attention by torch's own function in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from .expected import TINY, Expected, U
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
    lost = (size + 2) * U * sums + U * scores.abs()
    weights = scores.softmax(-1)
    seen = weights > 0
    spread = (scores.amax(-1, keepdim=True) - scores).where(seen, 0.0).amax(-1, keepdim=True)
    lost = lost.where(seen, 0.0).amax(-1, keepdim=True)
    relative = torch.expm1(2 * lost) + (2 * m + 8) * U + U * spread
    return value, relative * (weights @ v.abs()) + TINY


def _hidden(rows: int, columns: int, window: int) -> torch.Tensor:
    """-inf for keys ahead of their query, and for those `window` or more behind it."""
    bias = torch.zeros(rows, columns, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            if j > i or (window and i - j >= window):
                bias[i, j] = -torch.inf
    return bias


@oracle("SelfAttentionOperation")
def self_attention(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each sequence and head by itself."""
    heads, groups, query = p["headNum"], p["kvHeadNum"], t["query"]
    lengths = t["seqLen"].tolist()
    tokens = sum(lengths)
    q = query.double().reshape(tokens, heads, -1)
    k, v = (t[name].double().reshape(tokens, groups, -1) for name in ("key", "value"))
    value, error, first = torch.empty_like(q), torch.empty_like(q), 0
    for b, n in enumerate(lengths):
        part = slice(first, first + n)
        first += n
        for head in range(heads):
            group = head // (heads // groups)
            result = attention_of(
                q[part, head], k[part, group], v[part, group], _bias(p, t, b, head, n), p["qkScale"]
            )
            value[part, head], error[part, head] = result
    return [Expected(value.reshape(query.shape), query.dtype, error.reshape(query.shape))]


def _bias(p: Param, t: Inputs, sequence: int, head: int, n: int) -> torch.Tensor:
    kind = p["maskType"]
    if kind in (8, 9):
        return _hidden(n, n, p["windowSize"] if kind == 8 else 0)
    if kind == 0:
        return torch.zeros(n, n, dtype=torch.float64)
    mask = t["mask"].double()
    if mask.ndim == 3:
        mask = mask[head if kind == 2 else sequence]
    return mask[:n, :n]


@oracle("PagedAttentionOperation")
def paged_attention(p: Param, t: Inputs) -> Sequence[Expected]:
    """Keys and values collected row by row."""
    heads, groups, query = p["headNum"], p["kvHeadNum"], t["query"]
    value, error = (
        torch.zeros(query.shape, dtype=torch.float64),
        torch.zeros(query.shape, dtype=torch.float64),
    )
    block = t["keyCache"].shape[1]
    for b, length in enumerate(t["contextLens"].tolist()):
        table = t["blockTables"][b].tolist()
        places = [(table[i // block], i % block) for i in range(length)]
        k, v = (
            torch.stack([t[name][place] for place in places]).double() for name in ("keyCache", "valueCache")
        )
        for head in range(heads):
            group = head // (heads // groups)
            bias = torch.zeros(1, length, dtype=torch.float64)
            if "mask" in t:
                bias = t["mask"][b, :, :length].double()
            q = query[b, head].double()[None]
            result = attention_of(q, k[:, group], v[:, group], bias, p["qkScale"])
            value[b, head], error[b, head] = result[0][0], result[1][0]
    return [Expected(value, query.dtype, error)]


@oracle("FaUpdateOperation")
def fa_update(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each part weighted by its share of the whole sum, without subtracting the largest first."""
    sums, out = t["lse"].double(), t["out"].double()
    shares = sums.exp() / sums.exp().sum(0)
    value = torch.einsum("pn,pns->ns", shares, out)
    spread = (sums.amax(0) - sums.amin(0))[:, None]
    error = (2 * len(sums) + 8 + 2 * spread) * U * torch.einsum("pn,pns->ns", shares, out.abs()) + TINY
    return [Expected(value, t["out"].dtype, error)]
