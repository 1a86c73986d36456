"""PagedAttentionOperation: decode steps over keys and values that lie in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from .cache import lengths
from .layout import nz_to_nd
from .param import Param, choice, data_type, flag, integer, number
from .quantise import descale
from .registry import As, OperatorCall, Outputs, Tensors, operator
from .scores import EightBit, attend, heads_of, output_shape, output_type

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
        razor = _razor(call, t, tables[b], length)
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
        if call.soc.startswith("Ascend310P") and cache.ndim == 4:
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


def _razor(call: OperatorCall, t: Tensors, table: torch.Tensor, length: int) -> torch.Tensor | None:
    if "razorOffset" not in t:
        return None
    return call.wide(t["razorOffset"])[table].flatten()[:length]


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
    if mask.ndim == 4 and call.soc.startswith("Ascend310P") and mask.shape[-1] == 16:
        mask = nz_to_nd(mask)
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
