"""Shape rules of operators that keep keys and values."""

from __future__ import annotations

from itertools import accumulate

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
