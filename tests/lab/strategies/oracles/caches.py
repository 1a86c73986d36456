"""Keys and values moved row by row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from .expected import Expected, same
from .table import Inputs, Param, oracle


@oracle("KvCacheOperation")
def kv_cache(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each new row at its position."""
    cache, layer, row = t["cache"].clone(), int(t["layerId"]), 0
    for b, (end, count) in enumerate(zip(t["tokenOffset"].tolist(), t["seqLen"].tolist())):
        for position in range(end - count, end):
            if cache.ndim == 4:
                cache[layer, b, position] = t["newKv"][row]
            for column, value in enumerate(t["newKv"][row] if cache.ndim == 5 else ()):
                cache[layer, b, column // 16, position, column % 16] = value
            row += 1
    return [same(cache)]


@oracle("ReshapeAndCacheOperation")
def reshape_and_cache(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each token into its slot."""
    if p["compressType"]:
        return [_by_head(t, "key"), _by_head(t, "value")]
    results = []
    for name in ("key", "value")[: 1 if p["kvCacheCfg"] == 1 else 2]:
        cache = t[f"{name}Cache"].clone()
        tiled = p["kvCacheCfg"] == 2
        block = cache.shape[2 if tiled else 1]
        for row, slot in zip(t[name], t["slots"].tolist()):
            if slot >= 0 and not tiled:
                cache[slot // block, slot % block] = row
            for column, value in enumerate(row.flatten() if slot >= 0 and tiled else ()):
                group = cache.shape[-1]
                cache[slot // block, column // group, slot % block, column % group] = value
        results.append(same(cache))
    return results


def _by_head(t: Inputs, name: str) -> Expected:
    """Entry by entry: the last tokens of a head, or all but a window, from its slot on."""
    new, cache = t[name], t[f"{name}Cache"].clone()
    rows, heads = cache.view(-1, cache.shape[-1]), new.shape[1]
    lengths, wins, slots = (t[n].tolist() for n in ("seqLen", "wins", "slots"))
    for i, (win, slot) in enumerate(zip(wins, slots)):
        b, head = divmod(i, heads)
        tokens = range(sum(lengths[:b]), sum(lengths[: b + 1]))
        for j, token in enumerate(tokens):
            if "offsetIndex" in t:
                start = int(t["offsetIndex"][i])
                keep = start == -1 or j < start or j >= start + win
            else:
                keep = j >= len(tokens) - win
            if keep and slot >= 0:
                rows[slot] = new[token, head]
                slot += 1
    return same(cache)


@oracle("ReshapeAndCacheOmniOperation")
def reshape_and_cache_omni(p: Param, t: Inputs) -> Sequence[Expected]:
    """All tokens but those of a window."""
    return [_by_head(t, "key"), _by_head(t, "value")]


@oracle("ReshapeAndCacheWithStrideOperation")
def reshape_and_cache_with_stride(p: Param, t: Inputs) -> Sequence[Expected]:
    """Element by element by strides, then as without."""
    views = dict(t)
    for name, letter in (("key", "k"), ("value", "v")):
        if name in t:
            steps, start = t[f"{letter}Stride"].tolist(), int(t[f"{letter}Offset"])
            flat = t[name].flatten()
            view = torch.empty_like(t[name])
            for place in itertools.product(*(range(n) for n in view.shape)):
                view[place] = flat[start + sum(i * step for i, step in zip(place, steps))]
            views[name] = view
    return reshape_and_cache(p, views)


@oracle("BlockCopyOperation")
def block_copy(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each block over its targets."""
    results = []
    for name in ("keyCache", "valueCache"):
        cache, start = t[name].clone(), 0
        for source, end in zip(t["srcBlocks"].tolist(), t["cumSum"].tolist()):
            for target in t["dstBlocks"].tolist()[start:end]:
                cache[target] = t[name][source]
            start = end
        results.append(same(cache))
    return results


@oracle("PagedCacheLoadOperation")
def paged_cache_load(p: Param, t: Inputs) -> Sequence[Expected]:
    """Rows of each request, one list."""
    counts = t["contextLens"].tolist()
    if p["isSeqLensCumsumMode"]:
        counts = [after - before for before, after in itertools.pairwise(counts)]
    starts = t["seqStarts"].tolist() if "seqStarts" in t else [0] * len(counts)
    results = []
    for name in ("key", "value"):
        cache, out = t[f"{name}Cache"], t[name].clone()
        if p["kvCacheCfg"] == 0:
            cache = torch.cat(cache.unbind(1), -1)
        block = cache.shape[1]
        places = [
            (int(table[first // block + i // block]), i % block)
            for table, count, first in zip(t["blockTables"], counts, starts)
            for i in range(count)
        ]
        for row, (number, place) in zip(out, places):
            row.copy_(cache[number, place].reshape(row.shape))
        results.append(same(out))
    return results
