"""The attention leaves: paged cache (MindIE) and contiguous cache (the flash-attention models of 2024)."""

from __future__ import annotations

import torch

from .graph import Operation
from .operations import attend, score_scale, single
from .spec import BLOCK


def reshape_and_cache() -> Operation:
    """Write keys, values `[n, heads, size]` to `slots` `[n]` of caches `[blocks, BLOCK, heads, size]`."""

    def store(new: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        flat = cache.flatten(0, 1).clone()
        flat[slots.long()] = new
        return flat.view(cache.shape)

    def compute(
        k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return store(k, k_cache, slots), store(v, v_cache, slots)

    return Operation(
        "ReshapeAndCacheOperation",
        ("key", "value", "keyCache", "valueCache", "slots"),
        ("outKeyCache", "outValueCache"),
        {"compressType": 0, "kvCacheCfg": 0},
        compute=compute,
    )


def self_attention(heads: int, kv_heads: int, head_size: int) -> Operation:
    """Prefill: query, key, value `[n, heads, size]`, mask `[n, n]`, seqLen -> `[n, heads, size]`."""
    scale = score_scale(head_size)
    param = {
        "batchRunStatusEnable": False,
        "cacheType": 0,
        "calcType": 3,
        "clampMax": 0.0,
        "clampMin": 0.0,
        "clampType": 0,
        "headNum": heads,
        "inputLayout": 0,
        "isTriuMask": 1,
        "kernelType": 0,
        "kvHeadNum": kv_heads,
        "kvcacheCfg": 0,
        "maskType": 1,
        "mlaVHeadSize": 0,
        "outDataType": -1,
        "qScale": 1.0,
        "qkScale": single(scale),
        "quantType": 0,
        "scaleType": 0,
        "windowSize": 0,
    }
    return Operation(
        "SelfAttentionOperation",
        ("query", "key", "value", "mask", "seqLen"),
        ("attnOut",),
        param,
        compute=lambda q, k, v, mask, _: attend(q, k, v, mask, scale),
    )


def paged_attention(heads: int, kv_heads: int, head_size: int) -> Operation:
    """Decode: query `[1, heads, size]`, caches, block table `[1, blocks]`, length -> `[1, heads, size]`."""
    scale = score_scale(head_size)
    param = {
        "batchRunStatusEnable": False,
        "calcType": 0,
        "compressType": 0,
        "hasQuantOffset": False,
        "headNum": heads,
        "kvHeadNum": kv_heads,
        "maskType": 0,
        "mlaVHeadSize": 0,
        "qkScale": single(scale),
        "quantType": 0,
    }

    def compute(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        table: torch.Tensor,
        length: torch.Tensor,
    ) -> torch.Tensor:
        k, v = (cache[table[0].long()].flatten(0, 1)[: int(length)] for cache in (k_cache, v_cache))
        return attend(q, k, v, None, scale)

    return Operation(
        "PagedAttentionOperation",
        ("query", "key", "value", "blockTable", "contextLen"),
        ("paOut",),
        param,
        compute=compute,
    )


def flash_attention(heads: int, kv_heads: int, head_size: int, *, alibi: bool) -> Operation:
    """Prefill and decode with a contiguous cache, which the operation extends in place.

    query, key, value `[1, n, heads, size]`, caches `[layers, 1, positions, kv_heads * size]`, additive mask
    `[positions, positions]` (per head with `alibi`), tokenOffset (tokens after this step), seqLen, layerId
    -> `[1, n, heads * size]`.
    """
    scale = score_scale(head_size)
    param = {
        "batchRunStatusEnable": False,
        "clampMax": 0.0,
        "clampMin": 0.0,
        "coderType": 0,
        "headDim": head_size,
        "headNum": heads,
        "isClamp": False,
        "isEncoder": False,
        "isFp32": False,
        "isSupportAlibi": alibi,
        "isTriuMask": 0,
        "kvHeadNum": 0 if kv_heads == heads else kv_heads,
        "qScale": single(scale),
        "qkScale": 1.0,
    }

    def compute(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        mask: torch.Tensor,
        offset: torch.Tensor,
        _: torch.Tensor,
        layer: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        stop, row = int(offset), int(layer)
        start = stop - q.shape[1]
        caches = []
        for new, cache in ((k, k_cache), (v, v_cache)):
            grown = cache.clone()
            grown[row, 0, start:stop] = new.flatten(2)[0]
            caches.append(grown)
        keys, values = (c[row, 0, :stop].reshape(stop, kv_heads, head_size) for c in caches)
        out = attend(q[0], keys, values, mask[..., start:stop, :stop], scale)
        return (out.flatten(1)[None], *caches)

    return Operation("SelfAttentionOperation", ("",) * 9, ("",), param, compute=compute, writes=(3, 4))


def causal_mask(size: int) -> torch.Tensor:
    """`[size, size]`: 0 on and below the diagonal, -inf above."""
    return torch.full((size, size), float("-inf")).triu(1)


def slots_of(start: int, count: int) -> torch.Tensor:
    """Cache slots of tokens `start` and on, when blocks are taken in order."""
    return torch.arange(start, start + count, dtype=torch.int32)


def cache_shape(blocks: int, heads: int, head_size: int) -> tuple[int, int, int, int]:
    """Shape of one paged cache."""
    return blocks, BLOCK, heads, head_size
