"""RopeOperation: rotary position embedding of query and key."""

from __future__ import annotations

import torch

from .param import choice, integer
from .registry import As, Call, Outputs, Tensors, operator

ROPE = {"rotaryCoeff": integer(4), "cosFormat": choice(0, "inference", "training")}


@operator("RopeOperation", ROPE, ("query", "key", "cos", "sin", "seqLen?"))
def rope(call: Call, t: Tensors) -> Outputs:
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


def _rotated(call: Call, x: torch.Tensor, name: str, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    tokens, size = cos.shape[0], cos.shape[-1]
    call.need(
        x.numel() % (tokens * size) == 0 if tokens * size else x.numel() == 0,
        f"{name} {list(x.shape)} is not {tokens} tokens of heads of {size} elements, as cos has",
    )
    heads = call.wide(x).reshape(tokens, -1, size)
    return rotated(heads, cos, sin, call.param["rotaryCoeff"]).reshape(x.shape)


def rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, coefficient: int) -> torch.Tensor:
    """`[..., size]` rotated in blocks of size / coefficient."""
    stride = heads.shape[-1] // coefficient
    blocks = torch.unflatten(heads, -1, (-1, 2, stride))
    first, second = blocks.unbind(-2)
    turned = torch.stack((-second, first), -2).flatten(-3)
    return heads * cos + turned * sin
