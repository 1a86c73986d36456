"""The kernels below a leaf operation: their names, the parameters of Mki, and the tensors they see.

Kernels have habits of their own that readers of real dumps must expect: gaps in the indices (null
tensors are not dumped), lengths as uint32, several kernels and in-between results below one operation,
results that the operation does not show. Communication has no kernels.

Names and parameters are those in dumps of the real probe for the operations of Llama and Bloom. What
has no real data takes the rule that these follow: one kernel, called after the operation and the dtype
of its first result, with the operation's parameters and tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...operators import operator_of
from .graph import Execution, Tensors

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


__all__ = ["Kernel", "kernels_of"]


def kernels_of(done: Execution) -> list[Kernel]:
    """The kernels that ran for one execution of a leaf, in order."""
    if done.operation.is_graph or operator_of(done.operation.kind).collective:
        return []
    kind = done.operation.kind
    param, inputs = done.operation.leaf_param, len(done.before)
    if kind == "SelfAttentionOperation" and inputs == 9 and param.get("calcType", 0) < 3:
        return flash_attention(done)
    if kind == "LinearOperation" and inputs == 3 and param.get("hasBias", True):
        return _linear_bias(done)
    make = _MAKERS.get(kind)
    return [make(done) if make and _is_usual(done) else _like_the_operation(done)]


def _is_usual(done: Execution) -> bool:
    """Whether an attention has the operands of the form that is known: packed prefill, plain paged decode."""
    param, inputs = done.operation.leaf_param, len(done.before)
    if done.operation.kind == "SelfAttentionOperation":
        return param.get("calcType") == 3 and inputs in (4, 5) and not param.get("mlaVHeadSize")
    if done.operation.kind == "PagedAttentionOperation":
        return inputs >= 5 and not param.get("mlaVHeadSize")
    return done.operation.kind != "RopeOperation" or inputs == 5


def _like_the_operation(done: Execution) -> Kernel:
    kind = done.operation.kind
    dtype = short((*done.outputs, *done.before)[0])  # some only write onto their inputs
    name = f"{kind.removesuffix('Operation')}{dtype}Kernel"
    return from_operation(done, name, kind, done.operation.leaf_param)


def _gather(done: Execution) -> Kernel:
    param = done.operation.leaf_param
    mki = {"axis": [param.get("axis", 0)], "batchDims": param.get("batchDims", 0)}
    bits = done.before[0].element_size() * 8
    return from_operation(done, f"Gather{bits}I64Kernel", "GatherOperation", mki)


_NORM = {"inNormBias": False, "inRes": False, "opsMode": 0}
_NORM_OUT = {"outMean": False, "outRes": False, "outResQuant": False, "outVarience": False}  # Mki's spelling
_NORM_2025 = {"gemmaMode": 0, "isDynamicQuant": False, "isSymmetric": True, "precisionMode": 0}


def _norm(param: Param, extra: Param) -> dict[str, Any]:
    """Mki's one parameter set of all norms; ATB 2025 added keys to it, as it did to ATB's own."""
    norm = param.get("normParam") or {}
    newer = _NORM_2025 if "dynamicQuantType" in norm else {}
    common = {"epsilon": norm.get("epsilon", 1e-5), "zoomScaleValue": 1.0}
    return dict(sorted({**_NORM, **_NORM_OUT, **newer, **common, **extra}.items()))


def _rms_norm(done: Execution) -> Kernel:
    extra = {"beginNormAxis": 0, "beginParamsAxis": 0, "inBeta": False, "inGamma": True, "normType": 2}
    return from_operation(done, "RmsNormKernel", "NormOperation", _norm(done.operation.leaf_param, extra))


def _layer_norm(done: Execution) -> Kernel:
    """The kernel also gives mean and variance, which the operation drops."""
    norm = done.operation.leaf_param.get("normParam") or {}
    extra = {
        "beginNormAxis": norm.get("beginNormAxis", 0),
        "beginParamsAxis": norm.get("beginParamsAxis", 0),
        "inBeta": True,
        "inGamma": True,
        "normType": 1,
        "outMean": True,
        "outVarience": True,
    }
    x = done.before[0]
    wide = x.float()
    aside = (wide.mean(-1, keepdim=True), wide.var(-1, correction=0, keepdim=True))
    name = f"Layernorm{short(done.outputs[0])}Kernel"
    kernel = from_operation(done, name, "NormOperation", _norm(done.operation.leaf_param, extra))
    outputs = (*done.outputs, *(tensor.to(x.dtype) for tensor in aside))
    return replace(kernel, outputs=outputs, stale=(*done.stale, None, None))


def _linear(done: Execution) -> Kernel:
    param = done.operation.leaf_param
    transposed = param.get("transposeB", True)
    x, weight = done.before[:2]
    k = x.shape[-2] if param.get("transposeA", False) and x.dim() > 1 else x.shape[-1]
    mki = {
        "enDequant": False,
        "oriShape": [x.numel() // max(k, 1), k, weight.shape[-2 if transposed else -1]],
        "tilingK": 0,
        "tilingN": 0,
        "transposeA": param.get("transposeA", False),
        "transposeB": transposed,
        "withBias": False,
    }
    dtype = "Bf16" if done.outputs[0].dtype == torch.bfloat16 else short(done.outputs[0])
    return from_operation(done, f"PpMatMul{dtype}Kernel", "MatMulOperation", mki)


def _linear_bias(done: Execution) -> list[Kernel]:
    """Product and sum are two kernels; the product is a result that the operation does not show."""
    x, weight, bias = done.before
    param = done.operation.leaf_param
    left = x.transpose(-1, -2) if param.get("transposeA", False) else x
    right = weight.transpose(-1, -2) if param.get("transposeB", True) else weight
    product = (left.float() @ right.float()).to(x.dtype)
    first = replace(
        _linear(done),
        before=dict(enumerate(done.before[:2])),
        after=dict(enumerate(done.after[:2])),
        declared=2,
        outputs=(product,),
        stale=(None,),
    )
    addends = {0: product, 1: bias}
    name = f"Add{short(product)}Kernel"
    add = Kernel(name, "ElewiseOperation", elewise_param(8), addends, addends, 2, done.stale, done.outputs)
    return [first, add]


_ELEWISE = {
    1: "Cast",
    2: "Muls",
    3: "Cos",
    4: "Sin",
    5: "Neg",
    8: "Add",
    9: "Mul",
    10: "RealDiv",
    15: "Sub",
    20: "Tanh",
}


def _elewise(done: Execution) -> Kernel:
    param = done.operation.leaf_param
    kind = param.get("elewiseType", 0)
    scale = (param.get("mulsParam") or {}).get("varAttr", 0.0)
    name = f"{_ELEWISE.get(kind, 'Elewise')}{short(done.outputs[0])}Kernel"
    return from_operation(done, name, "ElewiseOperation", elewise_param(kind, param, scale))


_ACTIVATIONS = {1: "Relu", 2: "GeluApprox", 3: "FastGelu", 4: "Swish", 5: "Log"}


def _activation(done: Execution) -> Kernel:
    param = done.operation.leaf_param
    kind = param.get("activationType", 0)
    mki = {"activationType": kind, "approx": 0, "dim": param.get("dim", -1), "scale": param.get("scale", 1.0)}
    name = f"{_ACTIVATIONS.get(kind, 'Activation')}{short(done.outputs[0])}Kernel"
    return from_operation(done, name, "ActivationOperation", mki)


def _split(done: Execution) -> Kernel:
    """Bits are moved, so bfloat16 uses the kernel of float16."""
    param = done.operation.leaf_param
    mki = {"splitDim": param.get("splitDim", 0), "splitNum": param.get("splitNum", len(done.outputs))}
    bits = done.outputs[0].element_size() * 8
    return from_operation(done, f"SplitF{bits}Output{len(done.outputs)}Kernel", "SplitOperation", mki)


def _slice(done: Execution) -> Kernel:
    name = f"SliceF{done.outputs[0].element_size() * 8}Int64Kernel"
    return from_operation(done, name, "SliceOperation", done.operation.leaf_param)


def _transpose(done: Execution) -> Kernel:
    name = f"Transpose{done.outputs[0].element_size() * 8}Kernel"
    return from_operation(done, name, "TransposeOperation", done.operation.leaf_param)


def _rope(done: Execution) -> Kernel:
    kernel = from_operation(done, "AtbRopeKernel", "RopeOperation", done.operation.leaf_param)
    lengths = done.before[4]
    if lengths.dtype == torch.int32:
        lengths = lengths.view(getattr(torch, "uint32", torch.int32))  # torch < 2.3 has no uint32
    return replace(kernel, before={**kernel.before, 4: lengths}, after={**kernel.after, 4: lengths})


def _reshape_and_cache(done: Execution) -> Kernel:
    return from_operation(done, "ReshapeAndCacheNdKernel", "ReshapeAndCacheOperation", {"type": 0})


_MAKERS: dict[str, Callable[[Execution], Kernel]] = {
    "ActivationOperation": _activation,
    "ElewiseOperation": _elewise,
    "GatherOperation": _gather,
    "LayerNormOperation": _layer_norm,
    "LinearOperation": _linear,
    "PagedAttentionOperation": paged_attention,
    "ReshapeAndCacheOperation": _reshape_and_cache,
    "RmsNormOperation": _rms_norm,
    "RopeOperation": _rope,
    "SelfAttentionOperation": self_attention,
    "SliceOperation": _slice,
    "SplitOperation": _split,
    "TransposeOperation": _transpose,
}


# One kernel of an operation, and functions for all that make one.


Param = Mapping[str, Any]
Indexed = Mapping[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that ran: `name` is its directory's, `operation` and `param` are what Mki calls them.

    `before` and `after` are its inputs by index around the execution; of `declared` inputs those that
    are missing in them are null tensors. `stale` are the outputs before, `None` where nothing had been
    written.
    """

    name: str
    operation: str
    param: Param
    before: Indexed
    after: Indexed
    declared: int
    stale: tuple[torch.Tensor | None, ...]
    outputs: Tensors


def short(tensor: torch.Tensor) -> str:
    """F16, BF16, F32, I8, U32: the dtype in names of kernels."""
    dtype = tensor.dtype
    if dtype == torch.bfloat16:
        return "BF16"
    letter = "F" if dtype.is_floating_point else "U" if str(dtype).startswith("torch.u") else "I"
    return f"{letter}{tensor.element_size() * 8}"


def from_operation(done: Execution, name: str, operation: str, param: Param) -> Kernel:
    """A kernel that takes the operation's tensors as they are."""
    before, after = dict(enumerate(done.before)), dict(enumerate(done.after))
    return Kernel(name, operation, param, before, after, len(before), done.stale, done.outputs)


def elewise_param(kind: int, param: Param | None = None, scale: float = 0.0) -> dict[str, Any]:
    quant = (param or {}).get("quantParam") or {}
    return {
        "elewiseType": kind,
        "inputOffset": quant.get("inputOffset", 0),
        "inputScale": quant.get("inputScale", 1.0),
        "outTensorType": (param or {}).get("outTensorType", -1),
        "varAttr": scale,
    }
