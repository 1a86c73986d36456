"""Shape rules of PagedAttentionOperation: masks, several tokens, int8, compressed heads, values in keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .table import rule
from .values import (
    LARGE,
    SHORT,
    Draw,
    Drawn,
    block_tables,
    counts,
    flag,
    floats,
    head_counts,
    integer,
    integers,
    numbers,
    one_of,
    uniform,
)


@dataclass
class _Drawn:
    """The parameters, lengths and tables of every form, and the operands behind them."""

    param: dict[str, Any]
    contexts: list[int]
    tables: torch.Tensor
    blocks: int
    block: int
    operands: list[torch.Tensor] = field(default_factory=list)


def _start(draw: Draw, min_context: int = 0, rows: int = 1) -> tuple[_Drawn, tuple[int, int, int]]:
    """Sequences of which some may have no context; `rows` tables for each."""
    heads, groups, size = head_counts(draw)
    sequences = integer(draw, 1, 3)
    number = sequences * (groups if rows != 1 else 1)
    contexts = numbers(draw, number, number, min_context, 9)
    block = one_of(draw, 2, 4, 16)
    tables, blocks = block_tables(draw, contexts, block)
    param = {"headNum": heads, "kvHeadNum": groups, "qkScale": one_of(draw, 1.0, 0.5, 0.125)}
    return _Drawn(param, contexts, tables, blocks, block), (heads, groups, size)


@rule("PagedAttentionOperation")
def paged_attention(draw: Draw) -> Drawn:
    """One form after the other: most have parameters of their own that exclude the others'."""
    return one_of(draw, _decode, _several, _dequantised, _eight_bit, _compressed)(draw)


def _random_mask(draw: Draw, size: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Every row sees its first key."""
    mask = integers(draw, size, 0, 1, torch.int8).to(dtype) * LARGE
    mask[..., 0] = 0
    return mask


def _decode(draw: Draw) -> Drawn:
    """One token of each sequence: masks, sequences that do not run, logN, values inside the keys, BNSD."""
    d, (heads, groups, size) = _start(draw)
    batch, dtype, longest = len(d.contexts), one_of(draw, *SHORT), max(d.contexts)
    kind = one_of(draw, 0, 1, 2) if longest else 0
    mask = []
    if kind:
        d.param["maskType"] = kind
        mask = [_random_mask(draw, [batch, 1, longest] if kind == 1 else [batch, heads, 1, longest], dtype)]
    if flag(draw):
        d.param["batchRunStatusEnable"] = True
        d.operands.append(counts([integer(draw, 0, 1) for _ in d.contexts]))
    if flag(draw):
        d.param["scaleType"] = 1
        d.operands.append(uniform(draw, [batch], 1.0, 2.0))
    d.param["qScale"] = one_of(draw, 0.0, 1.0, 0.5)
    inside, wide = flag(draw), integer(draw, 1, 12)
    if inside:
        d.param["mlaVHeadSize"] = integer(draw, 1, size)
    caches = [
        floats(draw, [d.blocks, d.block, groups, width], dtype)
        for width in ((size,) if inside else (size, wide))
    ]
    if flag(draw):
        d.param["inputLayout"] = 1
        caches = [cache.transpose(1, 2).contiguous() for cache in caches]
    query = floats(draw, [batch, heads, size] if flag(draw) else [batch, heads * size], dtype)
    return d.param, [query, *caches, d.tables, counts(d.contexts), *mask, *d.operands]


def _several(draw: Draw) -> Drawn:
    """Some tokens of each sequence, behind each other: without mask, by token, by position, made inside."""
    d, (heads, groups, size) = _start(draw, min_context=1)
    dtype, longest = one_of(draw, *SHORT), max(d.contexts)
    queries = [integer(draw, 1, min(3, n)) for n in d.contexts]
    kind = one_of(draw, 0, 1, 3, 4)
    mask = {
        0: [],
        1: [torch.full((longest, longest), LARGE).triu(1).to(dtype)],
        3: [_random_mask(draw, [sum(queries), longest], dtype)],
        4: [torch.full((128, 128), LARGE).triu(1).to(dtype)],
    }[kind]
    caches = [floats(draw, [d.blocks, d.block, groups, size], dtype) for _ in range(2)]
    query = floats(draw, [sum(queries), heads, size], dtype)
    param = {**d.param, "calcType": 1, "maskType": kind}
    return param, [query, *caches, d.tables, counts(d.contexts), *mask, counts(queries)]


def _dequantised(draw: Draw) -> Drawn:
    """int8 caches, scaled back channel by channel, scales plain or packed."""
    d, (heads, groups, size) = _start(draw)
    caches = [integers(draw, [d.blocks, d.block, groups, size], -128, 127, torch.int8) for _ in range(2)]
    shifted, packed = flag(draw), flag(draw)
    extra = []
    for _ in range(2):
        scale = uniform(draw, [groups * size], 0.001, 0.02)
        extra.append(scale.view(torch.int32).long() if packed else scale)
        extra += [integers(draw, [groups * size], -20, 20, torch.int32)] if shifted else []
    query = floats(draw, [len(d.contexts), heads, size], one_of(draw, *SHORT))
    param = {**d.param, "quantType": 1, "hasQuantOffset": shifted}
    return param, [query, *caches, d.tables, counts(d.contexts), *extra]


def _eight_bit(draw: Draw) -> Drawn:
    """Query, keys and values in int8."""
    d, (heads, groups, _) = _start(draw)
    size, offline = 8 * integer(draw, 1, 2), flag(draw)
    query = integers(draw, [len(d.contexts), heads, size], -20, 20, torch.int8)
    caches = [integers(draw, [d.blocks, d.block, groups, size], -20, 20, torch.int8) for _ in range(2)]
    scales = [uniform(draw, [heads], 0.001, 0.01) for _ in range(2)]
    last = [uniform(draw, [heads], 60.0, 127.0)] if offline else []
    param = {**d.param, "quantType": 2 if offline else 3, "outDataType": one_of(draw, 1, 27)}
    return param, [query, *caches, d.tables, counts(d.contexts), *scales, *last]


def _compressed(draw: Draw) -> Drawn:
    """Tables, lengths and blocks for each sequence and key head, with an offset for each row or a mask."""
    d, (heads, groups, size) = _start(draw, rows=0)
    dtype, batch = one_of(draw, *SHORT), len(d.contexts) // groups
    longest = max(d.contexts)
    caches = [floats(draw, [d.blocks, d.block, 1, size], dtype) for _ in range(2)]
    query = floats(draw, [batch, heads, size], dtype)
    inputs = [query, *caches, d.tables, counts(d.contexts)]
    kind = one_of(draw, "razor", "none", "norm", "alibi") if longest else "razor"
    if kind == "razor":
        return {**d.param, "compressType": 2}, [*inputs, floats(draw, [d.blocks, d.block], torch.float32)]
    param = {**d.param, "compressType": 1, "maskType": {"none": 0, "norm": 1, "alibi": 2}[kind]}
    if kind == "norm":
        inputs.append(_random_mask(draw, [batch, 1, longest], dtype))
    if kind == "alibi":
        inputs.append(_random_mask(draw, [batch * groups, heads // groups, 1, longest], dtype))
    return param, inputs
