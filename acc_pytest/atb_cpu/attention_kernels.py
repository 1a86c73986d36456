"""The kernels of attention, which rearrange operands more than others do."""

from __future__ import annotations

import torch

from .execution import Execution
from .kernel import Kernel, elewise_param, short

_NULLS = 12
"""Inputs that the attention kernels of 2025 declare; most are null."""


def _lengths(tensor: torch.Tensor) -> list[int]:
    return [int(value) for value in tensor.reshape(-1).tolist()]


def self_attention(done: Execution) -> Kernel:
    """Prefill without a cache: query, key, value, (mask,) seqLen; the mask is the kernel's fifth input."""
    param = done.operation.leaf_param
    lengths = _lengths(done.before[-1])
    query, _, value = done.before[:3]
    mki = {
        "alibiLeftAlign": 0,
        "batchRunStatus": [],
        "cacheType": 0,
        **{key: param.get(key, 0.0) for key in ("clampMax", "clampMin")},
        "compressHead": False,
        "headDimV": value.shape[-1],
        "headSize": param.get("headNum", 0),
        "isAlibiMaskSqrt": 0,
        "isClamp": param.get("clampType", 0),
        "isTriuMask": param.get("isTriuMask", 0),
        "kvHead": param.get("kvHeadNum", 0),
        "kvSeqLen": lengths,
        "kvShareLen": [],
        "kvShareMap": [],
        "maskType": param.get("maskType", 0),
        "outDataType": -1,
        "qSeqLen": lengths,
        "quantType": param.get("quantType", 0),
        "scaleType": param.get("scaleType", 0),
        "tor": param.get("qkScale", 1.0),
        "type": 10,
        "windowSize": param.get("windowSize", 0),
    }
    mask = {4: done.before[3]} if len(done.before) > 4 else {}
    tensors = {**dict(enumerate(done.before[:3])), **mask}
    short = "BF16" if query.dtype == torch.bfloat16 else ""
    name = f"UnpadFlashAttention{short}NdKernel"
    return Kernel(
        name, "UnpadFlashAttentionOperation", mki, tensors, tensors, _NULLS, done.stale, done.outputs
    )


def paged_attention(done: Execution) -> Kernel:
    param = done.operation.leaf_param
    mki = {
        "batchRunStatus": [],
        "compressHead": False,
        "headDimV": 0,
        "headSize": param.get("headNum", 0),
        "identityM": [],
        "isTriuMask": 0,
        "kvHead": param.get("kvHeadNum", 0),
        "kvSeqLen": _lengths(done.before[4]),
        "maskType": param.get("maskType", 0),
        "outDataType": -1,
        "qSeqLen": [],
        "quantType": param.get("quantType", 0),
        "scaleType": param.get("scaleType", 0),
        "tor": param.get("qkScale", 1.0),
        "type": 2002,
    }
    tensors = dict(enumerate(done.before[:4]))
    name = "PagedAttentionMaskNdKernel"
    return Kernel(name, "PagedAttentionOperation", mki, tensors, tensors, _NULLS, done.stale, done.outputs)


def flash_attention(done: Execution) -> list[Kernel]:
    """The operation of 2024: scale the query, extend both caches, then attend."""
    param = done.operation.leaf_param
    q, k, v, old_k, old_v, mask, offset, length, layer = done.before
    new_k, new_v = done.after[3:5]
    rows = [tensor.reshape(tensor.shape[0] * tensor.shape[1], -1) for tensor in (q, k, v)]
    scale = param.get("qScale", 1.0)
    scaled = (rows[0].float() * scale).to(q.dtype)
    lengths = {"batchRunStatus": [], "kvSeqLen": _lengths(offset), "qSeqLen": _lengths(length)}
    query, name = {0: rows[0]}, f"Muls{short(scaled)}Kernel"
    muls = Kernel(
        name, "ElewiseOperation", elewise_param(2, None, scale), query, query, 1, (None,), (scaled,)
    )
    caching = []
    for new, old, cache in zip(rows[1:], (old_k, old_v), (new_k, new_v)):
        before = {0: new, 1: layer, 2: old, 3: offset, 4: length}
        after, mki = {**before, 2: cache}, dict(sorted({**lengths, "type": 0}.items()))
        caching.append(Kernel("KVCacheNdKernel", "KVCacheOperation", mki, before, after, 5, (old,), (cache,)))
    mki = {
        **lengths,
        **{key: param.get(key, 0.0) for key in ("clampMax", "clampMin")},
        "headSize": param.get("headNum", 0),
        "isClamp": int(param.get("isClamp", False)),
        "isTriuMask": param.get("isTriuMask", 0),
        "kvHead": param.get("kvHeadNum", 0),
        "maskType": 2 if param.get("isSupportAlibi") else 1,
        "tor": param.get("qkScale", 1.0),
        "type": 1,
    }
    operands = {0: scaled, 1: new_k, 2: new_v, 3: layer, 4: mask}
    name, mki = "UnpadFlashAttentionNdKernel", dict(sorted(mki.items()))
    attend = Kernel(
        name, "UnpadFlashAttentionOperation", mki, operands, operands, 6, done.stale, done.outputs
    )
    return [muls, *caching, attend]
