"""PagedAttentionOperation: decode steps over keys and values that lie in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from .cache import lengths
from .layout import descale, nz_to_nd
from .registry import (
    As,
    OperatorCall,
    Outputs,
    Param,
    Tensors,
    choice,
    data_type,
    flag,
    integer,
    number,
    operator,
)
from .scores import EightBit, attend, heads_of, mask_of, output_shape, output_type

NONE, NORM, ALIBI, SPEC, MASK_FREE, COMPRESS = range(6)
HEADS, RAZOR = 1, 2
DEQUANT, OFFLINE, ONLINE = 1, 2, 3
HIDDEN = -60000.0

PAGED_ATTENTION = {
    "headNum": integer(),
    "kvHeadNum": integer(),
    "qScale": number(),
    "qkScale": number(1.0),
    "maskType": choice(0, "none", "norm", "alibi", "speculative", "mask free", "norm compress"),
    "batchRunStatusEnable": flag(),
    "quantType": choice(0, "none", "int8 caches", "int8 with pScale", "int8 online"),
    "hasQuantOffset": flag(),
    "compressType": choice(0, "none", "by heads", "by heads with razor offset"),
    "calcType": choice(0, "one token a sequence", "several tokens a sequence"),
    "mlaVHeadSize": integer(),
    "scaleType": choice(0, "qkScale", "qkScale and logN"),
    "inputLayout": choice(0, "BSND", "BNSD"),
    "outDataType": data_type(),
    # of the library of 2024
    "isSupportAlibi": flag(),
    "headDim": integer(),
}


def _inputs(param: Param) -> list[str]:
    names = ["query", "keyCache", *([] if param["mlaVHeadSize"] else ["valueCache"])]
    names += ["blockTables", "contextLens"]
    if param["maskType"] or param["isSupportAlibi"]:
        names.append("mask")
    if param["batchRunStatusEnable"]:
        names.append("batchRunStatus")
    if param["quantType"]:
        offset = param["hasQuantOffset"]
        names += ["kDescale", *(["kOffset"] if offset else []), "vDescale", *(["vOffset"] if offset else [])]
    if param["calcType"]:
        names.append("qSeqLen")
    if param["compressType"] == RAZOR:
        names.append("razorOffset")
    if param["quantType"] == OFFLINE:
        names.append("pScale")
    return [*names, *(["logN"] if param["scaleType"] else [])]


@operator("PagedAttentionOperation", PAGED_ATTENTION, _inputs, by_chip=True, pairs=True)
def paged_attention(call: OperatorCall, t: Tensors) -> Outputs:
    """softmax(q k^T qkScale + mask) v, keys and values from the blocks of each sequence's table.

    query `[n, heads, size]` (or `[n, heads * size]`), caches `[blocks, block, kv_heads, size]` (BNSD:
    heads before rows; 310P: NZ), blockTables `[batch, blocks]`, contextLens `[batch]`. Sequences without
    context or with batchRunStatus 0 give zeros. qScale, unless 0, multiplies the query. int8 caches are
    scaled back by channel first. Compressed heads: tables, lengths and caches have a row for each (sequence,
    key head).
    """
    p = call.param
    counts = lengths(t["qSeqLen"]) if "qSeqLen" in t else []
    contexts, tables = lengths(t["contextLens"]), t["blockTables"].long()
    query, groups = _query(call, t["query"], counts, len(tables))
    counts = counts or [1] * len(query)
    call.need(
        len(counts) == len(contexts) == len(tables),
        f"{len(counts)} sequences of queries, {len(contexts)} contextLens, {len(tables)} blockTables",
    )
    keys = _Blocks(call, t, "key")
    values = keys if p["mlaVHeadSize"] else _Blocks(call, t, "value")
    size = p["mlaVHeadSize"] or values.size
    out = torch.zeros(*query.shape[:2], size, dtype=call.accumulate)
    for b, rows in _running(t, counts, groups):
        length = contexts[b]
        if not length:
            continue
        k = keys.rows(tables[b], length)
        v = k[..., :size] if values is keys else values.rows(tables[b], length)
        bias = _bias(call, t, b, rows, length, groups)
        scale = float(p["qkScale"])
        if "logN" in t:
            scale *= float(t["logN"].flatten()[b // groups])
        razor = None
        if "razorOffset" in t:
            razor = call.wide(t["razorOffset"])[tables[b]].flatten()[:length]
        scales = _eight_bit(call, t, b % groups, p["headNum"] // groups)
        out[rows] = attend(call, query[rows], k, v, bias, scale=scale, before=razor, eight_bit=scales)
    shape = output_shape(t["query"], p["headNum"], size)
    return [As(out.reshape(shape), output_type(t["query"], p["outDataType"]))]


def _query(
    call: OperatorCall, packed: torch.Tensor, counts: Sequence[int], tables: int
) -> tuple[torch.Tensor, int]:
    """The query `[tokens, heads, size]`, scaled, and the groups of heads that each token has.

    Compressed heads: each group is a sequence of its own, `[tokens * groups, heads / groups, size]`.
    `counts` are those of qSeqLen, none without.
    """
    p, heads, width = call.param, call.param["headNum"], packed.shape[-1]
    call.need(heads > 0, "parameter headNum is missing")
    call.need(
        p["headDim"] in (0, width, width // heads),
        f"parameter headDim is {p['headDim']}, query is {list(packed.shape)}",
    )
    tokens = sum(counts) if counts else packed.shape[:-2].numel()
    tokens = packed.shape[0] if packed.ndim == 2 else tokens
    query = heads_of(call, packed, tokens, heads, "query")
    if p["qScale"] not in (0.0, 1.0):
        # a kernel of its own scales the query; 0 means not at all
        query = call.between(call.wide(query) * p["qScale"], query.dtype)
    if p["compressType"] == NONE:
        return query, 1
    groups = tables // max(tokens, 1)
    return query.reshape(tokens * groups, heads // groups, -1), groups


def _running(t: Tensors, counts: Sequence[int], groups: int) -> Iterator[tuple[int, slice]]:
    """The sequences that run, and their rows of the query: the others have none, so rows lie packed."""
    running = lengths(t["batchRunStatus"]) if "batchRunStatus" in t else []
    first = 0
    for b, count in enumerate(counts):
        if running and not running[b if len(running) == len(counts) else b // groups]:
            continue
        yield b, slice(first, first + count)
        first += count


class _Blocks:
    """Keys or values of any sequence, wide, dequantised where the cache is int8."""

    def __init__(self, call: OperatorCall, t: Tensors, name: str) -> None:
        self._call = call
        cache = t[f"{name}Cache"]
        heads = 1 if call.param["compressType"] else int(call.param["kvHeadNum"] or call.param["headNum"])
        if call.soc.startswith("Ascend310") and cache.ndim == 4:
            cache = torch.unflatten(nz_to_nd(cache), -1, (heads, -1))
        elif call.param["inputLayout"] == 1:
            cache = cache.transpose(1, 2)
        elif cache.ndim == 3:
            cache = torch.unflatten(cache, -1, (heads, -1))
        self._cache = cache
        self.size = cache.shape[-1]
        letter = name[0]
        self._scale = t.get(f"{letter}Descale") if call.param["quantType"] == DEQUANT else None
        self._offset = t.get(f"{letter}Offset") if call.param["quantType"] == DEQUANT else None

    def rows(self, table: torch.Tensor, length: int) -> torch.Tensor:
        """`[length, kv_heads, size]` from the blocks that `table` lists."""
        block = self._cache.shape[1]
        needed = -(-length // block)
        used = table[:needed]
        self._call.need(
            needed <= len(table) and bool((used >= 0).all()) and bool((used < len(self._cache)).all()),
            f"blockTables {table.tolist()} do not name {needed} of {len(self._cache)} blocks",
        )
        rows = self._cache[used].flatten(0, 1)[:length]
        if self._call.param["quantType"] != DEQUANT:
            return rows
        rows = self._call.wide(rows)
        shape = rows.shape[1:]
        if self._offset is not None:
            rows = rows + self._call.wide(self._offset).reshape(shape)
        if self._scale is not None:
            rows = rows * descale(self._call, self._scale).reshape(shape)
        return rows


def _eight_bit(call: OperatorCall, t: Tensors, group: int, heads: int) -> EightBit | None:
    """The scales of the heads of one group, where query, key and value are int8."""
    if call.param["quantType"] not in (OFFLINE, ONLINE):
        return None
    span = slice(group * heads, (group + 1) * heads)
    scales = [t[n].flatten()[span] if n in t else None for n in ("kDescale", "vDescale", "pScale")]
    assert scales[0] is not None
    assert scales[1] is not None
    return EightBit(scales[0], scales[1], scales[2])


def _bias(
    call: OperatorCall, t: Tensors, sequence: int, queries: slice, length: int, groups: int
) -> torch.Tensor | None:
    """The addend of the scores `[heads, rows, length]` of one sequence, whose queries are `queries`."""
    p, rows = call.param, queries.stop - queries.start
    kind = ALIBI if p["isSupportAlibi"] else p["maskType"]
    if kind == NONE:
        return None
    if kind == MASK_FREE:
        place = torch.arange(length - rows, length)[:, None]
        return call.wide(torch.arange(length)[None] > place) * HIDDEN
    mask = t["mask"]
    if mask.ndim == 4 and call.soc.startswith("Ascend310") and mask.shape[-1] == 16:
        mask = nz_to_nd(mask)
        if kind == SPEC and len(mask) == 1:
            mask = mask[0]  # one plane, whose rows are those of all sequences
    mask = call.wide(mask)
    if p["calcType"] and mask.ndim == 2:
        start = queries.start if kind == SPEC else length - rows
        return mask[start : start + rows, :length]
    plane = _plane(mask, sequence, len(t["contextLens"]), p["headNum"], groups)
    call.need(plane.shape[-1] >= length, f"mask {list(mask.shape)} is shorter than {length} keys")
    return plane[..., -rows if plane.shape[-2] < rows else 0 :, :length][..., :rows, :]


def _plane(mask: torch.Tensor, sequence: int, sequences: int, heads: int, groups: int) -> torch.Tensor:
    """The piece of a mask for one sequence, which may be a group of heads: one for all, or of its own."""
    if mask.ndim <= 2:
        return mask
    plane = mask[sequence if len(mask) == sequences else sequence // groups]
    if mask.ndim == 4 and plane.shape[0] == heads and groups > 1:
        size, group = heads // groups, sequence % groups
        return plane[group * size : (group + 1) * size]
    return plane


# Attention over compressed keys, in two parts joined by their sums, and with a prefix that is shared.


DECODE, SPECULATIVE, RING, RING_SPECULATIVE, PREFILL = range(5)
APART, EIGHT_BIT, NZ = 1, 2, 3
SPEC_MASK, FREE_MASK, CAUSAL, WINDOW = 1, 2, 3, 4
LATENT = {
    "headNum": integer(),
    "kvHeadNum": integer(),
    "qkScale": number(1.0),
    "maskType": choice(0, "none", "speculative", "mask free", "causal", "sliding window"),
    "calcType": choice(0, "decode", "several tokens", "ring", "ring, several tokens", "prefill"),
    "cacheMode": choice(0, "one cache", "latent and rope apart", "int8 and NZ", "NZ"),
    "windowSize": integer(),
    "maskUseStatusType": choice(0, "not used", "by sequence"),
}


def _latent_inputs(param: Param) -> list[str]:
    # the kernel makes a causal mask itself
    mask = ["mask"] if param["maskType"] not in (0, CAUSAL) else []
    status = ["maskUseStatus"] if param["maskUseStatusType"] else []
    if param["calcType"] == PREFILL:
        return ["query", "queryRope", "key", "keyRope", "value", "qSeqLen", "kvSeqLen", *mask, *status]
    names = ["query", "queryRope", "kvCache", "kvCacheRope", "blockTables", "contextLens", *mask]
    names += ["qSeqLen"] if param["calcType"] in (SPECULATIVE, RING_SPECULATIVE) else []
    return [*names, *(["qkDescale", "pvDescale"] if param["cacheMode"] == EIGHT_BIT else []), *status]


@operator("MultiLatentAttentionOperation", LATENT, _latent_inputs, pairs=True)
def multi_latent_attention(call: OperatorCall, t: Tensors) -> Outputs:
    """Scores of the latent part plus those of the rotated part; the latent cache is the value too.

    query `[n, heads, 512]`, queryRope `[n, heads, 64]`, caches `[blocks, block, 1, 512]` and `[..., 64]`,
    or NZ. int8 latent parts: their product times qkDescale of the head, weights in int8, pvDescale. Ring
    forms give the logarithm of each row's sum, `[n, heads, 1]`, as second output. Prefill takes packed key
    and value `[n, heads, size]`, or `[batch, longest, hidden]`.
    """
    p, dtype = call.param, t["queryRope"].dtype
    call.need(p["headNum"] > 0, "parameter headNum is missing")
    int8 = p["cacheMode"] == EIGHT_BIT and p["calcType"] != PREFILL
    call.need(
        (t["query"].dtype == torch.int8) == int8,
        f"cacheMode {p['cacheMode']} does not go with a query of {t['query'].dtype}",
    )
    call.need(p["calcType"] == PREFILL or p["cacheMode"] != 0, "ATB itself refuses cacheMode 0 (one cache)")
    heads, tokens = p["headNum"], t["query"].shape[0]
    query, turned = (heads_of(call, t[n], tokens, heads, n) for n in ("query", "queryRope"))
    query = query if int8 else torch.cat((query, turned), -1)
    eight = EightBit(t["qkDescale"], t["pvDescale"]) if int8 else None
    ring = p["calcType"] in (RING, RING_SPECULATIVE)
    rows, sums, first = [], [], 0
    counts = lengths(t["qSeqLen"]) if "qSeqLen" in t else [1] * tokens
    call.need(sum(counts) == tokens, f"qSeqLen {counts} is not {tokens} tokens")
    for b, count in enumerate(counts):
        latent, rope, value = _keys(call, t, b)
        span = slice(first, first + count)
        bias = _latent_bias(call, t, b, first, count, len(latent))
        key = latent if int8 else torch.cat((latent, rope), -1)
        before = _scores(call, turned[span], rope) if int8 else None
        how = {"scale": p["qkScale"], "before": before, "eight_bit": eight}
        rows.append(attend(call, query[span], key, value, bias, **how))
        if ring:
            scores = _scores(call, query[span], key)
            if eight is not None and before is not None:
                scores = scores * call.wide(eight.score).reshape(-1, 1, 1) + before
            sums.append(_log_sums(scores * p["qkScale"], bias))
        first += count
    out = torch.cat(rows)
    result = As(out.reshape(output_shape(t["query"], heads, out.shape[-1])), dtype)
    sums_type = torch.float32 if int8 else dtype
    return [result, As(torch.cat(sums)[..., None], sums_type)] if ring else [result]


def _scores(call: OperatorCall, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """q k^T of wide values, not scaled, `[heads, n, m]`."""
    k = call.wide(key).repeat_interleave(query.shape[1] // key.shape[1], 1)
    return torch.einsum("nhd,mhd->hnm", call.wide(query), k)


def _log_sums(scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """log of the sum of exponentials of each row, `[n, heads]`."""
    return (scores if bias is None else scores + bias).logsumexp(-1).T


def _keys(call: OperatorCall, t: Tensors, b: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both parts of the key, and the value, of sequence `b`: `[m, heads, size]`."""
    groups = call.param["kvHeadNum"] or call.param["headNum"]
    if "kvSeqLen" in t:
        counts = lengths(t["kvSeqLen"])
        latent, rope, value = (
            _sequence(call, t[n], counts, b, groups, n) for n in ("key", "keyRope", "value")
        )
        return latent, rope, value
    table, length = t["blockTables"][b].long(), lengths(t["contextLens"])[b]
    latent, rope = (_rows(call, t[n], table)[:length] for n in ("kvCache", "kvCacheRope"))
    call.need(len(latent) == length, f"blockTables {table.tolist()} do not hold {length} rows")
    return latent, rope, latent


def _sequence(
    call: OperatorCall, keys: torch.Tensor, counts: list[int], b: int, groups: int, name: str
) -> torch.Tensor:
    """The rows of sequence `b`, from packed ones or from a padded batch."""
    if keys.ndim == 3 and keys.shape[1] != groups and len(keys) == len(counts):
        return heads_of(call, keys[b, : counts[b]], counts[b], groups, name)
    return torch.split(heads_of(call, keys, sum(counts), groups, name), counts)[b]


def _rows(call: OperatorCall, cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """All rows of the blocks that `table` lists, `[rows, heads, size]`."""
    blocks = cache[table[table >= 0]]
    tiled = call.param["cacheMode"] in (EIGHT_BIT, NZ)
    return (nz_to_nd(blocks)[:, :, None] if tiled else blocks).flatten(0, 1)


def _latent_bias(
    call: OperatorCall, t: Tensors, sequence: int, first: int, rows: int, columns: int
) -> torch.Tensor | None:
    kind = call.param["maskType"]
    used = "maskUseStatus" not in t or bool(t["maskUseStatus"].flatten()[sequence])
    if kind == 0 or not used:
        return None
    place, key = torch.arange(columns - rows, columns)[:, None], torch.arange(columns)
    if kind != SPEC_MASK:
        hidden = key > place
        if kind == WINDOW:
            hidden |= place - key >= call.param["windowSize"]
        return call.wide(torch.zeros(rows, columns)).masked_fill(hidden, -torch.inf)
    mask = call.wide(t["mask"])
    # rows are those of the query's tokens, or in a square plane positions
    start = first if len(mask) == t["query"].shape[0] else columns - rows
    return mask[start : start + rows, :columns]


RELAY = {
    "headNum": integer(),
    "kvHeadNum": integer(),
    "qkScale": number(1.0),
    "maskType": choice(0, "none", "norm"),
}
_SHARED = ("query", "key", "value", "keyShare", "valueShare")
_RELAY = ("seqLen", "kvSeqLen", "kvShareMap", "kvShareLen")


@operator(
    "RelayAttentionOperation",
    RELAY,
    lambda param: [*_SHARED, *(["mask"] if param["maskType"] else []), *_RELAY],
    pairs=True,
)
def relay_attention(call: OperatorCall, t: Tensors) -> Outputs:
    """Each sequence attends to the shared rows of its group (kvShareMap, -1: none) and then to its own.

    `kvSeqLen` counts both; key and value hold the own rows, packed.
    """
    p = call.param
    call.need(p["headNum"] > 0, "parameter headNum is missing")
    heads, groups = p["headNum"], p["kvHeadNum"] or p["headNum"]
    counts, totals, shared = (lengths(t[n]) for n in ("seqLen", "kvSeqLen", "kvShareLen"))
    owners = lengths(t["kvShareMap"])
    unshared = [total - (shared[g] if g >= 0 else 0) for total, g in zip(totals, owners)]
    call.need(min(unshared, default=0) >= 0, f"kvSeqLen {totals} is shorter than the shared rows {shared}")
    query = heads_of(call, t["query"], sum(counts), heads, "query")
    mine = [heads_of(call, t[n], sum(unshared), groups, n) for n in ("key", "value")]
    common = [heads_of(call, t[n], sum(shared), groups, n) for n in ("keyShare", "valueShare")]
    mask = mask_of(call, p["maskType"], t.get("mask"), by_position=True)
    rows = []
    for b, q in enumerate(torch.split(query, counts)):
        sides = [torch.split(tensor, unshared)[b] for tensor in mine]
        if owners[b] >= 0:
            before = [torch.split(tensor, shared)[owners[b]] for tensor in common]
            sides = [torch.cat(pair) for pair in zip(before, sides)]
        bias = mask.bias(call, b, len(counts), heads, len(q), len(sides[0]))
        key, value = sides
        rows.append(attend(call, q, key, value, bias, scale=p["qkScale"]))
    out = torch.cat(rows)
    return [As(out.reshape(output_shape(t["query"], heads, out.shape[-1])), t["query"].dtype)]


RING_MLA = {
    "calcType": choice(0, "join with the previous part", "first part"),
    "headNum": integer(),
    "kvHeadNum": integer(),
    "qkScale": number(1.0),
    "kernelType": choice(1, "default", "high precision", start=0),
    "maskType": choice(1, "none", "causal", start=0),
    "inputLayout": choice(0, "BSND", "BNSD"),
}
_RING = ("query", "queryRope", "key", "keyRope", "value", "mask?", "seqLen", "prevOut?", "prevLse?")


@operator("RingMLAOperation", RING_MLA, _RING, pairs=True)
def ring_mla(call: OperatorCall, t: Tensors) -> Outputs:
    """Packed attention in two parts of the head size, joined with the result of the ring's part before.

    Outputs `[n, heads, size]` and the logarithm of each row's sum `[heads, n]`. A sequence without keys
    hands the previous result on, with 0 as its logarithm.
    """
    p = call.param
    call.need(p["headNum"] > 0 and p["inputLayout"] == 0, "headNum is missing, or inputLayout is not 0")
    heads, groups = p["headNum"], p["kvHeadNum"] or p["headNum"]
    pairs = t["seqLen"].reshape(2, -1) if t["seqLen"].ndim == 2 else t["seqLen"].expand(2, -1)
    counts, totals = lengths(pairs[0]), lengths(pairs[1])
    query = torch.cat([heads_of(call, t[n], sum(counts), heads, n) for n in ("query", "queryRope")], -1)
    key = torch.cat([heads_of(call, t[n], sum(totals), groups, n) for n in ("key", "keyRope")], -1)
    value = heads_of(call, t["value"], sum(totals), groups, "value")
    rows = torch.zeros(sum(counts), heads, value.shape[-1], dtype=call.accumulate)
    sums = torch.full((sum(counts), heads), -torch.inf, dtype=call.accumulate)
    first, start = 0, 0
    for count, total in zip(counts, totals):
        q, span = query[first : first + count], slice(first, first + count)
        k, v = (x[start : start + total] for x in (key, value))
        first, start = first + count, start + total
        if total:
            bias = None
            if p["maskType"]:
                ahead = torch.arange(total) > torch.arange(count)[:, None]
                bias = call.wide(torch.zeros(count, total)).masked_fill(ahead, -torch.inf)
            rows[span] = attend(call, q, k, v, bias, scale=p["qkScale"])
            sums[span] = _log_sums(_scores(call, q, k) * p["qkScale"], bias)
    if "prevOut" in t:
        call.need("prevLse" in t, "prevOut needs prevLse")
        old_sums = call.wide(t["prevLse"]).T
        joined = torch.logaddexp(sums, old_sums)
        old = heads_of(call, t["prevOut"], sum(counts), heads, "prevOut")
        weight, old_weight = ((s - joined).exp()[..., None] for s in (sums, old_sums))
        rows, sums = rows * weight + call.wide(old) * old_weight, joined
    empty = torch.tensor(totals).repeat_interleave(torch.tensor(counts)) == 0
    sums = sums.masked_fill(empty[:, None], 0.0)
    shape = output_shape(t["query"], heads, rows.shape[-1])
    return [As(rows.reshape(shape), t["query"].dtype), As(sums.T, torch.float32)]
