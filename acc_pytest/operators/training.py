"""Operators of ATB's training side: softmax of packed scores and its gradient, masks, strided products."""

from __future__ import annotations

import torch

from .registry import (
    As,
    OperatorCall,
    Outputs,
    Tensors,
    choice,
    flag,
    integer,
    integers,
    number,
    operator,
    text,
)

FAST = {"headNum": integer(), "qSeqLen": integers()}


def _squares(call: OperatorCall, flat: torch.Tensor) -> list[torch.Tensor]:
    """The scores `[heads, s, s]` of each sequence, from one flat tensor."""
    heads, counts = call.param["headNum"], call.param["qSeqLen"]
    sizes = [heads * s * s for s in counts]
    call.need(
        sum(sizes) == flat.numel(),
        f"{flat.numel()} elements are not the squares of qSeqLen {list(counts)} for {heads} heads",
    )
    sequences = torch.split(call.wide(flat).flatten(), sizes)
    return [flat_scores.reshape(heads, s, s) for flat_scores, s in zip(sequences, counts)]


@operator("FastSoftMaxOperation", FAST, ("x",))
def fast_softmax(call: OperatorCall, t: Tensors) -> Outputs:
    """Softmax of each row of every sequence's scores."""
    value = torch.cat([scores.softmax(-1).flatten() for scores in _squares(call, t["x"])])
    return [As(value.reshape(t["x"].shape), t["x"].dtype)]


@operator("FastSoftMaxGradOperation", FAST, ("y", "dy"))
def fast_softmax_grad(call: OperatorCall, t: Tensors) -> Outputs:
    """y (dy - sum of y dy over the row)."""
    value = [
        (y * (dy - (y * dy).sum(-1, keepdim=True))).flatten()
        for y, dy in zip(_squares(call, t["y"]), _squares(call, t["dy"]))
    ]
    return [As(torch.cat(value).reshape(t["y"].shape), t["y"].dtype)]


@operator("GenAttentionMaskOperation", {"headNum": integer(1), "seqLen": integers()}, ("mask",))
def gen_attention_mask(call: OperatorCall, t: Tensors) -> Outputs:
    """The corner `[s, s]` of every sequence's mask, once for each head, flat."""
    mask, counts = t["mask"], call.param["seqLen"]
    call.need(
        mask.ndim == 4 and len(counts) == len(mask) and max(counts, default=0) <= mask.shape[-1],
        f"seqLen {list(counts)} does not fit mask {list(mask.shape)}",
    )
    corners = [m[0, :s, :s].flatten().repeat(call.param["headNum"]) for m, s in zip(mask, counts)]
    return [torch.cat(corners) if corners else mask.new_empty(0)]


STRIDED = {
    "transposeA": flag(alias="transA"),
    "transposeB": flag(alias="transB"),
    "batch": integer(1),
    "headNum": integer(1, alias="head_num"),
    **{name: integers() for name in ("m", "n", "k", "lda", "ldb", "ldc", "strideA", "strideB", "strideC")},
}


@operator("StridedBatchMatmulOperation", STRIDED, ("a", "b"))
def strided_batch_matmul(call: OperatorCall, t: Tensors) -> Outputs:
    """C = A B for each batch and head, operands found by leading dimension and stride in flat tensors.

    Rows of a head are `lda` apart and heads `strideA`; batches follow each other. Gaps of the result
    between its rows are zero (the device leaves them as they are).
    """
    p, heads = call.param, call.param["headNum"]
    lists = [p[name] for name in ("m", "n", "k", "lda", "ldb", "ldc", "strideA", "strideB", "strideC")]
    call.need(all(len(values) == p["batch"] for values in lists), "m, n, k, ... need one entry a batch")
    a, b = call.wide(t["a"]).flatten(), call.wide(t["b"]).flatten()
    total = heads * sum(m * n for m, n in zip(p["m"], p["n"]))
    result, starts = torch.zeros(total, dtype=call.accumulate), [0, 0, 0]
    for m, n, k, lda, ldb, ldc, step_a, step_b, step_c in zip(*lists):
        for head in range(heads):
            left = _matrix(call, a, starts[0] + head * step_a, m, k, lda, p["transposeA"])
            right = _matrix(call, b, starts[1] + head * step_b, k, n, ldb, p["transposeB"])
            where = starts[2] + head * step_c
            call.need(where + (m - 1) * ldc + n <= total, "the result reaches outside m * n * heads elements")
            result.as_strided((m, n), (ldc, 1), where).copy_(left @ right)
        starts = [s + size * heads for s, size in zip(starts, (m * k, n * k, m * n))]
    return [As(result, t["a"].dtype)]


def _matrix(
    call: OperatorCall,
    flat: torch.Tensor,
    start: int,
    rows: int,
    columns: int,
    leading: int,
    transposed: bool,
) -> torch.Tensor:
    if transposed:
        return _matrix(call, flat, start, columns, rows, leading, False).T
    call.need(
        start + (rows - 1) * leading + columns <= flat.numel(),
        f"a matrix of {rows} rows {leading} apart from {start} reaches outside {flat.numel()} elements",
    )
    return flat.as_strided((rows, columns), (leading, 1), start)


# Attention for training and its gradient, and the joining of partial attention results.


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
    "query", "key", "value", "attentionOutGrad", *_OPTIONAL,
    "softmaxMax", "softmaxSum", "softmaxIn?", "attentionIn", *_PREFIX,
)  # fmt: skip


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
