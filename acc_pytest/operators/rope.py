"""RopeOperation: rotary position embedding of query and key."""

from __future__ import annotations

import torch

from .layout import torch_dtype
from .param import choice, data_type, integer, integers
from .registry import As, OperatorCall, Outputs, Tensors, operator

ROPE = {"rotaryCoeff": integer(4), "cosFormat": choice(0, "inference", "training")}


@operator("RopeOperation", ROPE, ("query", "key", "cos", "sin", "seqLen?"))
def rope(call: OperatorCall, t: Tensors) -> Outputs:
    """Rotate `query` and `key` (`[n, heads * size]`, `[n, heads, size]` or `[b, s, heads, size]`).

    `cos` and `sin` are `[n, size]`, one row a token; their width is the head size. `rotaryCoeff` c cuts a
    head into blocks of 2 t, t = size / c: (u, w) -> (u cos - w sin, w cos + u sin). c = 2 is the rotation
    by halves, c = size the one of neighbouring pairs, c = 4 rotates two halves on their own (the second
    stays as it is where its cos is 1 and sin 0).
    """
    size = t["cos"].shape[-1]
    coefficient = call.param["rotaryCoeff"]
    call.need(
        coefficient in (2, 4, size) and size % coefficient == 0,
        f"parameter rotaryCoeff is {coefficient}; allowed are 2, 4 and the head size {size}",
    )
    call.need(t["cos"].shape == t["sin"].shape, "cos and sin have different shapes")
    cos, sin = (call.wide(t[name]).reshape(-1, 1, size) for name in ("cos", "sin"))
    return [As(_rotated(call, t[name], name, cos, sin), t[name].dtype) for name in ("query", "key")]


def _rotated(
    call: OperatorCall, x: torch.Tensor, name: str, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    tokens, size = cos.shape[0], cos.shape[-1]
    call.need(
        x.numel() % (tokens * size) == 0 if tokens * size else x.numel() == 0,
        f"{name} {list(x.shape)} is not {tokens} tokens of heads of {size} elements, as cos has",
    )
    heads = call.wide(x).reshape(tokens, x.numel() // max(tokens * size, 1), size)
    return rotated(heads, cos, sin, call.param["rotaryCoeff"]).reshape(x.shape)


def rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, coefficient: int) -> torch.Tensor:
    """`[..., size]` rotated in blocks of size / coefficient."""
    stride = heads.shape[-1] // coefficient
    blocks = torch.unflatten(heads, -1, (-1, 2, stride))
    first, second = blocks.unbind(-2)
    turned = torch.stack((-second, first), -2).flatten(-3)
    return heads * cos + turned * sin


@operator("RopeQConcatOperation", {}, ("query", "cos", "sin", "concat"))
def rope_q_concat(call: OperatorCall, t: Tensors) -> Outputs:
    """Rotate each head of `[n, heads * size]` by halves and put `concat` `[n, heads, width]` behind it."""
    size, tail = t["cos"].shape[-1], t["concat"]
    cos, sin = (call.wide(t[name]).reshape(-1, 1, size) for name in ("cos", "sin"))
    call.need(
        tail.ndim == 3 and t["query"].numel() == tail.shape[0] * tail.shape[1] * size,
        f"query {list(t['query'].shape)} and concat {list(tail.shape)} do not fit heads of {size} elements",
    )
    heads = call.wide(t["query"]).reshape(tail.shape[0], tail.shape[1], size)
    value = torch.cat((rotated(heads, cos, sin, 2), call.wide(tail)), -1)
    return [As(value, t["query"].dtype)]


NTK = {"outDataType": data_type(1, alias="outputType")}


@operator("DynamicNTKOperation", NTK, ("positionIds", "invFreq", "seqLens"))
def dynamic_ntk(call: OperatorCall, t: Tensors) -> Outputs:
    """sin, then cos `[tokens, size]` of position * frequency, both halves alike; frequencies by sequence."""
    counts = [int(n) for n in t["seqLens"].flatten().tolist()]
    positions, frequencies = call.wide(t["positionIds"].flatten()), call.wide(t["invFreq"])
    call.need(
        sum(counts) == len(positions) and len(counts) == len(frequencies),
        f"seqLens {counts} do not cut {len(positions)} positions for {len(frequencies)} rows of invFreq",
    )
    angles = torch.cat([torch.outer(p, f) for p, f in zip(torch.split(positions, counts), frequencies)])
    table = angles.repeat(1, 2)
    dtype = torch_dtype(call.param["outDataType"], torch.float16)
    return [As(table.sin(), dtype), As(table.cos(), dtype)]


@operator(
    "RopeGradOperation",
    {"c_qSeqLen": integers(alias="qSeqLen")},
    ("queryGrad", "keyGrad", "cos", "sin"),
)
def rope_grad(call: OperatorCall, t: Tensors) -> Outputs:
    """g * (cos + [sin2, -sin1]) for each head: what the kernel computes.

    It is not the derivative of RopeOperation; ATB's own golden is the same.
    """
    counts, size = call.param["c_qSeqLen"], t["cos"].shape[-1]
    call.need(
        sum(counts) == t["queryGrad"].shape[0] and max(counts, default=0) <= t["cos"].shape[0],
        f"c_qSeqLen {list(counts)} does not fit {t['queryGrad'].shape[0]} tokens "
        f"and {t['cos'].shape[0]} rows of cos",
    )
    rows = [position for count in counts for position in range(count)]
    cos, sin = (call.wide(t[n])[rows] for n in ("cos", "sin"))
    first, second = sin.chunk(2, -1)
    factor = (cos + torch.cat((second, -first), -1))[:, None]
    results = []
    for name in ("queryGrad", "keyGrad"):
        gradient = call.wide(t[name])
        value = torch.unflatten(gradient, -1, (-1, size)) * factor
        results.append(As(value.reshape(gradient.shape), t[name].dtype))
    return results
