"""The attention leaves: paged cache (MindIE) and contiguous cache (the flash-attention models of 2024)."""

from __future__ import annotations

import torch

from ..graph import Operation, operation
from .leaves import score_scale

BLOCK = 8
"""Tokens in one block of the paged key/value cache."""


def reshape_and_cache() -> Operation:
    """Write keys, values `[n, heads, size]` to `slots` `[n]` of caches `[blocks, BLOCK, heads, size]`."""
    return operation(
        "ReshapeAndCacheOperation",
        {"compressType": 0, "kvCacheCfg": 0},
        ("key", "value", "keyCache", "valueCache", "slots"),
        ("outKeyCache", "outValueCache"),
    )


def self_attention(heads: int, kv_heads: int, head_size: int) -> Operation:
    """Prefill: query, key, value `[n, heads, size]`, mask `[n, n]`, seqLen -> `[n, heads, size]`."""
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
        "qkScale": score_scale(head_size),
        "quantType": 0,
        "scaleType": 0,
        "windowSize": 0,
    }
    inputs = ("query", "key", "value", "mask", "seqLen")
    return operation("SelfAttentionOperation", param, inputs, ("attnOut",))


def paged_attention(heads: int, kv_heads: int, head_size: int) -> Operation:
    """Decode: query `[1, heads, size]`, caches, block table `[1, blocks]`, length -> `[1, heads, size]`."""
    param = {
        "batchRunStatusEnable": False,
        "calcType": 0,
        "compressType": 0,
        "hasQuantOffset": False,
        "headNum": heads,
        "kvHeadNum": kv_heads,
        "maskType": 0,
        "mlaVHeadSize": 0,
        "qkScale": score_scale(head_size),
        "quantType": 0,
    }
    inputs = ("query", "key", "value", "blockTable", "contextLen")
    return operation("PagedAttentionOperation", param, inputs, ("paOut",))


def flash_attention(heads: int, kv_heads: int, head_size: int, *, alibi: bool) -> Operation:
    """Prefill and decode with a contiguous cache, which the operation extends in place.

    query, key, value `[1, n, heads, size]`, caches `[layers, 1, positions, kv_heads * size]`, additive mask
    `[positions, positions]` (per head with `alibi`), tokenOffset (tokens after this step), seqLen, layerId
    -> `[1, n, heads * size]`.
    """
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
        "qScale": score_scale(head_size),
        "qkScale": 1.0,
    }
    return operation("SelfAttentionOperation", param, ("",) * 9, ("",))


def causal_mask(size: int) -> torch.Tensor:
    """`[size, size]`: 0 on and below the diagonal, -inf above."""
    return torch.full((size, size), float("-inf")).triu(1)
