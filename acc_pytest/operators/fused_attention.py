"""Attention for training and its gradient, and the joining of partial attention results."""

from __future__ import annotations

import torch

from .param import choice, integer, number, text
from .registry import As, OperatorCall, Outputs, Tensors, operator

HIDDEN = -65536.0
LASER = {
    "headNum": integer(),
    "inputLayout": text("BNSD", "BNSD", "SBH"),
    "scaleValue": number(0.08838834764831843),
    "keepProb": number(1.0),
    "preTokens": integer(2**31 - 1),
    "nextTokens": integer(1),
    "sparseMode": integer(),
    "innerPrecise": integer(1),
}
_OPTIONAL = ("pseShift?", "dropMask?", "paddingMask?", "attenMask?")
_PREFIX = ("prefix?", "actualSeqQLen?", "actualSeqKVLen?")


def _heads(call: OperatorCall, tensor: torch.Tensor) -> torch.Tensor:
    """Wide `[b, heads, s, size]`; SBH is `[s, b, heads * size]`, of as many key heads as query heads."""
    wide, heads = call.wide(tensor), call.param["headNum"]
    if call.param["inputLayout"] == "BNSD":
        return wide
    call.need(
        tensor.ndim == 3 and heads > 0 and tensor.shape[-1] % heads == 0,
        f"{list(tensor.shape)} is not [s, b, {heads} heads]",
    )
    return torch.unflatten(wide, -1, (heads, -1)).permute(1, 2, 0, 3)


def _laid_out(call: OperatorCall, heads: torch.Tensor) -> torch.Tensor:
    """`[b, heads, s, size]` as the operator writes it."""
    return heads if call.param["inputLayout"] == "BNSD" else heads.permute(2, 0, 1, 3).flatten(2)


def _scores(call: OperatorCall, t: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores `[b, heads, s, s]` and wide query, key: the key cut to the query's width, one for each head."""
    p = call.param
    extra = [n.rstrip("?") for n in (*_OPTIONAL[:3], *_PREFIX) if n.rstrip("?") in t]
    call.need(not extra, f"{', '.join(extra)} has no reference computation")
    query, key = _heads(call, t["query"]), _heads(call, t["key"])
    call.need(
        query.ndim == key.ndim == 4
        and query.shape[1] % key.shape[1] == 0
        and key.shape[-1] >= query.shape[-1],
        f"query {list(query.shape)} and key {list(key.shape)} do not fit",
    )
    key = key[..., : query.shape[-1]].repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ key.transpose(-1, -2) * p["scaleValue"]
    if "attenMask" in t:
        mask = call.wide(t["attenMask"])
        rows, columns = scores.shape[-2:]
        if p["preTokens"] < rows:
            place = torch.arange(rows)[:, None] - torch.arange(columns)
            mask = mask + call.wide(place > p["preTokens"])
        scores = scores + mask * HIDDEN
    return scores, query, key


@operator("LaserAttentionOperation", LASER, ("query", "key", "value", *_OPTIONAL, *_PREFIX), pairs=True)
def laser_attention(call: OperatorCall, t: Tensors) -> Outputs:
    """Attention of `[b, heads, s, size]` (SBH: `[s, b, heads * size]`).

    Each row's largest score and sum of powers `[b, heads, s]`, nothing, and the result. `keepProb` is not
    read by the kernel.
    """
    scores, query, _ = _scores(call, t)
    value = _heads(call, t["value"])
    value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    highest = scores.amax(-1)
    powers = (scores - highest[..., None]).exp()
    total = powers.sum(-1)
    result = powers / total[..., None] @ value
    unused = torch.zeros(1, dtype=t["query"].dtype)
    out = As(_laid_out(call, result), t["query"].dtype)
    return [As(highest, torch.float32), As(total, torch.float32), unused, out]


GRAD = (
    "query",
    "key",
    "value",
    "attentionOutGrad",
    *_OPTIONAL,
    "softmaxMax",
    "softmaxSum",
    "softmaxIn?",
    "attentionIn",
    *_PREFIX,
)


@operator("LaserAttentionGradOperation", LASER, GRAD, pairs=True)
def laser_attention_grad(call: OperatorCall, t: Tensors) -> Outputs:
    """The gradients of query, key and value, with the row statistics of the forward pass as it left them."""
    scores, query, key = _scores(call, t)
    value = _heads(call, t["value"])
    groups = query.shape[1] // value.shape[1]
    value = value.repeat_interleave(groups, 1)
    out, grad = _heads(call, t["attentionIn"]), _heads(call, t["attentionOutGrad"])
    shift = call.wide(t["softmaxMax"]) + call.wide(t["softmaxSum"]).log()
    weights = (scores - shift[..., None]).exp()
    change = weights * (grad @ value.transpose(-1, -2) - (out * grad).sum(-1, keepdim=True))
    change = change * call.param["scaleValue"]
    dq = change @ key
    dk = _by_group(change.transpose(-1, -2) @ query, groups)
    dv = _by_group(weights.transpose(-1, -2) @ grad, groups)
    dk = torch.nn.functional.pad(dk, (0, _heads(call, t["key"]).shape[-1] - dk.shape[-1]))
    unused = torch.zeros(1, dtype=t["query"].dtype)
    gradients = zip((dq, dk, dv), ("query", "key", "value"))
    return [*(As(_laid_out(call, gradient), t[name].dtype) for gradient, name in gradients), unused]


def _by_group(gradient: torch.Tensor, groups: int) -> torch.Tensor:
    return torch.unflatten(gradient, 1, (-1, groups)).sum(2)


@operator("FaUpdateOperation", {"faUpdateType": choice(0, "decode"), "sp": integer(1)}, ("lse", "out"))
def fa_update(call: OperatorCall, t: Tensors) -> Outputs:
    """Join partial attention results `[parts, n, size]` by their log-sums `[parts, n]`.

    The weights are a softmax with the largest subtracted; ATB's own golden overflows above 88.
    """
    call.need(t["out"].shape[:2] == t["lse"].shape, f"lse {list(t['lse'].shape)}, out {list(t['out'].shape)}")
    weights = call.wide(t["lse"]).softmax(0)
    return [As((weights[..., None] * call.wide(t["out"])).sum(0), t["out"].dtype)]
