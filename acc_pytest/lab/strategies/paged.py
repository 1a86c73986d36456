"""Shape rules of PagedAttentionOperation: masks, several tokens, int8, compressed heads, values in keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ...operators.layout import nd_to_nz
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
    rule,
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


# Shape rules of latent attention and its kin: rings, shared prefixes, pictures with bands.


_SCALES = (1.0, 0.5, 0.125)


@rule("MultiLatentAttentionOperation")
def multi_latent_attention(draw: Draw) -> Drawn:
    """Decoding over latent caches of all kinds, with and without sums, and prefill."""
    if integer(draw, 0, 3) == 3:
        return _prefill(draw)
    kind, several, ring = one_of(draw, "apart", "nz", "int8"), flag(draw), flag(draw)
    heads, dtype, tiled = integer(draw, 1, 4), one_of(draw, *SHORT), kind != "apart"
    latent, rope = (32, 16) if tiled else (integer(draw, 1, 12), integer(draw, 1, 6))
    lengths = numbers(draw, 1, 3, 1, 20)
    queries = [integer(draw, 1, min(3, n)) for n in lengths] if several else [1] * len(lengths)
    block = 16 if tiled else one_of(draw, 2, 5, 16)
    tables, blocks = block_tables(draw, lengths, block)
    of_latent = [sum(queries), heads, latent], [blocks, block, 1, latent]
    query, cache = (
        integers(draw, size, -20, 20, torch.int8) if kind == "int8" else floats(draw, size, dtype)
        for size in of_latent
    )
    turned = floats(draw, [sum(queries), heads, rope], dtype)
    ropes = floats(draw, [blocks, block, 1, rope], dtype)
    if tiled:
        cache, ropes = nd_to_nz(cache[:, :, 0], 32 if kind == "int8" else 16), nd_to_nz(ropes[:, :, 0])
    param: dict[str, Any] = {
        "headNum": heads,
        "kvHeadNum": 1,
        "qkScale": one_of(draw, *_SCALES),
        "calcType": int(several) + 2 * int(ring),
        "cacheMode": {"apart": 1, "nz": 3, "int8": 2}[kind],
        "maskType": one_of(draw, 0, 1, 2, 3) if several else 0,
    }
    mask = _spec_mask(draw, param["maskType"], queries, lengths, dtype)
    extra = [counts(queries)] if several else []
    if kind == "int8":
        extra += [floats(draw, [heads], torch.float32, positive=True) / 512 for _ in range(2)]
    return param, [query, turned, cache, ropes, tables, counts(lengths), *mask, *extra]


def _spec_mask(
    draw: Draw, kind: int, queries: list[int], lengths: list[int], dtype: torch.dtype
) -> list[torch.Tensor]:
    """The operand of a mask that is not made inside: a row for each token, every row sees its first key."""
    if kind in (0, 3):
        return []
    if kind == 2:
        return [torch.full((128, 128), LARGE).triu(1).to(dtype)]
    mask = integers(draw, [sum(queries), max(lengths)], 0, 1, torch.int8).to(dtype) * LARGE
    mask[:, 0] = 0
    return [mask]


def _prefill(draw: Draw) -> Drawn:
    """Packed queries over packed or padded keys: everything, up to themselves, or a window."""
    lengths, kind = numbers(draw, 1, 3, 1, 6), one_of(draw, 0, 2, 3, 4)
    before = [integer(draw, 0, 3) for _ in lengths]
    totals = [n + past for n, past in zip(lengths, before)]
    groups, share, dtype = integer(draw, 1, 2), integer(draw, 1, 2), one_of(draw, *SHORT)
    heads, size, rope = groups * share, integer(draw, 1, 10), integer(draw, 1, 5)
    param: dict[str, Any] = {
        "headNum": heads,
        "kvHeadNum": groups,
        "qkScale": one_of(draw, *_SCALES),
        "calcType": 4,
        "cacheMode": 1,
        "maskType": kind,
        "windowSize": integer(draw, 1, 4) if kind == 4 else 0,
    }
    tokens, longest = sum(lengths), max(totals)
    padded = longest != groups and flag(draw)
    query, turned = floats(draw, [tokens, heads, size], dtype), floats(draw, [tokens, heads, rope], dtype)
    keys = [
        floats(draw, [len(totals), longest, groups * n] if padded else [sum(totals), groups, n], dtype)
        for n in (size, rope, size)
    ]
    mask = [torch.full((4, 4), LARGE).triu(1).to(dtype)] if kind in (2, 4) else []
    return param, [query, turned, *keys, counts(lengths), counts(totals), *mask]


@rule("RingMLAOperation")
def ring_mla(draw: Draw) -> Drawn:
    """One part of a ring, the first or a later one; sequences without keys hand on what they had."""
    lengths, groups, share = numbers(draw, 1, 3, 1, 5), integer(draw, 1, 2), integer(draw, 1, 2)
    heads, size, rope, wide = groups * share, integer(draw, 1, 10), integer(draw, 1, 5), integer(draw, 1, 6)
    dtype, first, self_attending = one_of(draw, *SHORT), flag(draw), flag(draw)
    totals = lengths if self_attending else [integer(draw, 0, 6) for _ in lengths]
    param = {
        "headNum": heads,
        "kvHeadNum": groups,
        "qkScale": one_of(draw, *_SCALES),
        "calcType": int(first),
        "maskType": integer(draw, 0, 1),
    }
    queries = [floats(draw, [sum(lengths), heads, n], dtype) for n in (size, rope)]
    keys = [floats(draw, [sum(totals), groups, n], dtype) for n in (size, rope, wide)]
    mask = torch.full((8, 8), LARGE).triu(1).to(dtype) if param["maskType"] else None
    count = counts(lengths) if self_attending else torch.stack((counts(lengths), counts(totals)))
    if first:
        return param, [*queries, *keys, mask, count]
    before = [
        floats(draw, [sum(lengths), heads, wide], dtype),
        floats(draw, [heads, sum(lengths)], torch.float32),
    ]
    return param, [*queries, *keys, mask, count, *before]


@rule("RelayAttentionOperation")
def relay_attention(draw: Draw) -> Drawn:
    """Sequences with and without shared rows; every one sees something."""
    shared = numbers(draw, 1, 3, 1, 4)
    owners = numbers(draw, 1, 4, -1, len(shared) - 1)
    queries = [integer(draw, 1, 3) for _ in owners]
    lengths = [integer(draw, 1 if owner < 0 else 0, 5) for owner in owners]
    groups, share, size = integer(draw, 1, 2), integer(draw, 1, 3), integer(draw, 1, 10)
    heads, dtype = groups * share, one_of(draw, *SHORT)
    totals = [n + (shared[owner] if owner >= 0 else 0) for n, owner in zip(lengths, owners)]
    param = {"headNum": heads, "kvHeadNum": groups, "qkScale": one_of(draw, *_SCALES), "maskType": 0}
    spread = flag(draw)

    def rows(count: int, number: int) -> torch.Tensor:
        return floats(draw, [count, number, size] if spread else [count, number * size], dtype)

    tensors = [
        rows(sum(queries), heads),
        *(rows(n, groups) for n in (sum(lengths), sum(lengths), sum(shared), sum(shared))),
    ]
    return param, [*tensors, counts(queries), counts(totals), counts(owners), counts(shared)]


@rule("RazorFusionAttentionOperation")
def razor_fusion_attention(draw: Draw) -> Drawn:
    """Pictures of up to three blocks, text or none."""
    length, size, batch = one_of(draw, 0, 5, 130, 257), integer(draw, 1, 4), integer(draw, 1, 2)
    min_length = 0 if length else 1
    param = {
        "qkScale": one_of(draw, *_SCALES),
        "razorLen": length,
        "tileQ": 1,
        "tileKv": integer(draw, 1, 2),
        "textQLen": integer(draw, min_length, 3),
        "textKvLen": integer(draw, min_length, 3),
        "preTokens": 128 * integer(draw, 0, 2),
        "nextTokens": 128 * integer(draw, 0, 2),
    }
    rows = length + int(param["textQLen"])
    columns = length * int(param["tileKv"]) + int(param["textKvLen"])
    dtype, lead = one_of(draw, *SHORT), [1] if flag(draw) else []
    return param, [floats(draw, [batch * n, *lead, size], dtype) for n in (rows, columns, columns)]
