"""Shape rules of rotary embedding and attention."""

from __future__ import annotations

from typing import Any

import torch

from .table import rule
from .values import FLOATS, SHORT, Draw, Drawn, counts, distinct, floats, one_of, some, whole, wholes, yes

LARGE = -10000.0
"""What hides a key in a mask of numbers; small enough for float16, and exp of it is 0 in every dtype."""


@rule("RopeOperation")
def rope(draw: Draw) -> Drawn:
    """Heads of query and key, rotated by halves, by quarters or by pairs."""
    size = 4 * whole(draw, 1, 4)
    tokens, heads, key_heads = whole(draw, 1, 6), whole(draw, 1, 3), whole(draw, 1, 3)
    dtype = one_of(draw, *FLOATS)
    table = torch.float32 if yes(draw) else dtype
    angles = floats(draw, [tokens, size], torch.float32)
    vectors = [floats(draw, [tokens, n * size], dtype) for n in (heads, key_heads)]
    param = {"rotaryCoeff": one_of(draw, 2, 4, size)}
    return param, [*vectors, angles.cos().to(table), angles.sin().to(table), counts([tokens])]


@rule("RopeQConcatOperation")
def rope_q_concat(draw: Draw) -> Drawn:
    """Rotated heads with what is put behind them."""
    size, dtype = 2 * whole(draw, 1, 8), one_of(draw, *SHORT)
    tokens, heads, width = whole(draw, 1, 6), whole(draw, 1, 3), whole(draw, 1, 8)
    angles = floats(draw, [tokens, size], torch.float32)
    query, tail = floats(draw, [tokens, heads * size], dtype), floats(draw, [tokens, heads, width], dtype)
    return {}, [query, angles.cos().to(dtype), angles.sin().to(dtype), tail]


@rule("DynamicNTKOperation")
def dynamic_ntk(draw: Draw) -> Drawn:
    """Positions of some sequences, frequencies for each."""
    lengths, half = some(draw, 1, 3, 1, 5), whole(draw, 1, 8)
    positions = wholes(draw, [sum(lengths)], 0, 50, torch.int32)
    frequencies = floats(draw, [len(lengths), half], torch.float32)
    return {"outDataType": one_of(draw, 1, 27)}, [positions, frequencies, counts(lengths)]


def _heads(draw: Draw) -> tuple[int, int, int]:
    """Query heads, key heads, size of one."""
    groups, each = whole(draw, 1, 3), whole(draw, 1, 3)
    return groups * each, groups, whole(draw, 1, 12)


@rule("SelfAttentionOperation")
def self_attention(draw: Draw) -> Drawn:
    """Packed prefill: grouped heads, no mask, a plane for all or for each sequence, alibi, causal, window."""
    lengths, (heads, groups, size) = some(draw, 1, 3, 1, 6), _heads(draw)
    dtype, tokens, longest = one_of(draw, *SHORT), sum(lengths), max(lengths)
    mask = one_of(draw, "none", "norm", "norm by sequence", "alibi", "causal", "window")
    kind = {"none": 0, "norm": 1, "norm by sequence": 1, "alibi": 2, "causal": 9, "window": 8}[mask]
    param: dict[str, Any] = {
        "headNum": heads,
        "kvHeadNum": groups,
        "qkScale": one_of(draw, 1.0, 0.5, 0.125),
        "calcType": 3,
        "maskType": kind,
    }
    spread = yes(draw)
    sizes = [[tokens, n, size] if spread else [tokens, n * size] for n in (heads, groups, groups)]
    inputs: list[torch.Tensor] = [floats(draw, one, dtype) for one in sizes]
    hidden = torch.full((longest, longest), LARGE).triu(1)
    if mask == "norm":
        inputs.append(hidden.to(dtype))
    elif mask == "norm by sequence":
        inputs.append(hidden.to(dtype).expand(len(lengths), longest, longest).contiguous())
    elif mask == "alibi":
        slopes = torch.exp2(-torch.arange(heads).float())
        place = torch.arange(longest).float()
        biases = slopes[:, None, None] * -(place[:, None] - place).abs() + hidden
        inputs.append(biases.to(dtype))
    elif mask == "window":
        param["windowSize"] = whole(draw, 1, 4)
        inputs.append(torch.full((4, 4), LARGE).triu(1).to(dtype))
    return param, [*inputs, counts(lengths)]


@rule("PagedAttentionOperation")
def paged_attention(draw: Draw) -> Drawn:
    """One new token of each sequence over blocks of its own; sequences without context too."""
    (heads, groups, size), dtype = _heads(draw), one_of(draw, *SHORT)
    contexts, block = some(draw, 1, 3, 1, 9), one_of(draw, 2, 4, 16)
    batch, columns = len(contexts), max(-(-n // block) for n in contexts)
    blocks = batch * columns + whole(draw, 0, 2)
    tables = distinct(draw, batch * columns, blocks).reshape(batch, columns)
    query = floats(draw, [batch, heads, size], dtype)
    caches = [floats(draw, [blocks, block, groups, size], dtype) for _ in range(2)]
    masked = yes(draw)
    param = {
        "headNum": heads,
        "kvHeadNum": groups,
        "qkScale": one_of(draw, 1.0, 0.5, 0.125),
        "maskType": int(masked),
    }
    mask = []
    if masked:
        values = wholes(draw, [batch, 1, max(contexts)], 0, 1, torch.int8).to(dtype) * LARGE
        values[..., 0] = 0  # a row that sees nothing has no defined result
        mask.append(values)
    return param, [query, *caches, tables, counts(contexts), *mask]


@rule("FaUpdateOperation")
def fa_update(draw: Draw) -> Drawn:
    """Partial results of some ranks with the logarithms of their sums."""
    parts, rows, size = whole(draw, 1, 4), whole(draw, 1, 6), whole(draw, 1, 8)
    sums = floats(draw, [parts, rows], torch.float32)
    return {"sp": parts}, [sums, floats(draw, [parts, rows, size], torch.float32)]
