"""The core of every attention operator: softmax(scale q k^T + bias) v of one sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .registry import Call

Change = Callable[[torch.Tensor], torch.Tensor]


def attend(
    call: Call,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    scale: float | torch.Tensor = 1.0,
    change: Change | None = None,
    razor: torch.Tensor | None = None,
) -> torch.Tensor:
    """`[n, heads, size]` over `[m, kv_heads, size]` and `[m, kv_heads, v_size]` -> wide `[n, heads, v_size]`.

    Query head i uses key head i * kv_heads div heads. `scale` multiplies the scores (a number, or
    `[n, 1]`), `change` is applied to them next, `bias` (broadcast to `[heads, n, m]`) is added last.
    `razor` `[m]` is added before all that.
    """
    n, heads, size = query.shape
    groups = key.shape[1]
    call.need(
        groups > 0 and heads % groups == 0 and key.shape[-1] == size,
        f"query {list(query.shape)} and key {list(key.shape)}: heads do not divide or sizes differ",
    )
    q = call.wide(query).reshape(n, groups, -1, size).permute(1, 2, 0, 3)
    k = call.wide(key).permute(1, 2, 0)[:, None]
    scores = (q @ k).flatten(0, 1)
    scores = (scores if razor is None else scores + razor) * scale
    if change is not None:
        scores = change(scores)
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(-1).reshape(groups, -1, n, key.shape[0])
    v = call.wide(value).transpose(0, 1)[:, None]
    return (weights @ v).flatten(0, 1).transpose(0, 1)


def heads_of(call: Call, tensor: torch.Tensor, tokens: int, heads: int, name: str) -> torch.Tensor:
    """`[n, heads * size]`, `[n, heads, size]` or `[b, s, heads, size]` as `[n, heads, size]`."""
    call.need(heads > 0, f"{name} needs a number of heads above 0")
    call.need(
        tensor.numel() % max(tokens * heads, 1) == 0,
        f"{name} {list(tensor.shape)} does not hold {tokens} tokens of {heads} heads",
    )
    return tensor.reshape(tokens, heads, tensor.numel() // max(tokens * heads, 1))


def output_shape(query: torch.Tensor, heads: int, size: int) -> tuple[int, ...]:
    """The shape of the output: that of `query` with the value's head size."""
    if query.ndim > 2 and query.shape[-2] == heads:
        return (*query.shape[:-1], size)
    return (*query.shape[:-1], heads * size)
