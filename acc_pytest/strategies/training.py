"""Shape rules of attention for training and of its gradient."""

from __future__ import annotations

from typing import Any

import torch

from .table import rule
from .values import SHORT, Draw, Drawn, flag, floats, integer, numbers, one_of


def _laid_out(heads: torch.Tensor, layout: str) -> torch.Tensor:
    return heads if layout == "BNSD" else heads.permute(2, 0, 1, 3).flatten(2).contiguous()


def _tensors(draw: Draw) -> tuple[dict[str, Any], torch.dtype, list[torch.Tensor], torch.Tensor | None]:
    """Query, key (perhaps wider), value `[b, heads, s, size]`; a mask that shows every row something."""
    layout, batch, length = one_of(draw, "BNSD", "SBH"), integer(draw, 1, 2), integer(draw, 1, 6)
    groups, share = integer(draw, 1, 2), 1 if layout == "SBH" else integer(draw, 1, 2)
    size, dtype = integer(draw, 1, 8), one_of(draw, torch.bfloat16, *SHORT)
    widths = (size, size + integer(draw, 0, 3), integer(draw, 1, 8))
    heads = (groups * share, groups, groups)
    tensors = [floats(draw, [batch, n, length, width], dtype) for n, width in zip(heads, widths)]
    param: dict[str, Any] = {
        "headNum": groups * share,
        "inputLayout": layout,
        "scaleValue": one_of(draw, 0.08838834764831843, 0.5, 0.25),
        "preTokens": one_of(draw, 2**31 - 1, 1, 2),
    }
    mask = torch.ones(length, length).triu(1).to(dtype) if flag(draw) else None
    return param, dtype, tensors, mask


@rule("LaserAttentionOperation")
def laser_attention(draw: Draw) -> Drawn:
    """Both layouts, grouped heads, all keys, causal, or the last ones."""
    param, _, tensors, mask = _tensors(draw)
    laid = [_laid_out(tensor, param["inputLayout"]) for tensor in tensors]
    return param, [*laid, *([None, None, None, mask] if mask is not None else [])]


@rule("LaserAttentionGradOperation")
def laser_attention_grad(draw: Draw) -> Drawn:
    """Gradients with what the forward pass left, here nearly exact."""
    param, dtype, tensors, mask = _tensors(draw)
    query, key, value = (tensor.double() for tensor in tensors)
    key, value = (tensor.repeat_interleave(param["headNum"] // tensor.shape[1], 1) for tensor in (key, value))
    scores = query @ key[..., : query.shape[-1]].transpose(-1, -2) * param["scaleValue"]
    if mask is not None:
        hidden = mask.double()
        if param["preTokens"] < len(hidden):
            place = torch.arange(len(hidden))
            hidden = hidden + (place[:, None] - place > param["preTokens"])
        scores = scores - 65536 * hidden
    highest = scores.amax(-1)
    total = (scores - highest[..., None]).exp().sum(-1)
    out = scores.softmax(-1) @ value
    grad = floats(draw, out.shape, dtype)
    layout = param["inputLayout"]
    laid = [_laid_out(tensor, layout) for tensor in (*tensors, grad)]
    rest = [None, None, None, mask, highest.float(), total.float(), None, _laid_out(out, layout).float()]
    return param, [*laid, *rest]


@rule("GenAttentionMaskOperation")
def gen_attention_mask(draw: Draw) -> Drawn:
    """Corners of masks, one after the other."""
    lengths, largest = numbers(draw, 1, 3, 0, 5), integer(draw, 5, 6)
    mask = floats(draw, [len(lengths), 1, largest, largest], torch.float16)
    return {"headNum": integer(draw, 1, 3), "seqLen": lengths}, [mask]
