"""The core of every attention operator: softmax(scale q k^T + bias) v of one sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .quantise import integer_matmul
from .registry import OperatorCall
from .rounding import rounded

Change = Callable[[torch.Tensor], torch.Tensor]

_SCORES_AT_ONCE = 1 << 22
"""Scores of one sequence that are computed together: 16 MB of float32, beside which copies are small."""


@dataclass(frozen=True, slots=True)
class EightBit:
    """The scales of int8 query, key and value, for each head `[heads]`.

    Scores are the integer products times `score`. The weights exp(s - max) are quantised by 127 over the
    row's largest, or by `weight`; their products with the values are scaled by `value`, and the row is
    divided by the sum of the weights before quantisation. The whole row counts as one block of keys.
    """

    score: torch.Tensor
    value: torch.Tensor
    weight: torch.Tensor | None = None


def attend(
    call: OperatorCall,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    scale: float | torch.Tensor = 1.0,
    change: Change | None = None,
    before: torch.Tensor | None = None,
    eight_bit: EightBit | None = None,
) -> torch.Tensor:
    """`[n, heads, size]` over `[m, kv_heads, size]` and `[m, kv_heads, v_size]` -> wide `[n, heads, v_size]`.

    Query head i uses key head i * kv_heads div heads. `before` (`[m]`, or anything that broadcasts
    to `[heads, n, m]`) is added to the scores; `scale` multiplies them (a number, or `[n, 1]`), `change` is
    applied next, `bias` (broadcast to `[heads, n, m]`) is added last. Without keys all is 0.
    """
    n, heads, size = query.shape
    groups = key.shape[1]
    call.need(
        groups > 0 and heads % groups == 0 and key.shape[-1] == size,
        f"query {list(query.shape)} and key {list(key.shape)}: heads do not divide or sizes differ",
    )
    if groups > 1 and heads * n * key.shape[0] > _SCORES_AT_ONCE and eight_bit is None:
        return _by_group(call, query, key, value, bias, scale=scale, change=change, before=before)
    if not key.shape[0]:
        return torch.zeros(n, heads, value.shape[-1], dtype=call.accumulate)
    scores = _scores(call, query, key, eight_bit)
    scores = (scores if before is None else scores + before) * scale
    if change is not None:
        scores = change(scores)
    if bias is not None:
        scores = scores + bias
    v = value.transpose(0, 1)[:, None]
    if eight_bit is not None:
        return _quantised(call, scores, v, eight_bit, groups).transpose(0, 1)
    weights = scores.softmax(-1).reshape(groups, heads // groups, n, key.shape[0])
    return (weights @ call.wide(v)).flatten(0, 1).transpose(0, 1)


def _scores(
    call: OperatorCall, query: torch.Tensor, key: torch.Tensor, eight_bit: EightBit | None
) -> torch.Tensor:
    """Products of queries and keys, `[heads, n, m]`."""
    n, heads, size = query.shape
    groups = key.shape[1]
    q = query.reshape(n, groups, heads // groups, size).permute(1, 2, 0, 3)
    k = key.permute(1, 2, 0)[:, None]
    products = call.wide(q) @ call.wide(k) if eight_bit is None else call.wide(integer_matmul(q, k))
    scores = products.flatten(0, 1)
    return scores if eight_bit is None else scores * call.wide(eight_bit.score).reshape(-1, 1, 1)


def _by_group(
    call: OperatorCall,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    **how: Any,
) -> torch.Tensor:
    """`attend` for one key head after the other, so that the scores of all are never there together."""
    heads, groups = query.shape[1], key.shape[1]
    size = heads // groups
    result = torch.empty(query.shape[0], heads, value.shape[-1], dtype=call.accumulate)
    for group in range(groups):
        mine, key_head = slice(group * size, (group + 1) * size), slice(group, group + 1)
        by_head = bias is not None and bias.ndim == 3 and bias.shape[0] == heads
        group_bias = bias[mine] if bias is not None and by_head else bias
        result[:, mine] = attend(
            call, query[:, mine], key[:, key_head], value[:, key_head], group_bias, **how
        )
    return result


def _quantised(
    call: OperatorCall, scores: torch.Tensor, value: torch.Tensor, scales: EightBit, groups: int
) -> torch.Tensor:
    """Weights in int8, after one rounding to float16 as the kernel does; `[heads, n, v_size]`."""
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    total = powers.sum(-1, keepdim=True)
    step = 127.0 if scales.weight is None else call.wide(scales.weight).reshape(-1, 1, 1)
    small = rounded((powers * step).half(), torch.int8)
    product = integer_matmul(torch.unflatten(small, 0, (groups, -1)), value).flatten(0, 1)
    factor = call.wide(scales.value).reshape(-1, 1, 1)
    # offline the scale of the weights is part of `value`
    return call.wide(product) * (factor / 127 if scales.weight is None else factor) / total


def heads_of(call: OperatorCall, tensor: torch.Tensor, tokens: int, heads: int, name: str) -> torch.Tensor:
    """`[n, heads * size]`, `[n, heads, size]` or `[b, s, heads, size]` as `[n, heads, size]`."""
    call.need(heads > 0, f"{name} needs a number of heads above 0")
    call.need(
        tensor.numel() % max(tokens * heads, 1) == 0,
        f"{name} {list(tensor.shape)} does not hold {tokens} tokens of {heads} heads",
    )
    if not tokens:
        size = tensor.shape[-1] if tensor.ndim > 2 else tensor.shape[-1] // heads
        return tensor.reshape(0, heads, size)
    return tensor.reshape(tokens, heads, tensor.numel() // (tokens * heads))


def output_shape(query: torch.Tensor, heads: int, size: int) -> tuple[int, ...]:
    """The shape of the output: that of `query` with the value's head size."""
    if query.ndim > 2 and query.shape[-2] == heads:
        return (*query.shape[:-1], size)
    return (*query.shape[:-1], heads * size)


def output_type(query: torch.Tensor, code: int) -> torch.dtype:
    """The dtype of the output: that of `query`; of int8 what `outDataType` says, float16 unless told.

    For floats `outDataType` is printed but not read: rows of ATB's tests hold 0 (float32) beside float16.
    """
    if query.is_floating_point():
        return query.dtype
    return torch.bfloat16 if code == 27 else torch.float16
