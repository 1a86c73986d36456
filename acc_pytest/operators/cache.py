"""Operators that keep keys and values: contiguous caches, paged caches, copies between blocks."""

from __future__ import annotations

from itertools import pairwise

import torch

from .layout import nz_to_nd
from .registry import OperatorCall, Outputs, Param, Tensors, choice, flag, operator


def lengths(tensor: torch.Tensor) -> list[int]:
    """A host tensor of counts as a list."""
    return [int(value) for value in tensor.flatten().tolist()]


@operator("KvCacheOperation", {}, ("newKv", "layerId", "cache", "tokenOffset", "seqLen"), writes=("cache",))
def kv_cache(call: OperatorCall, t: Tensors) -> Outputs:
    """Append packed rows `[tokens, hidden]` to layer `layerId` of `[layers, batch, positions, hidden]`.

    Sequence b ends at `tokenOffset[b]` afterwards and has `seqLen[b]` new rows. A NZ cache is `[layers,
    batch, hidden / 16, positions, 16]`, and the rows may then be NZ as well. No output.
    """
    cache = t["cache"].clone()
    layer, rows, counts = cache[int(t["layerId"].flatten()[0])], t["newKv"], lengths(t["seqLen"])
    if layer.ndim == 4 and rows.ndim > 2 and rows.shape[-1] == layer.shape[-1] < layer[0, :, 0].numel():
        rows = nz_to_nd(rows, sum(counts))
    append(call, layer, rows.reshape(-1, rows.shape[-1]), lengths(t["tokenOffset"]), counts)
    return [cache]


def append(
    call: OperatorCall, layer: torch.Tensor, rows: torch.Tensor, offsets: list[int], counts: list[int]
) -> None:
    """Write packed `rows` into one layer's cache `[batch, positions, hidden]` (or NZ), in place."""
    positions = layer.shape[-2]
    call.need(
        len(offsets) == len(counts) <= layer.shape[0] and sum(counts) == rows.shape[0],
        f"tokenOffset {offsets} and seqLen {counts} do not fit {rows.shape[0]} tokens "
        f"and {layer.shape[0]} caches",
    )
    for sequence, tokens, stop, count in zip(layer, torch.split(rows, counts), offsets, counts):
        call.need(
            stop - count >= 0 and stop <= positions,
            f"tokens up to {stop} do not fit a cache of {positions} positions",
        )
        if layer.ndim == 4:
            tokens = torch.unflatten(tokens, -1, (layer.shape[1], -1)).transpose(0, 1)
        sequence[..., stop - count : stop, :] = tokens


NONE, ALIBI, RAZOR = 0, 1, 2
KEY_AND_VALUE, KEY_ONLY, NZ = 0, 1, 2
RESHAPE = {
    "compressType": choice(0, "none", "heads by alibi", "heads by rope"),
    "kvCacheCfg": choice(0, "key and value", "key only", "NZ"),
}


def _reshape_inputs(param: Param) -> list[str]:
    if param["kvCacheCfg"] == KEY_ONLY:
        return ["key", "keyCache", "slots"]
    extra = {NONE: [], ALIBI: ["wins", "seqLen"], RAZOR: ["wins", "seqLen", "offsetIndex"]}
    return ["key", "value", "keyCache", "valueCache", "slots", *extra[param["compressType"]]]


def _reshape_aliases(param: Param) -> dict[int, str]:
    return {0: "keyCache"} if param["kvCacheCfg"] == KEY_ONLY else {0: "keyCache", 1: "valueCache"}


@operator("ReshapeAndCacheOperation", RESHAPE, _reshape_inputs, aliases=_reshape_aliases, by_chip=True)
def reshape_and_cache(call: OperatorCall, t: Tensors) -> Outputs:
    """Keys (and values) `[tokens, heads, size]` into the `slots` of paged caches, which are the outputs.

    Slot s is row s mod block of block s div block of `[blocks, block, heads, size]` (NZ: `[blocks,
    heads * size / 16, block, 16]`); a negative slot is skipped. With `compressType` each (sequence, head)
    has a slot of its own and keeps `wins` tokens (alibi: the last ones; rope: all but a window).
    """
    names = [n for n in ("key", "value") if n in t]
    if call.param["compressType"] == NONE:
        return [store(call, t[n], t[f"{n}Cache"], t["slots"]) for n in names]
    return [_stored_by_head(call, t[n], t[f"{n}Cache"], t) for n in names]


def store(
    call: OperatorCall, new: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, *, nz: bool | None = None
) -> torch.Tensor:
    """A copy of a paged cache with the rows of `new` in their slots; `nz`: its columns are in groups.

    Without `nz` the parameter `kvCacheCfg` says so, or the chip and the shape.
    """
    where = slots.flatten().long()
    rows = new.flatten(1) if new.ndim > 1 else new[:, None]
    if nz is None:
        always = call.soc.startswith("Ascend310") and cache.ndim == 4 and cache.shape[-1] in (16, 32)
        nz = call.param.get("kvCacheCfg") == NZ or always
    block = cache.shape[2] if nz else cache.shape[1]
    call.need(
        len(where) == len(rows)
        and rows.shape[1] == cache.numel() // max(cache.shape[0] * block, 1)
        and new.dtype == cache.dtype,
        f"{new.dtype} {list(new.shape)} with {len(where)} slots does not fit cache {cache.dtype} "
        f"{list(cache.shape)}",
    )
    call.need(
        not len(where) or int(where.max()) < cache.shape[0] * block,
        f"slot {int(where.max()) if len(where) else 0} is outside {cache.shape[0]} blocks of {block}",
    )
    stored = where >= 0
    where, rows = where[stored], rows[stored]
    result = cache.clone(memory_format=torch.contiguous_format)
    if nz:
        groups = torch.unflatten(rows, -1, (cache.shape[1], cache.shape[3]))
        result[where // block, :, where % block] = groups
    else:
        result.view(-1, rows.shape[1])[where] = rows
    return result


def _stored_by_head(call: OperatorCall, new: torch.Tensor, cache: torch.Tensor, t: Tensors) -> torch.Tensor:
    counts, wins, slots = lengths(t["seqLen"]), lengths(t["wins"]), lengths(t["slots"])
    heads = new.shape[1]
    skipped = lengths(t["offsetIndex"]) if "offsetIndex" in t else []
    call.need(
        len(wins) == len(slots) == len(counts) * heads and sum(counts) == new.shape[0],
        f"wins and slots need one entry for each of {len(counts)} sequences and {heads} heads",
    )
    result = cache.clone(memory_format=torch.contiguous_format)
    flat = result.view(-1, cache.shape[-1])
    starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
    for i, (win, slot) in enumerate(zip(wins, slots)):
        if slot < 0:
            continue
        start, stop = starts[i // heads], starts[i // heads + 1]
        rows = new[start:stop, i % heads]
        if not skipped:
            rows = rows[max(stop - start - win, 0) :]
        elif skipped[i] != -1:
            first = skipped[i]
            rows = torch.cat((rows[:first], rows[first + win :]))
        call.need(slot + len(rows) <= len(flat), f"slot {slot} + {len(rows)} is outside the cache")
        flat[slot : slot + len(rows)] = rows
    return result


@operator(
    "ReshapeAndCacheOmniOperation",
    {},
    ("key", "value", "keyCache", "valueCache", "slots", "wins", "seqLen", "offsetIndex"),
    aliases={0: "keyCache", 1: "valueCache"},
)
def reshape_and_cache_omni(call: OperatorCall, t: Tensors) -> Outputs:
    """ReshapeAndCache of compressed heads, rope form, under a name of its own."""
    return [_stored_by_head(call, t[n], t[f"{n}Cache"], t) for n in ("key", "value")]


def _strided_inputs(param: Param) -> list[str]:
    alone = param["kvCacheCfg"] == KEY_ONLY
    last = ["kStride", "kOffset"] if alone else ["kStride", "vStride", "kOffset", "vOffset"]
    return [*_reshape_inputs(param), *last]


@operator(
    "ReshapeAndCacheWithStrideOperation", RESHAPE, _strided_inputs, aliases=_reshape_aliases, by_chip=True
)
def reshape_and_cache_with_stride(call: OperatorCall, t: Tensors) -> Outputs:
    """ReshapeAndCache of the views of key and value that strides and offsets (elements) describe."""
    views = dict(t)
    for name, letter in (("key", "k"), ("value", "v")):
        if name in t:
            views[name] = view(call, t[name], t[f"{letter}Stride"], t[f"{letter}Offset"], name)
    return reshape_and_cache(call, views)


def view(
    call: OperatorCall, x: torch.Tensor, strides: torch.Tensor, offset: torch.Tensor, name: str = "x"
) -> torch.Tensor:
    """`x` as a view of its own elements, in its own shape, by host tensors of strides and offset."""
    steps, start = lengths(strides), lengths(offset)[0]
    call.need(len(steps) == x.ndim, f"strides {steps} do not fit {name} {list(x.shape)}")
    if not x.numel():
        return x
    last = start + sum((n - 1) * s for n, s in zip(x.shape, steps))
    call.need(
        0 <= start <= last < x.numel() and min(steps) >= 0,
        f"strides {steps} and offset {start} reach outside {name} {list(x.shape)}",
    )
    return x.contiguous().as_strided(x.shape, steps, start)


BLOCKS = ("keyCache", "valueCache", "srcBlocks", "dstBlocks", "cumSum")


@operator("BlockCopyOperation", {}, BLOCKS, writes=("keyCache", "valueCache"))
def block_copy(call: OperatorCall, t: Tensors) -> Outputs:
    """Copy block `srcBlocks[i]` over blocks `dstBlocks[cumSum[i - 1]:cumSum[i]]`, one after the other."""
    sources, targets = lengths(t["srcBlocks"]), lengths(t["dstBlocks"])
    bounds = [0, *lengths(t["cumSum"])]
    call.need(
        len(bounds) == len(sources) + 1 and bounds[-1] <= len(targets),
        f"cumSum {bounds[1:]} does not cut {len(targets)} target blocks for {len(sources)} source blocks",
    )
    results = []
    for name in ("keyCache", "valueCache"):
        cache = t[name].clone()
        for source, (start, stop) in zip(sources, pairwise(bounds)):
            for target in targets[start:stop]:
                cache[target] = cache[source]
        results.append(cache)
    return results


LOAD = {"kvCacheCfg": choice(0, "NZ", "ND"), "isSeqLensCumsumMode": flag(), "hasSeqStarts": flag()}


def _load_inputs(param: Param) -> list[str]:
    names = ["keyCache", "valueCache", "blockTables", "contextLens", "key", "value"]
    return [*names, *(["seqStarts"] if param["hasSeqStarts"] else [])]


@operator("PagedCacheLoadOperation", LOAD, _load_inputs, aliases={0: "key", 1: "value"})
def paged_cache_load(call: OperatorCall, t: Tensors) -> Outputs:
    """The inverse of ReshapeAndCache: the rows of each request from its blocks, packed."""
    p, tables = call.param, t["blockTables"]
    counts = lengths(t["contextLens"])
    if p["isSeqLensCumsumMode"]:
        counts = [stop - start for start, stop in pairwise(counts)]
    starts = lengths(t["seqStarts"]) if "seqStarts" in t else [0] * len(counts)
    results = []
    for name in ("key", "value"):
        cache, out = t[f"{name}Cache"], t[name].clone()
        rows = nz_to_nd(cache) if p["kvCacheCfg"] == 0 else cache.flatten(2)
        block, place = rows.shape[1], 0
        flat = out.flatten(1)
        for table, count, start in zip(tables, counts, starts):
            for position in range(count):
                number = int(table[start // block + position // block])
                if number >= 0:
                    flat[place] = rows[number, position % block]
                place += 1
        results.append(out)
    return results
