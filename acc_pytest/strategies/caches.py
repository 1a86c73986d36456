"""Shape rules of operators that keep keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch

from .table import rule
from .values import SHORT, Draw, Drawn, counts, distinct, floats, one_of, some, whole, wholes, yes


@rule("KvCacheOperation")
def kv_cache(draw: Draw) -> Drawn:
    """New rows of some sequences behind what each has."""
    new, layers, width, dtype = some(draw, 1, 3, 1, 3), whole(draw, 1, 3), whole(draw, 1, 8), torch.float16
    ends = [n + whole(draw, 0, 3) for n in new]
    positions, batch = max(ends) + whole(draw, 0, 2), len(new) + whole(draw, 0, 1)
    cache = floats(draw, [layers, batch, positions, width], dtype)
    layer = counts([whole(draw, 0, layers - 1)])
    return {}, [floats(draw, [sum(new), width], dtype), layer, cache, counts(ends), counts(new)]


@rule("ReshapeAndCacheOperation")
def reshape_and_cache(draw: Draw) -> Drawn:
    """Different slots, some of them skipped; keys and values, or keys alone."""
    tokens, heads, size = whole(draw, 1, 5), whole(draw, 1, 3), whole(draw, 1, 8)
    block, blocks = whole(draw, 1, 4), whole(draw, 2, 6)
    tokens = min(tokens, block * blocks)
    slots = distinct(draw, tokens, block * blocks)
    if yes(draw):
        slots[whole(draw, 0, tokens - 1)] = -1
    alone, dtype = yes(draw), one_of(draw, *SHORT)
    number = 1 if alone else 2
    new = [floats(draw, [tokens, heads, size], dtype) for _ in range(number)]
    caches = [floats(draw, [blocks, block, heads, size], dtype) for _ in range(number)]
    return {"kvCacheCfg": int(alone)}, [*new, *caches, slots]


def _by_head(
    draw: Draw, *, window: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """New keys and values, caches of compressed heads, and slots, wins, lengths (and where windows begin)."""
    lengths, heads, size = some(draw, 1, 3, 0, 5), whole(draw, 1, 3), whole(draw, 1, 6)
    dtype, pairs = one_of(draw, *SHORT), len(lengths) * heads
    wins = [whole(draw, 0, 4) for _ in range(pairs)]
    room = 6  # rows that no entry outgrows
    block = one_of(draw, 1, 2, 3, 6)
    slots = distinct(draw, pairs, pairs + 1) * room
    skipped = whole(draw, 0, pairs)
    if skipped < pairs:
        slots[skipped] = -1
    new = [floats(draw, [sum(lengths), heads, size], dtype) for _ in range(2)]
    blocks = (pairs + 1) * room // block
    caches = [floats(draw, [blocks, block, 1, size], dtype) for _ in range(2)]
    last = [slots, counts(wins), counts(lengths)]
    if window:
        last.append(counts([whole(draw, -1, 4) for _ in range(pairs)]))
    return new, caches, last


@rule("ReshapeAndCacheOmniOperation")
def reshape_and_cache_omni(draw: Draw) -> Drawn:
    """Every head of every sequence without a window of its own."""
    new, caches, last = _by_head(draw, window=True)
    return {}, [*new, *caches, *last]


@rule("ReshapeAndCacheWithStrideOperation")
def reshape_and_cache_with_stride(draw: Draw) -> Drawn:
    """All forms, of views that begin anywhere and step over, repeat or overlap their rows."""
    kind = whole(draw, 0, 2)
    param: Mapping[str, Any]
    if kind:
        new, caches, last = _by_head(draw, window=kind == 2)
        param, operands = {"compressType": kind}, [*new, *caches, *last]
    else:
        param, given = reshape_and_cache(draw)
        operands = [one for one in given if one is not None]
        new = operands[: 1 if param["kvCacheCfg"] else 2]
    views = [_view(draw, one) for one in new]
    return param, [*operands, *(steps for steps, _ in views), *(start for _, start in views)]


def _view(draw: Draw, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Strides and offset of a view of the shape of `x` inside its own elements."""
    if not x.numel():
        return torch.tensor(x.stride()), torch.zeros(1, dtype=torch.int64)
    steps = list(x.stride())
    steps[0] = whole(draw, 0, steps[0])
    last = sum((n - 1) * step for n, step in zip(x.shape, steps))
    return torch.tensor(steps), torch.tensor([whole(draw, 0, x.numel() - 1 - last)])


@rule("BlockCopyOperation")
def block_copy(draw: Draw) -> Drawn:
    """Blocks copied over others; no block is both source and target."""
    targets = some(draw, 1, 2, 1, 2)
    sources, total = len(targets), sum(targets)
    blocks = sources + total + whole(draw, 0, 2)
    numbers = distinct(draw, sources + total, blocks)
    size = [blocks, whole(draw, 1, 3), whole(draw, 1, 2), whole(draw, 1, 4)]
    caches = [floats(draw, size, torch.float16) for _ in range(2)]
    return {}, [*caches, numbers[:sources], numbers[sources:], counts(list(accumulate(targets)))]


@rule("PagedCacheLoadOperation")
def paged_cache_load(draw: Draw) -> Drawn:
    """Rows of some requests from their blocks, by lengths or by running sums of them."""
    contexts, block = some(draw, 1, 3, 1, 7), whole(draw, 1, 4)
    batch, columns = len(contexts), max(-(-n // block) for n in contexts)
    blocks = batch * columns + whole(draw, 0, 2)
    tables = distinct(draw, batch * columns, blocks).reshape(batch, columns)
    heads, size, running = whole(draw, 1, 2), whole(draw, 1, 8), yes(draw)
    caches = [floats(draw, [blocks, block, heads, size], torch.float16) for _ in range(2)]
    ends = [0, *accumulate(contexts)] if running else contexts
    out = [wholes(draw, [sum(contexts), heads, size], 0, 0, torch.float16) for _ in range(2)]
    param = {"kvCacheCfg": 1, "isSeqLensCumsumMode": running, "hasSeqStarts": False}
    return param, [*caches, tables, counts(ends), *out]
