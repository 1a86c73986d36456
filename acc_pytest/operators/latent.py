"""Attention over compressed keys, in two parts joined by their sums, and with a prefix that is shared."""

from __future__ import annotations

import torch

from .cache import lengths
from .layout import nz_to_nd
from .masks import mask_of
from .param import Param, choice, integer, number
from .registry import As, Call, Outputs, Tensors, operator
from .scores import attend, heads_of, output_shape

DECODE, SPECULATIVE, RING, RING_SPECULATIVE, PREFILL = range(5)
APART, NZ = 1, 3
LATENT = {
    "headNum": integer(),
    "kvHeadNum": integer(),
    "qkScale": number(1.0),
    "maskType": choice(0, "none", "speculative", "mask free", "causal", "sliding window"),
    "calcType": choice(0, "decode", "several tokens", "ring", "ring, several tokens", "prefill"),
    "cacheMode": choice(0, "one cache", "latent and rope apart", "int8 and NZ", "NZ"),
    "windowSize": integer(),
    "maskUseStatusType": integer(),
}


def _latent_inputs(param: Param) -> list[str]:
    mask = ["mask"] if param["maskType"] else []
    if param["calcType"] == PREFILL:
        return ["query", "queryRope", "key", "keyRope", "value", "qSeqLen", "kvSeqLen", *mask]
    names = ["query", "queryRope", "kvCache", "kvCacheRope", "blockTables", "contextLens", *mask]
    return [*names, *(["qSeqLen"] if param["calcType"] in (SPECULATIVE, RING_SPECULATIVE) else [])]


@operator("MultiLatentAttentionOperation", LATENT, _latent_inputs)
def multi_latent_attention(call: Call, t: Tensors) -> Outputs:
    """Scores of the latent part plus those of the rotated part; the latent cache is the value too.

    query `[n, heads, 512]`, queryRope `[n, heads, 64]`, caches `[blocks, block, 1, 512]` and `[..., 64]`.
    Ring forms give the logarithm of each row's sum as second output. Prefill takes packed key and value.
    """
    p = call.param
    call.need(p["headNum"] > 0, "parameter headNum is missing")
    call.need(
        t["query"].dtype != torch.int8 and (p["calcType"] == PREFILL or p["cacheMode"] in (APART, NZ)),
        f"cacheMode {p['cacheMode']} with {t['query'].dtype} has no reference computation; "
        "1 (latent and rope apart) and 3 (NZ) of floats have",
    )
    call.need(not p["maskUseStatusType"], "maskUseStatusType has no reference computation")
    heads, tokens = p["headNum"], t["query"].shape[0]
    query = torch.cat([heads_of(call, t[n], tokens, heads, n) for n in ("query", "queryRope")], -1)
    rows, sums, first = [], [], 0
    for b, count in enumerate(_counts(call, t)):
        key, value = _keys(call, t, b)
        q = query[first : first + count]
        bias = _latent_bias(call, t, first, count, len(key))
        rows.append(attend(call, q, key, value, bias, scale=p["qkScale"]))
        sums.append(_log_sums(call, q, key, bias, p["qkScale"]))
        first += count
    out = torch.cat(rows)
    result = As(out.reshape(output_shape(t["query"], heads, out.shape[-1])), t["query"].dtype)
    ring = p["calcType"] in (RING, RING_SPECULATIVE)
    return [result, As(torch.cat(sums), torch.float32)] if ring else [result]


def _counts(call: Call, t: Tensors) -> list[int]:
    counts = lengths(t["qSeqLen"]) if "qSeqLen" in t else [1] * t["query"].shape[0]
    call.need(sum(counts) == t["query"].shape[0], f"qSeqLen {counts} is not {t['query'].shape[0]} tokens")
    return counts


def _keys(call: Call, t: Tensors, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Key (both parts) and value of sequence `b`."""
    groups = call.param["kvHeadNum"] or call.param["headNum"]
    if "kvSeqLen" in t:
        counts = lengths(t["kvSeqLen"])
        parts = [heads_of(call, t[n], sum(counts), groups, n) for n in ("key", "keyRope", "value")]
        latent, rope, value = (torch.split(part, counts)[b] for part in parts)
        return torch.cat((latent, rope), -1), value
    table, length = t["blockTables"][b].long(), lengths(t["contextLens"])[b]
    latent, rope = (_rows(call, t[n], table)[:length] for n in ("kvCache", "kvCacheRope"))
    call.need(len(latent) == length, f"blockTables {table.tolist()} do not hold {length} rows")
    return torch.cat((latent, rope), -1), latent


def _rows(call: Call, cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """All rows of the blocks that `table` lists, `[rows, heads, size]`."""
    blocks = cache[table[table >= 0]]
    return (nz_to_nd(blocks)[:, :, None] if call.param["cacheMode"] == NZ else blocks).flatten(0, 1)


def _latent_bias(call: Call, t: Tensors, first: int, rows: int, columns: int) -> torch.Tensor | None:
    kind = call.param["maskType"]
    if kind == 0:
        return None
    place = torch.arange(columns - rows, columns)[:, None]
    if kind in (2, 3):
        return call.wide(torch.zeros(rows, columns)).masked_fill(torch.arange(columns) > place, -torch.inf)
    if kind == 4:
        far = (torch.arange(columns) > place) | (place - torch.arange(columns) >= call.param["windowSize"])
        return call.wide(torch.zeros(rows, columns)).masked_fill(far, -torch.inf)
    return call.wide(t["mask"])[first : first + rows, :columns]


def _log_sums(
    call: Call, query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """log of the sum of exponentials of each row, `[n, heads]`."""
    k = call.wide(key).repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = torch.einsum("nhd,mhd->hnm", call.wide(query), k) * scale
    return (scores if bias is None else scores + bias).logsumexp(-1).T


RELAY = {
    "headNum": integer(),
    "kvHeadNum": integer(),
    "qkScale": number(1.0),
    "maskType": choice(0, "none", "norm"),
}
_RELAY = ("seqLen", "kvSeqLen", "kvShareMap", "kvShareLen")


def _relay_inputs(param: Param) -> list[str]:
    mask = ["mask"] if param["maskType"] else []
    return ["query", "key", "value", "keyShare", "valueShare", *mask, *_RELAY]


@operator("RelayAttentionOperation", RELAY, _relay_inputs)
def relay_attention(call: Call, t: Tensors) -> Outputs:
    """Each sequence attends to the shared rows of its group (kvShareMap, -1: none) and then to its own.

    `kvSeqLen` counts both; key and value hold the own rows, packed.
    """
    p = call.param
    call.need(p["headNum"] > 0, "parameter headNum is missing")
    heads, groups = p["headNum"], p["kvHeadNum"] or p["headNum"]
    counts, totals, shared = (lengths(t[n]) for n in ("seqLen", "kvSeqLen", "kvShareLen"))
    owners = lengths(t["kvShareMap"])
    own = [total - (shared[g] if g >= 0 else 0) for total, g in zip(totals, owners)]
    call.need(min(own, default=0) >= 0, f"kvSeqLen {totals} is shorter than the shared rows {shared}")
    query = heads_of(call, t["query"], sum(counts), heads, "query")
    mine = [heads_of(call, t[n], sum(own), groups, n) for n in ("key", "value")]
    common = [heads_of(call, t[n], sum(shared), groups, n) for n in ("keyShare", "valueShare")]
    mask = mask_of(call, p["maskType"], t.get("mask"), by_position=True)
    rows = []
    for b, q in enumerate(torch.split(query, counts)):
        parts = [torch.split(part, own)[b] for part in mine]
        if owners[b] >= 0:
            before = [torch.split(part, shared)[owners[b]] for part in common]
            parts = [torch.cat(pair) for pair in zip(before, parts)]
        bias = mask.bias(call, b, len(counts), heads, len(q), len(parts[0]))
        key, value = parts
        rows.append(attend(call, q, key, value, bias, scale=p["qkScale"]))
    out = torch.cat(rows)
    return [As(out.reshape(output_shape(t["query"], heads, out.shape[-1])), t["query"].dtype)]


RING_MLA = {
    "calcType": choice(0, "join with the previous part", "first part"),
    "headNum": integer(),
    "kvHeadNum": integer(),
    "qkScale": number(1.0),
    "kernelType": choice(0, "default", "high precision"),
    "maskType": choice(0, "none", "causal"),
    "inputLayout": choice(0, "BSND", "BNSD"),
}
_RING = ("query", "queryRope", "key", "keyRope", "value", "mask?", "seqLen", "prevOut?", "prevLse?")


@operator("RingMLAOperation", RING_MLA, _RING)
def ring_mla(call: Call, t: Tensors) -> Outputs:
    """Packed attention in two parts of the head size, joined with the result of the ring's part before.

    Outputs `[n, heads, size]` and the logarithm of each row's sum `[heads, n]`. A sequence without keys
    hands the previous result on, with 0 as its logarithm.
    """
    p = call.param
    call.need(p["headNum"] > 0 and p["inputLayout"] == 0, "headNum is missing, or inputLayout is not 0")
    heads, groups = p["headNum"], p["kvHeadNum"] or p["headNum"]
    both = t["seqLen"].reshape(2, -1) if t["seqLen"].ndim == 2 else t["seqLen"].expand(2, -1)
    counts, totals = lengths(both[0]), lengths(both[1])
    query = torch.cat([heads_of(call, t[n], sum(counts), heads, n) for n in ("query", "queryRope")], -1)
    key = torch.cat([heads_of(call, t[n], sum(totals), groups, n) for n in ("key", "keyRope")], -1)
    value = heads_of(call, t["value"], sum(totals), groups, "value")
    rows = torch.zeros(sum(counts), heads, value.shape[-1], dtype=call.accumulate)
    sums = torch.full((sum(counts), heads), -torch.inf, dtype=call.accumulate)
    first, start = 0, 0
    for count, total in zip(counts, totals):
        q, part = query[first : first + count], slice(first, first + count)
        k, v = (x[start : start + total] for x in (key, value))
        first, start = first + count, start + total
        if total:
            bias = None
            if p["maskType"]:
                ahead = torch.arange(total) > torch.arange(count)[:, None]
                bias = call.wide(torch.zeros(count, total)).masked_fill(ahead, -torch.inf)
            rows[part] = attend(call, q, k, v, bias, scale=p["qkScale"])
            sums[part] = _log_sums(call, q, k, bias, p["qkScale"])
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
