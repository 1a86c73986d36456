"""SelfAttentionOperation: packed prefill, flash attention over a contiguous cache, paged prefix."""

from __future__ import annotations

from dataclasses import replace

import torch

from .cache import append, lengths
from .layout import nz_to_nd
from .registry import (
    As,
    Key,
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
from .scores import (
    ALIBI,
    CAUSAL,
    MASK_NAMES,
    NONE,
    NORM,
    SLOPED,
    WINDOW,
    WINDOW_COMPRESS,
    Change,
    EightBit,
    Mask,
    attend,
    heads_of,
    mask_of,
    output_shape,
    output_type,
)

UNDEFINED, ENCODER, DECODER, PA_ENCODER, PREFIX_ENCODER = range(5)
BYPASS = 1
OFFLINE, ONLINE = 2, 3
BNSD = 1

SELF_ATTENTION = {
    "headNum": integer(),
    "kvHeadNum": integer(),
    "qScale": number(1.0),
    "qkScale": number(1.0),
    "isTriuMask": integer(),
    "batchRunStatusEnable": flag(),
    "calcType": choice(0, "flash", "flash encoder", "flash decoder", "packed encoder", "prefix encoder"),
    "maskType": choice(0, *MASK_NAMES),
    "kernelType": choice(0, "default", "high precision", "exp of m8v2"),
    "clampType": choice(0, "none", "between clampMin and clampMax"),
    "clampMin": number(),
    "clampMax": number(),
    "kvcacheCfg": choice(0, "key, value and caches", "caches only"),
    "inputLayout": choice(0, "BSND", "BNSD"),
    "scaleType": choice(0, "qkScale", "qkScale and logN"),
    "quantType": choice(0, "none", "reserved", "int8 with pScale", "int8 online"),
    "outDataType": data_type(),
    "mlaVHeadSize": integer(),
    "windowSize": integer(),
    "cacheType": choice(0, "normal", "cyclic"),
    # what the library of 2024 had in their place
    "headDim": integer(),
    "coderType": Key("int", None, {0: "undefined", 1: "encoder", 2: "decoder"}),
    "isEncoder": Key("bool", None),
    "isClamp": Key("bool", None),
    "isFp32": Key("bool", None),
    "isFusion": flag(),
    "isSupportAlibi": Key("bool", None),
}
"""Keys of both generations; `_modern` translates those of 2024 (`isFusion` changes speed, not values)."""


def _modern(param: Param) -> dict[str, object]:
    """The parameters with those of 2024 that are given put into today's."""
    result = dict(param)
    if param["isSupportAlibi"] is not None:
        # the mask was always there then, and alibi a yes or no
        result["maskType"] = ALIBI if param["isSupportAlibi"] else NORM
    for old, new in (("coderType", "calcType"), ("isClamp", "clampType"), ("isFp32", "kernelType")):
        if param[old] is not None:
            result[new] = int(param[old])
    if param["isEncoder"]:
        result["calcType"] = PA_ENCODER
    return result


def _inputs(param: Param) -> list[str]:
    p = _modern(param)
    kind, mask = p["calcType"], p["maskType"]
    sloped = ["slopes?"] if mask in SLOPED else []
    with_mask = ["mask"] if mask not in (NONE, CAUSAL) else []
    log_n = ["logN"] if p["scaleType"] else []
    if kind == PREFIX_ENCODER:
        names = ["query", "key", "value", "blockTables", *with_mask, "seqLen", "kvSeqLen"]
        return [*names, *sloped, *log_n]
    if kind == PA_ENCODER:
        values = [] if p["mlaVHeadSize"] else ["value"]
        names = ["query", "key", *values, *with_mask, "seqLen", *sloped]
        if p["quantType"] in (OFFLINE, ONLINE):
            names += ["qkDescale", "qkOffset?", "vpvDescale", "vpvOffset?"]
        return [*names, *(["pScale"] if p["quantType"] == OFFLINE else []), *log_n]
    if kind == DECODER and mask == WINDOW:
        with_mask = []
    new = [] if p["kvcacheCfg"] == BYPASS else ["key", "value"]
    status = ["batchRunStatus"] if p["batchRunStatusEnable"] else []
    tail = ["tokenOffset", "seqLen", "layerId"]
    return ["query", *new, "cacheK", "cacheV", *with_mask, *tail, *status, *sloped, *log_n]


def _writes(param: Param) -> tuple[str, ...]:
    p = _modern(param)
    cached = p["calcType"] in (UNDEFINED, ENCODER, DECODER) and p["kvcacheCfg"] != BYPASS
    return ("cacheK", "cacheV") if cached else ()


@operator("SelfAttentionOperation", SELF_ATTENTION, _inputs, writes=_writes, pairs=True)
def self_attention(call: OperatorCall, t: Tensors) -> Outputs:
    """softmax(clamp(q k^T qkScale) + mask) v for each sequence, grouped heads allowed.

    Packed encoder: query, key, value of all tokens, `[n, heads * size]` or `[n, heads, size]`. Flash:
    the query is first scaled by qScale, keys and values are appended to layer `layerId` of the caches
    `[layers, batch, positions, hidden]`, which follow the output. Prefix encoder: keys from blocks.
    """
    p = _modern(call.param)
    eight_bit = p["quantType"] in (OFFLINE, ONLINE)
    call.need(
        p["quantType"] != 1 and (not eight_bit or p["calcType"] == PA_ENCODER),
        f"quantType {p['quantType']} is reserved, or not for calcType {p['calcType']}",
    )
    call = replace(call, param=p)
    call.need(call.param["headNum"] > 0, "parameter headNum is missing")
    width = t["query"].shape[-1]
    call.need(
        p["headDim"] in (0, width, width // call.param["headNum"]),
        f"parameter headDim is {p['headDim']}, query is {list(t['query'].shape)}",
    )
    call.need(
        not p["cacheType"] or (p["kvcacheCfg"] == BYPASS and p["calcType"] == DECODER),
        "cacheType 1 (cyclic) has a reference computation for calcType 2 with kvcacheCfg 1 only",
    )
    if p["inputLayout"] == BNSD:
        return _by_batch(call, t)
    if p["calcType"] == PA_ENCODER:
        return _packed(call, t)
    if p["calcType"] == PREFIX_ENCODER:
        return _prefix(call, t)
    return _flash(call, t)


def _mask(call: OperatorCall, t: Tensors) -> Mask:
    p = call.param
    high = t["query"].dtype == torch.bfloat16 or p["kernelType"] == 1
    return mask_of(
        call,
        p["maskType"],
        t.get("mask"),
        slopes=t.get("slopes"),
        triangular=bool(p["isTriuMask"]),
        window=p["windowSize"],
        scaled=high,
        by_position=p["calcType"] == PREFIX_ENCODER,
    )


def _kv_heads(call: OperatorCall) -> int:
    return int(call.param["kvHeadNum"] or call.param["headNum"])


def _result(call: OperatorCall, query: torch.Tensor, rows: torch.Tensor) -> As:
    shape = output_shape(query, call.param["headNum"], rows.shape[-1])
    return As(rows.reshape(shape), output_type(query, call.param["outDataType"]))


def _packed(call: OperatorCall, t: Tensors) -> Outputs:
    p, heads = call.param, call.param["headNum"]
    counts = t["seqLen"].reshape(2, -1) if t["seqLen"].ndim == 2 and t["seqLen"].shape[0] == 2 else None
    queries = lengths(t["seqLen"] if counts is None else counts[0])
    keys = queries if counts is None else lengths(counts[1])
    query = heads_of(call, t["query"], sum(queries), heads, "query")
    key = heads_of(call, t["key"], sum(keys), _kv_heads(call), "key")
    if p["mlaVHeadSize"]:
        value = key[..., : p["mlaVHeadSize"]]
    else:
        value = heads_of(call, t["value"], sum(keys), _kv_heads(call), "value")
    mask = _mask(call, t)
    eight_bit = None
    if "qkDescale" in t:
        eight_bit = EightBit(t["qkDescale"], t["vpvDescale"], t.get("pScale"))
    rows = []
    for b, (q, k, v) in enumerate(
        zip(torch.split(query, queries), torch.split(key, keys), torch.split(value, keys))
    ):
        bias = mask.bias(call, b, len(queries), heads, len(q), len(k))
        scale = _scale(call, t, b, len(q))
        rows.append(attend(call, q, k, v, bias, scale=scale, eight_bit=eight_bit))
    return [_result(call, t["query"], torch.cat(rows))]


def _by_batch(call: OperatorCall, t: Tensors) -> Outputs:
    """`[b, heads, s, size]`: every sequence has its own plane, rows behind its length are zero."""
    query, counts = t["query"], lengths(t["seqLen"])
    value = t["value"]
    call.need(
        query.ndim == 4 and len(counts) == len(query) and query.shape[1] == call.param["headNum"],
        f"query {list(query.shape)} is not [b, heads, s, size] of {len(counts)} sequences",
    )
    mask = _mask(call, t)
    out = torch.zeros(*query.shape[:3], value.shape[-1], dtype=call.accumulate)
    for b, count in enumerate(counts):
        q, k, v = (t[n][b, :, :count].transpose(0, 1) for n in ("query", "key", "value"))
        bias = mask.bias(call, b, len(counts), query.shape[1], count, count)
        result = attend(call, q, k, v, bias, scale=_scale(call, t, b, count))
        out[b, :, :count] = result.transpose(0, 1)
    return [As(out, query.dtype)]


def _scale(call: OperatorCall, t: Tensors, sequence: int, rows: int) -> float | torch.Tensor:
    """qkScale, times logN: of each query position while encoding, of the sequence while decoding."""
    scale = float(call.param["qkScale"])
    if "logN" not in t:
        return scale
    log_n = call.wide(t["logN"].flatten())
    return scale * (log_n[sequence] if call.param["calcType"] == DECODER else log_n[:rows, None])


def _flash(call: OperatorCall, t: Tensors) -> Outputs:
    p, heads, kv_heads = call.param, call.param["headNum"], _kv_heads(call)
    counts, offsets = lengths(t["seqLen"]), lengths(t["tokenOffset"])
    running = lengths(t["batchRunStatus"]) if "batchRunStatus" in t else [1] * len(counts)
    query = heads_of(call, t["query"], sum(counts), heads, "query")
    number = int(t["layerId"].flatten()[0])
    call.need(
        0 <= number < t["cacheK"].shape[0],
        f"layerId is {number}, the caches have {t['cacheK'].shape[0]} layers",
    )
    caches = [t["cacheK"], t["cacheV"]]
    if p["kvcacheCfg"] != BYPASS:
        caches = [cache.clone() for cache in caches]
        for name, cache in zip(("key", "value"), caches):
            rows = heads_of(call, t[name], sum(counts), 1, name)[:, 0]
            append(call, cache[number], rows, offsets, counts)
    layers = [cache[number] for cache in caches]
    mask, results = _mask(call, t), []
    for b, q in enumerate(torch.split(query, counts)):
        first, stop = 0, offsets[b]
        sliding = p["calcType"] == DECODER and p["maskType"] in (WINDOW, WINDOW_COMPRESS)
        if sliding and p["cacheType"]:
            stop = min(stop, p["windowSize"])  # what fell out of the window has been overwritten
        elif sliding:
            first = max(stop - p["windowSize"], 0)
        k, v = (
            heads_of(call, _filled(layer[b], stop)[first:], stop - first, kv_heads, "cache")
            for layer in layers
        )
        bias = None if sliding else mask.bias(call, b, len(counts), heads, len(q), len(k))
        # a kernel of its own scales the query
        scaled = call.between(call.wide(q) * p["qScale"], q.dtype)
        rows_out = attend(call, scaled, k, v, bias, scale=_scale(call, t, b, len(q)), change=_clamp(call))
        results.append(rows_out if running[b] else torch.zeros_like(rows_out))
    result = _result(call, t["query"], torch.cat(results))
    return [result, *(caches if p["kvcacheCfg"] != BYPASS else [])]


def _filled(layer: torch.Tensor, stop: int) -> torch.Tensor:
    """The rows in use of one sequence's cache `[positions, hidden]` or NZ `[hidden / 16, positions, 16]`."""
    return (nz_to_nd(layer) if layer.ndim == 3 else layer)[:stop]


def _clamp(call: OperatorCall) -> Change | None:
    low, high = call.param["clampMin"], call.param["clampMax"]
    return (lambda scores: scores.clamp(low, high)) if call.param["clampType"] else None


def _prefix(call: OperatorCall, t: Tensors) -> Outputs:
    heads = call.param["headNum"]
    queries, keys = lengths(t["seqLen"]), lengths(t["kvSeqLen"])
    query = heads_of(call, t["query"], sum(queries), heads, "query")
    mask, rows = _mask(call, t), []
    for b, q in enumerate(torch.split(query, queries)):
        k, v = (t[n][t["blockTables"][b].long()].flatten(0, 1)[: keys[b]] for n in ("key", "value"))
        bias = mask.bias(call, b, len(queries), heads, len(q), len(k))
        rows.append(attend(call, q, k, v, bias, scale=_scale(call, t, b, len(q))))
    return [_result(call, t["query"], torch.cat(rows))]


# RazorFusionAttentionOperation: attention of pictures and text behind them, with a band in every picture.


BLOCK = 128
HIDDEN = -10000.0
_LENGTHS = ("razorLen", "preTokens", "nextTokens", "tileQ", "tileKv", "textQLen", "textKvLen")
RAZOR = {
    "headNum": integer(1),
    "kvHeadNum": integer(1),
    "qkScale": number(1.0),
    **{name: integer() for name in _LENGTHS},
}


@operator("RazorFusionAttentionOperation", RAZOR, ("query", "key", "value"), pairs=True)
def razor_fusion_attention(call: OperatorCall, t: Tensors) -> Outputs:
    """softmax(q k^T qkScale + mask) v of sequences that are all as long as the parameters say.

    A sequence is `tileQ` (keys: `tileKv`) pictures of `razorLen` tokens and then text of `textQLen`
    (`textKvLen`). Hidden scores get -10000 added, as in the kernel, so a row that sees nothing sees
    everything a little.
    """
    p = call.param
    rows = p["razorLen"] * p["tileQ"] + p["textQLen"]
    columns = p["razorLen"] * p["tileKv"] + p["textKvLen"]
    call.need(
        min(p[name] for name in _LENGTHS) >= 0 and rows > 0 and columns > 0,
        f"queries of {rows} and keys of {columns} tokens: a length is negative, or nothing is left",
    )
    call.need(
        p["preTokens"] % BLOCK == p["nextTokens"] % BLOCK == 0,
        f"preTokens {p['preTokens']} and nextTokens {p['nextTokens']} are not multiples of {BLOCK}",
    )
    query, key, value = t["query"], t["key"], t["value"]
    batch = len(query) // rows
    call.need(
        len(query) == batch * rows and len(key) == len(value) == batch * columns,
        f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)} are not "
        f"sequences of {rows} queries and {columns} keys",
    )
    q = heads_of(call, query, len(query), p["headNum"], "query")
    k, v = (
        heads_of(call, tensor, len(tensor), p["kvHeadNum"], name)
        for tensor, name in ((key, "key"), (value, "value"))
    )
    bias = call.wide(~_visible(call)) * HIDDEN
    results = [
        attend(call, *sequence, bias, scale=p["qkScale"])
        for sequence in zip(torch.split(q, rows), torch.split(k, columns), torch.split(v, columns))
    ]
    out = torch.cat(results) if results else q.new_zeros(0, p["headNum"], v.shape[-1])
    return [As(out.reshape(output_shape(query, p["headNum"], out.shape[-1])), query.dtype)]


def _visible(call: OperatorCall) -> torch.Tensor:
    """A mask `[rows, columns]` of the keys that a query sees: near blocks of 128 in any picture, and text."""
    p = call.param
    length, before, after = p["razorLen"], p["preTokens"] // BLOCK, p["nextTokens"] // BLOCK
    block = torch.arange(length) // BLOCK
    ahead = block - block[:, None]
    visible = ((ahead > -before) & (ahead < after)).repeat(p["tileQ"], p["tileKv"])
    return torch.nn.functional.pad(visible, (0, p["textKvLen"], 0, p["textQLen"]), value=True)
