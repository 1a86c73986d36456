"""Shape rules of operators that move, cut, join, pad: their outputs are copies."""

from __future__ import annotations

from itertools import accumulate

import torch

from .values import (
    FLOATS,
    SHORT,
    Draw,
    Drawn,
    axis,
    counts,
    distinct,
    flag,
    floats,
    integer,
    integers,
    numbers,
    one_of,
    order,
    rule,
    shape,
)

_ANY = (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.int64)


def _values(draw: Draw, size: list[int]) -> torch.Tensor:
    dtype = one_of(draw, *_ANY)
    return floats(draw, size, dtype) if dtype.is_floating_point else integers(draw, size, -100, 100, dtype)


@rule("GatherOperation")
def gather(draw: Draw) -> Drawn:
    """Any axis, indices of any shape, common leading dimensions as batches."""
    size = shape(draw)
    dim = integer(draw, 0, len(size) - 1)
    batch = integer(draw, 0, dim)
    places = [*size[:batch], *shape(draw, 1, 2)]
    indices = integers(draw, places, 0, size[dim] - 1, one_of(draw, torch.int64, torch.int32))
    axis = dim - len(size) if flag(draw) else dim
    return {"axis": axis, "batchDims": batch}, [_values(draw, size), indices]


@rule("TransposeOperation")
def transpose(draw: Draw) -> Drawn:
    """Any permutation."""
    size = shape(draw)
    return {"perm": order(draw, len(size))}, [_values(draw, size)]


@rule("AsStridedOperation")
def as_strided(draw: Draw) -> Drawn:
    """Views inside the tensor, overlapping ones too."""
    size, stride = shape(draw, 1, 3, 4), []
    stride = numbers(draw, len(size), len(size), 0, 5)
    offset = integer(draw, 0, 4)
    needed = 1 + offset + sum((n - 1) * s for n, s in zip(size, stride))
    x = _values(draw, [needed + integer(draw, 0, 3)])
    return {"size": size, "stride": stride, "offset": [offset]}, [x]


@rule("ConcatOperation")
def concat(draw: Draw) -> Drawn:
    """Two tensors that differ in one dimension at most."""
    left, dtype = shape(draw), one_of(draw, *FLOATS)
    dim, right = axis(draw, len(left)), list(left)
    right[dim] = integer(draw, 1, 6)
    return {"concatDim": dim}, [floats(draw, left, dtype), floats(draw, right, dtype)]


@rule("SplitOperation")
def split(draw: Draw) -> Drawn:
    """Two or three parts, equal or of given sizes."""
    size, number = shape(draw), integer(draw, 2, 3)
    dim = axis(draw, len(size))
    if flag(draw):
        sizes = numbers(draw, number, number, 1, 5)
        size[dim] = sum(sizes)
        return {"splitNum": number, "splitDim": dim, "splitSizes": sizes}, [_values(draw, size)]
    size[dim] *= number
    return {"splitNum": number, "splitDim": dim}, [_values(draw, size)]


@rule("SliceOperation")
def slice_(draw: Draw) -> Drawn:
    """A box; offsets may count from the end, -1 goes to the end."""
    size, offsets, lengths = shape(draw), [], []
    for n in size:
        first = integer(draw, 0, n - 1)
        offsets.append(first - n if flag(draw) else first)
        lengths.append(-1 if flag(draw) else integer(draw, 1, n - first))
    return {"offsets": offsets, "size": lengths}, [_values(draw, size)]


@rule("RepeatOperation")
def repeat(draw: Draw) -> Drawn:
    """Multiples, as many as dimensions or more."""
    size = shape(draw, 1, 3, 4)
    count = len(size) + integer(draw, 0, 1)
    return {"multiples": numbers(draw, count, count, 1, 3)}, [_values(draw, size)]


@rule("SetValueOperation")
def set_value(draw: Draw) -> Drawn:
    """A box inside the target."""
    size, dtype = shape(draw), one_of(draw, *FLOATS)
    starts = [integer(draw, 0, n - 1) for n in size]
    ends = [integer(draw, first + 1, n) for first, n in zip(starts, size)]
    box = [stop - first for first, stop in zip(starts, ends)]
    param = {"starts": starts, "ends": ends, "strides": [1] * len(size)}
    return param, [floats(draw, size, dtype), floats(draw, box, dtype)]


@rule("TransdataOperation")
def transdata(draw: Draw) -> Drawn:
    """To NZ from any matrix, and back with the padding cut off."""
    batch, rows, columns = integer(draw, 1, 2), integer(draw, 1, 33), integer(draw, 1, 33)
    if flag(draw):
        dtype = one_of(draw, torch.float16, torch.int8)
        lead = [batch] if flag(draw) else []
        size = [*lead, rows, columns]
        x = floats(draw, size, dtype) if dtype != torch.int8 else integers(draw, size, -100, 100, dtype)
        return {"transdataType": 2}, [x]
    stored = [batch, -(-columns // 16), -(-rows // 16) * 16, 16]
    return {"transdataType": 1, "outCrops": [rows, columns]}, [floats(draw, stored, torch.float16)]


@rule("PadOperation")
def pad(draw: Draw) -> Drawn:
    """Packed tokens of some sequences."""
    lengths, width = numbers(draw, 1, 4, 1, 5), integer(draw, 1, 8)
    tokens, longest = sum(lengths), max(lengths)
    rows = floats(draw, [tokens, width], one_of(draw, *SHORT))
    offsets = integers(draw, [1, tokens], 0, 3, torch.int32)
    ids = integers(draw, [len(lengths), longest], 0, 100, torch.int64)
    return {}, [rows, offsets, counts(lengths)[:, None], ids]


@rule("UnpadOperation")
def unpad(draw: Draw) -> Drawn:
    """Padded ids of some sequences, with the padding counted so far."""
    lengths = numbers(draw, 1, 4, 1, 5)
    longest = max(lengths) + integer(draw, 0, 2)
    ids = integers(draw, [len(lengths), longest], 1, 100, torch.int64)
    padding = list(accumulate(longest - n for n in lengths))
    tokens = torch.tensor([[sum(lengths)]], dtype=torch.int64)
    return {}, [ids, counts(padding)[:, None], tokens, counts(lengths)[:, None]]


@rule("PadWithHiddenStateOperation")
def pad_with_hidden_state(draw: Draw) -> Drawn:
    """Packed rows of some sequences."""
    lengths, width = numbers(draw, 1, 4, 1, 5), integer(draw, 1, 8)
    x = floats(draw, [sum(lengths), width], one_of(draw, *SHORT))
    return {"qSeqLen": lengths, "maxSeqLen": max(lengths) + integer(draw, 0, 2)}, [x]


@rule("UnpadWithHiddenStateOperation")
def unpad_with_hidden_state(draw: Draw) -> Drawn:
    """Padded rows of some sequences."""
    lengths, width = numbers(draw, 1, 4, 1, 5), integer(draw, 1, 8)
    longest = max(lengths) + integer(draw, 0, 2)
    x = floats(draw, [len(lengths), longest, width], one_of(draw, *SHORT))
    return {"qSeqLen": lengths, "maxSeqLen": longest}, [x]


# Shape rules of operators that keep keys and values.


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
