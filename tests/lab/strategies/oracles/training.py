"""Attention for training by torch's own function in float64, its gradients by autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .attention import attention_of
from .expected import TINY, Expected, U, same
from .table import Inputs, Param, oracle


def _heads(p: Param, x: torch.Tensor) -> torch.Tensor:
    """`[b, heads, s, size]` in float64."""
    wide = x.double()
    if p["inputLayout"] == "BNSD":
        return wide
    s, b, _ = wide.shape
    return torch.stack([wide[:, i].reshape(s, p["headNum"], -1).transpose(0, 1) for i in range(b)])


def _laid_out(p: Param, heads: torch.Tensor) -> torch.Tensor:
    if p["inputLayout"] == "BNSD":
        return heads
    return torch.stack([one.transpose(0, 1).flatten(1) for one in heads], 1)


def _hidden(p: Param, t: Inputs, length: int) -> torch.Tensor:
    """Additive: hidden keys are out of reach, and so are, under a mask, those too far back."""
    bias = torch.zeros(length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            if "attenMask" in t and (float(t["attenMask"][i, j]) or i - j > p["preTokens"]):
                bias[i, j] = -torch.inf
    return bias


def _lost(q: torch.Tensor, k: torch.Tensor, scale: float, seen: torch.Tensor) -> torch.Tensor:
    """How far float32 scores may be off, the worst of each row."""
    sums = scale * (q.abs() @ k.abs().transpose(-1, -2))
    return ((q.shape[-1] + 3) * U * sums).where(seen, 0.0).amax(-1)


@oracle("LaserAttentionOperation")
def laser_attention(p: Param, t: Inputs) -> Sequence[Expected]:
    """Head by head; the row statistics as what they are."""
    q, k, v = (_heads(p, t[name]) for name in ("query", "key", "value"))
    each, scale, bias = q.shape[1] // k.shape[1], p["scaleValue"], _hidden(p, t, q.shape[2])
    k = torch.stack([k[:, h // each, :, : q.shape[-1]] for h in range(q.shape[1])], 1)
    v = torch.stack([v[:, h // each] for h in range(q.shape[1])], 1)
    out, error = attention_of(q, k, v, bias, scale)
    scores = scale * (q @ k.transpose(-1, -2)) + bias
    lost, highest = _lost(q, k, scale, (bias == 0)), scores.amax(-1)
    powers = (scores - highest[..., None]).exp()
    spread = (highest[..., None] - scores).where(bias == 0, 0.0)
    total = powers.sum(-1)
    total_off = (powers * (torch.expm1(2 * lost)[..., None] + (scores.shape[-1] + 4) * U + U * spread)).sum(
        -1
    )
    dtype = t["query"].dtype
    return [
        Expected(highest, torch.float32, lost + U * highest.abs()),
        Expected(total, torch.float32, total_off),
        same(torch.zeros(1, dtype=dtype)),
        Expected(_laid_out(p, out), dtype, _laid_out(p, error)),
    ]


@oracle("LaserAttentionGradOperation")
def laser_attention_grad(p: Param, t: Inputs) -> Sequence[Expected]:
    """autograd through softmax; what is lost follows the chain: weights, their gradients, the products."""
    leaves = [_heads(p, t[name]).requires_grad_() for name in ("query", "key", "value")]
    q, key, value = leaves
    each, width, scale = q.shape[1] // key.shape[1], q.shape[-1], p["scaleValue"]
    k, v = (one.repeat_interleave(each, 1) for one in (key[..., :width], value))
    bias, dy = _hidden(p, t, q.shape[2]), _heads(p, t["attentionOutGrad"])
    weights = (scale * (q @ k.transpose(-1, -2)) + bias).softmax(-1)
    out = weights @ v
    gradients = torch.autograd.grad(out, leaves, dy)
    q, k, v, weights, out = (one.detach() for one in (q, k, v, weights, out))
    n = q.shape[2]
    statistics = t["softmaxMax"].double().abs() + t["softmaxSum"].double().log().abs() + 2
    relative = torch.expm1(_lost(q, k, scale, bias == 0) + 4 * U * statistics)[..., None] + 4 * U
    back = dy @ v.transpose(-1, -2)
    mean = (out * dy).sum(-1, keepdim=True)
    far = (
        (v.shape[-1] + 3)
        * U
        * (dy.abs() @ v.abs().transpose(-1, -2) + (out * dy).abs().sum(-1, keepdim=True))
    )
    change = weights * (back - mean) * scale
    change_off = scale * weights * (relative * ((back - mean).abs() + far) + far) + 3 * U * change.abs()
    ones = (change.abs() + change_off, (n + 2) * U)
    dq_off = change_off @ k.abs() + ones[1] * ones[0] @ k.abs()
    dk_off = change_off.transpose(-1, -2) @ q.abs() + ones[1] * ones[0].transpose(-1, -2) @ q.abs()
    dv_off = ((relative + (n + 2) * U) * weights).transpose(-1, -2) @ dy.abs()
    dk_off, dv_off = ((1 + each * U) * one.unflatten(1, (-1, each)).sum(2) for one in (dk_off, dv_off))
    dk_off = torch.nn.functional.pad(dk_off, (0, key.shape[-1] - width))
    found = zip(gradients, (dq_off, dk_off, dv_off), ("query", "key", "value"))
    results = [
        Expected(_laid_out(p, value), t[name].dtype, _laid_out(p, off) + TINY) for value, off, name in found
    ]
    return [*results, same(torch.zeros(1, dtype=t["query"].dtype))]


@oracle("GenAttentionMaskOperation")
def gen_attention_mask(p: Param, t: Inputs) -> Sequence[Expected]:
    """Element by element: sequences, heads, rows, columns."""
    found = [
        float(mask[0, row, column])
        for mask, n in zip(t["mask"], p["seqLen"])
        for _ in range(p["headNum"])
        for row in range(n)
        for column in range(n)
    ]
    return [same(torch.tensor(found, dtype=t["mask"].dtype))]
