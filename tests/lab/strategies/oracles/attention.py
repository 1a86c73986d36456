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
