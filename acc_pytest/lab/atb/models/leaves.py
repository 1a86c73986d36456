"""Leaf operations with the parameter JSON that ATB 2025 prints for them (`old`: ATB 2024)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..graph import Operation, operation

ADD, MUL, MULS, DIV, CAST, QUANT = 8, 9, 2, 10, 1, 17
"""`elewiseType` of ATB: x + y, x * y, x * attribute, x / y, another dtype, int8 by a scale and an offset."""
INT8 = 2
"""`quantType` of ATB's norms."""
SUM = 3
"""`reduceType` of ATB."""
CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 27}
"""ATB's number of a dtype."""
ACTIVATIONS = {"swish": 4, "gelu": 2}
"""`activationType` of ATB; gelu is the tanh approximation."""


def single(value: float) -> float:
    """A float parameter as ATB prints it: rounded to float32, then widened."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def gather() -> Operation:
    """Rows of a table: `[rows, width]`, `[n]` -> `[n, width]`."""
    return operation("GatherOperation", {"axis": 0, "batchDims": 0}, ("x", "indices"), ("output",))


def rms_norm(eps: float, *, quantised: bool = False) -> Operation:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; in int8 (y + beta) / scale + offset."""
    side = {"epsilon": single(1e-5), "hasBias": False, "quantType": 0}
    param = {
        "layerType": 1,
        "normParam": {
            "dynamicQuantType": 0,
            "epsilon": single(eps),
            "layerNormEps": 1e-05,
            "modelType": 0,
            "precisionMode": 0,
            "quantType": INT8 if quantised else 0,
            "rstd": False,
        },
        "postNormParam": side,
        "preNormParam": side,
    }
    inputs = ("x1", "x2", "beta", "scale", "offset") if quantised else ("x1", "x2")
    return operation("RmsNormOperation", param, inputs, ("output",))


def layer_norm(eps: float) -> Operation:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension."""
    param = {
        "layerType": 1,
        "normParam": {
            "beginNormAxis": 2,
            "beginParamsAxis": 1,
            "epsilon": single(eps),
            "opMode": 0,
            "quantInputAlpha": 1.0,
            "quantInputOffset": 0,
            "quantInputScale": 1.0,
            "quantType": 0,
            "zoomScaleValue": 1.0,
        },
        "postNormParam": None,
    }
    return operation("LayerNormOperation", param, ("x", "gamma", "beta"), ("output",))


def linear(*, bias: bool = False, old: bool = False) -> Operation:
    """x W^T (+ bias)."""
    param: dict[str, Any] = {"hasBias": bias, "transposeA": False, "transposeB": True}
    if not old:
        extra = {"enAccum": False, "matmulType": 0, "outDataType": -1, "quantMode": 0}
        param = dict(sorted({**param, **extra}.items()))
    inputs = ("input", "weight", "bias") if bias else ("input", "weight")
    return operation("LinearOperation", param, inputs, ("output",))


def int8_linear(dtype: torch.dtype) -> Operation:
    """int8 x times int8 W^T, plus int32 bias, times a scale for each column -> `dtype`."""
    param = {**linear(bias=True).leaf_param, "outDataType": CODES[dtype]}
    return operation("LinearOperation", param, ("input", "weight", "bias", "deqScale"), ("output",))


def quantise() -> Operation:
    """x / scale + offset as int8."""
    param = elewise(QUANT).leaf_param
    return operation("ElewiseOperation", param, ("x", "scale", "offset"), ("output",))


def elewise(kind: int, *, old: bool = False, scale: float = 0.0) -> Operation:
    """`ADD`, `MUL` of two tensors (broadcast), `MULS` of one by `scale`."""
    quant: Mapping[str, Any] = {"inputOffset": 0, "inputScale": 1.0}
    if not old:
        quant = {"asymmetric": False, **quant}
    param = {"elewiseType": kind, "mulsParam": {"varAttr": scale}, "outTensorType": -1, "quantParam": quant}
    return operation("ElewiseOperation", param, ("x",) if kind == MULS else ("x", "y"), ("output",))


def cast(dtype: torch.dtype) -> Operation:
    """Another dtype, one of `CODES`."""
    param = {**elewise(CAST).leaf_param, "outTensorType": CODES[dtype]}
    return operation("ElewiseOperation", param, ("x",), ("output",))


def largest(count: int) -> Operation:
    """The `count` largest of the last dimension, descending, and where they are (int32)."""
    return operation("SortOperation", {"num": [count]}, ("x",), ("output", "indices"))


def one_hot(axis: int, depth: int) -> Operation:
    """A new dimension at `axis`: `one` at the index that `x` holds there, else `zero`."""
    return operation("OnehotOperation", {"axis": axis, "depth": depth}, ("x", "one", "zero"), ("output",))


def total(axis: int) -> Operation:
    """Sum over `axis`, which disappears."""
    return operation("ReduceOperation", {"axis": [axis], "reduceType": SUM}, ("x",), ("output",))


def activation(kind: str) -> Operation:
    """One of `ACTIVATIONS`."""
    param = {"activationType": ACTIVATIONS[kind], "dim": -1, "scale": 1.0}
    return operation("ActivationOperation", param, ("x",), ("y",))


def softmax() -> Operation:
    """Softmax over the last dimension."""
    return operation("SoftmaxOperation", {"axes": [-1]}, ("x",), ("output",))


def split(widths: Sequence[int], *, dim: int = -1, old: bool = False) -> Operation:
    """Cut along `dim` into parts of `widths`."""
    uneven = len(set(widths)) > 1
    param: dict[str, Any] = {"splitDim": dim, "splitNum": len(widths)}
    if not old or uneven:
        param["splitSizes"] = list(widths) if uneven else []
    return operation("SplitOperation", param, ("x",), tuple(f"output{i + 1}" for i in range(len(widths))))


def concat(dim: int = -1) -> Operation:
    """Two tensors one after the other along `dim`."""
    return operation("ConcatOperation", {"concatDim": dim}, ("x", "y"), ("output",))


def take(offsets: Sequence[int], size: Sequence[int]) -> Operation:
    """A box of the tensor: from `offsets` (negative counts from the end), `size` elements (-1 = the rest)."""
    param = {"offsets": list(offsets), "size": list(size)}
    return operation("SliceOperation", param, ("x",), ("output",))


def rope(rotary_coeff: int = 2) -> Operation:
    """Rotate query and key: two `[n, heads * size]`, cos, sin `[n, size]`, seqLen -> the same shapes."""
    param = {"cosFormat": 0, "rotaryCoeff": rotary_coeff}
    return operation("RopeOperation", param, ("x1", "x2", "x3", "x4", "x5"), ("output1", "output2"))


def tables(
    positions: int, size: int, base: float = 10000.0, *, interleaved: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of the rotary embedding, `[positions, size]`: both halves alike, or both of each pair."""
    frequency = base ** (-torch.arange(0, size, 2).float() / size)
    angle = torch.outer(torch.arange(positions).float(), frequency)
    angle = angle.repeat_interleave(2, 1) if interleaved else angle.repeat(1, 2)
    return angle.cos(), angle.sin()


def _communication(rank: int, ranks: int) -> dict[str, Any]:
    return {
        "backend": "lccl",
        "commDomain": "",
        "commMode": 0,
        "hcclComm": 0,
        "rank": rank,
        "rankRoot": 0,
        "rankSize": ranks,
        "rankTableFile": "",
    }


def all_reduce(rank: int, ranks: int) -> Operation:
    """Sum over ranks."""
    param = {**_communication(rank, ranks), "allReduceType": "sum", "outDataType": -1, "quantType": 0}
    return operation("AllReduceOperation", dict(sorted(param.items())), ("",), ("",))


def all_gather(rank: int, ranks: int) -> Operation:
    """Stack over ranks on a new first dimension."""
    return operation("AllGatherOperation", _communication(rank, ranks), ("",), ("",))


def transpose_gathered(dimensions: int = 3) -> Operation:
    """`[ranks, n, width]` -> `[n, ranks, width]`: the ranks come before the last dimension."""
    perm = [*range(1, dimensions - 1), 0, dimensions - 1]
    return operation("TransposeOperation", {"perm": perm}, ("",), ("",))


def score_scale(head_size: int) -> float:
    """1 / sqrt(size), as ATB prints it."""
    return single(1.0 / math.sqrt(head_size))


# The attention leaves: paged cache (MindIE) and contiguous cache (the flash-attention models of 2024).


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
