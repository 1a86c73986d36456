"""Shape rules of operators that keep keys and values."""

from __future__ import annotations

from itertools import accumulate

import torch

from .table import rule
from .values import SHORT, Draw, Drawn, counts, distinct, flag, floats, integer, integers, numbers, one_of


@rule("KvCacheOperation")
def kv_cache(draw: Draw) -> Drawn:
    """New rows of some sequences behind what each has, in rows or in groups of columns."""
    new, layers, dtype, tiled = numbers(draw, 1, 3, 0, 3), integer(draw, 1, 3), torch.float16, flag(draw)
    width = 16 * integer(draw, 1, 2) if tiled else integer(draw, 1, 8)
    ends = [n + integer(draw, 0, 3) for n in new]
    positions, batch = max(ends) + integer(draw, 0 if max(ends) else 1, 2), len(new) + integer(draw, 0, 1)
    size = [width // 16, positions, 16] if tiled else [positions, width]
    cache = floats(draw, [layers, batch, *size], dtype)
    layer = counts([integer(draw, 0, layers - 1)])
    return {}, [floats(draw, [sum(new), width], dtype), layer, cache, counts(ends), counts(new)]


@rule("ReshapeAndCacheOperation")
def reshape_and_cache(draw: Draw) -> Drawn:
    """Different slots, some skipped; keys and values, or keys alone; tiled caches; compressed heads."""
    kind = one_of(draw, "plain", "alone", "tiled", "last", "window")
    if kind in ("last", "window"):
        new, caches, last = _by_head(draw, window=kind == "window")
        return {"compressType": 1 if kind == "last" else 2}, [*new, *caches, *last]
    tokens, block, blocks = integer(draw, 0, 5), integer(draw, 1, 4), integer(draw, 2, 6)
    tokens = min(tokens, block * blocks)
    slots = distinct(draw, tokens, block * blocks)
    if tokens and flag(draw):
        slots[integer(draw, 0, tokens - 1)] = -1
    heads, dtype = integer(draw, 1, 3), one_of(draw, *SHORT, torch.int8)
    group = 32 if dtype == torch.int8 else 16
    new, caches = [], []
    for _ in range(1 if kind == "alone" else 2):
        size = group // one_of(draw, 1, 2) if kind == "tiled" else integer(draw, 1, 8)
        heads = heads if kind != "tiled" or size == group else 2
        cache = [blocks, block, heads, size]
        if kind == "tiled":
            cache = [blocks, heads * size // group, block, group]
        new.append(_numbers(draw, [tokens, heads, size], dtype))
        caches.append(_numbers(draw, cache, dtype))
    return {"kvCacheCfg": {"plain": 0, "alone": 1, "tiled": 2}[kind]}, [*new, *caches, slots]


def _numbers(draw: Draw, size: list[int], dtype: torch.dtype) -> torch.Tensor:
    return integers(draw, size, -128, 127, dtype) if dtype == torch.int8 else floats(draw, size, dtype)


def _by_head(
    draw: Draw, *, window: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """New keys and values, caches of compressed heads, and slots, wins, lengths (and where windows begin)."""
    lengths, heads, size = numbers(draw, 1, 3, 0, 5), integer(draw, 1, 3), integer(draw, 1, 6)
    dtype, pairs = one_of(draw, *SHORT), len(lengths) * heads
    wins = [integer(draw, 0, 4) for _ in range(pairs)]
    room = 6  # rows that no entry outgrows
    block = one_of(draw, 1, 2, 3, 6)
    slots = distinct(draw, pairs, pairs + 1) * room
    skipped = integer(draw, 0, pairs)
    if skipped < pairs:
        slots[skipped] = -1
    new = [floats(draw, [sum(lengths), heads, size], dtype) for _ in range(2)]
    blocks = (pairs + 1) * room // block
    caches = [floats(draw, [blocks, block, 1, size], dtype) for _ in range(2)]
    last = [slots, counts(wins), counts(lengths)]
    if window:
        last.append(counts([integer(draw, -1, 4) for _ in range(pairs)]))
    return new, caches, last


@rule("ReshapeAndCacheOmniOperation")
def reshape_and_cache_omni(draw: Draw) -> Drawn:
    """Every head of every sequence without a window of its own."""
    new, caches, last = _by_head(draw, window=True)
    return {}, [*new, *caches, *last]


@rule("ReshapeAndCacheWithStrideOperation")
def reshape_and_cache_with_stride(draw: Draw) -> Drawn:
    """All forms, of views that begin anywhere and step over, repeat or overlap their rows."""
    param, tensors = reshape_and_cache(draw)
    operands = [operand for operand in tensors if operand is not None]
    views = [_view(draw, operand) for operand in operands[: 1 if param.get("kvCacheCfg") == 1 else 2]]
    return param, [*operands, *(steps for steps, _ in views), *(start for _, start in views)]


def _view(draw: Draw, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Strides and offset of a view of the shape of `x` inside its own elements."""
    if not x.numel():
        return torch.tensor(x.stride()), torch.zeros(1, dtype=torch.int64)
    steps = list(x.stride())
    steps[0] = integer(draw, 0, steps[0])
    last = sum((n - 1) * step for n, step in zip(x.shape, steps))
    return torch.tensor(steps), torch.tensor([integer(draw, 0, x.numel() - 1 - last)])


@rule("BlockCopyOperation")
def block_copy(draw: Draw) -> Drawn:
    """Blocks copied over others; no block is both source and target."""
    targets = numbers(draw, 1, 2, 1, 2)
    sources, total = len(targets), sum(targets)
    blocks = sources + total + integer(draw, 0, 2)
    places = distinct(draw, sources + total, blocks)
    size = [blocks, integer(draw, 1, 3), integer(draw, 1, 2), integer(draw, 1, 4)]
    caches = [floats(draw, size, torch.float16) for _ in range(2)]
    return {}, [*caches, places[:sources], places[sources:], counts(list(accumulate(targets)))]


@rule("PagedCacheLoadOperation")
def paged_cache_load(draw: Draw) -> Drawn:
    """Rows of some requests from their blocks, by lengths or running sums, from any block on."""
    contexts, block, tiled, late = numbers(draw, 1, 3, 0, 7), integer(draw, 1, 4), flag(draw), flag(draw)
    starts = [integer(draw, 0, 2) if late else 0 for _ in contexts]
    batch, columns = len(contexts), max(-(-n // block) + first for n, first in zip(contexts, starts))
    blocks = batch * columns + integer(draw, 1, 2)
    tables = distinct(draw, batch * columns, blocks).reshape(batch, columns)
    heads, running = integer(draw, 1, 2), flag(draw)
    dtype = one_of(draw, *SHORT, torch.int8)
    group = 32 if dtype == torch.int8 else 16
    caches, out = [], []
    for _ in range(2):
        size = group * integer(draw, 1, 2) if tiled else integer(draw, 1, 8)
        shape = [blocks, heads * size // group, block, group] if tiled else [blocks, block, heads, size]
        caches.append(_numbers(draw, shape, dtype))
        out.append(integers(draw, [sum(contexts), heads, size], 7, 7, dtype))
    ends = [0, *accumulate(contexts)] if running else contexts
    param = {"kvCacheCfg": int(not tiled), "isSeqLensCumsumMode": running, "hasSeqStarts": late}
    offsets = [counts([first * block for first in starts])] if late else []
    return param, [*caches, tables, counts(ends), *out, *offsets]
