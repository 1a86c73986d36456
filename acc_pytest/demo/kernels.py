"""Kernel directories below a leaf operation: the kernels' names and the tensors they see.

Kernels have habits of their own that readers of real dumps must expect: gaps in the indices (null
tensors are not dumped), lengths as uint32, several kernels and in-between results below one operation,
results that the operation does not show. Communication has no kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .graph import Operation
from .operations import ADD, MUL

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of an operation: its name, and its inputs and outputs by index."""

    name: str
    inputs: Mapping[int, torch.Tensor]
    outputs: Tensors


NAMES = {
    "GatherOperation": "Gather16I64Kernel",
    "RmsNormOperation": "RmsNormKernel",
    "SplitOperation": "Split{}Output{n}Kernel",
    "ReshapeAndCacheOperation": "ReshapeAndCacheNdKernel",
    "SliceOperation": "Slice{}Int64Kernel",
    "SoftmaxOperation": "Softmax{}Kernel",
    "TransposeOperation": "Transpose16Kernel",
}
ELEWISE = {ADD: "Add{}Kernel", MUL: "Mul{}Kernel"}


def kernels_of(operation: Operation, inputs: Tensors, outputs: Tensors) -> list[Kernel]:
    """The kernels that ran for one execution of a leaf `operation`, in order."""
    if operation.collective:
        return []
    short = "BF16" if outputs[0].dtype == torch.bfloat16 else "F16"
    special = _SPECIAL.get((operation.kind, len(inputs)))
    if special is not None:
        return special(short, inputs, outputs)
    name = _pattern(operation).replace("{}", short).replace("{n}", str(len(outputs)))
    return [Kernel(name, dict(enumerate(inputs)), outputs)]


def _pattern(operation: Operation) -> str:
    param = operation.param
    if isinstance(param, Mapping) and operation.kind == "ElewiseOperation":
        return ELEWISE.get(param["elewiseType"], "Muls{}Kernel")
    if isinstance(param, Mapping) and operation.kind == "ActivationOperation":
        return "Swish{}Kernel" if param["activationType"] == 4 else "GeluApprox{}Kernel"
    return NAMES[operation.kind]


def _linear(short: str, inputs: Tensors, outputs: Tensors) -> list[Kernel]:
    return [Kernel(f"PpMatMul{short}Kernel", dict(enumerate(inputs)), outputs)]


def _linear_bias(short: str, inputs: Tensors, outputs: Tensors) -> list[Kernel]:
    x, weight, bias = inputs
    product = F.linear(x.float(), weight.float()).to(x.dtype)
    return [
        *_linear(short, (x, weight), (product,)),
        Kernel(f"Add{short}Kernel", {0: product, 1: bias}, outputs),
    ]


def _layer_norm(short: str, inputs: Tensors, outputs: Tensors) -> list[Kernel]:
    x = inputs[0].float()
    aside = (x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True))
    return [
        Kernel(
            f"Layernorm{short}Kernel",
            dict(enumerate(inputs)),
            (*outputs, *(t.to(inputs[0].dtype) for t in aside)),
        )
    ]


def _rope(_: str, inputs: Tensors, outputs: Tensors) -> list[Kernel]:
    unsigned = getattr(torch, "uint32", torch.int32)  # torch < 2.3 has no uint32
    return [Kernel("AtbRopeKernel", {**dict(enumerate(inputs)), 4: inputs[4].view(unsigned)}, outputs)]


def _self_attention(_: str, inputs: Tensors, outputs: Tensors) -> list[Kernel]:
    seen = {**dict(enumerate(inputs[:3])), 4: inputs[3]}
    return [Kernel("UnpadFlashAttentionNdKernel", seen, outputs)]


def _paged_attention(_: str, inputs: Tensors, outputs: Tensors) -> list[Kernel]:
    return [Kernel("PagedAttentionMaskNdKernel", dict(enumerate(inputs[:4])), outputs)]


def _flash_attention(short: str, inputs: Tensors, outputs: Tensors) -> list[Kernel]:
    q, k, v, k_cache, v_cache, mask, offset, length, layer = inputs
    rows = [t.reshape(t.shape[0] * t.shape[1], -1) for t in (q, k, v)]
    scaled = (rows[0].float() / q.shape[-1] ** 0.5).to(q.dtype)
    caching = [
        Kernel("KVCacheNdKernel", {0: new, 1: layer, 2: cache, 3: offset, 4: length}, (cache,))
        for new, cache in zip(rows[1:], (k_cache, v_cache))
    ]
    seen = {0: scaled, 1: k_cache, 2: v_cache, 3: layer, 4: mask}
    return [
        Kernel(f"Muls{short}Kernel", {0: rows[0]}, (scaled,)),
        *caching,
        Kernel("UnpadFlashAttentionNdKernel", seen, outputs),
    ]


_SPECIAL: dict[tuple[str, int], Callable[[str, Tensors, Tensors], list[Kernel]]] = {
    ("LinearOperation", 2): _linear,
    ("LinearOperation", 3): _linear_bias,
    ("LayerNormOperation", 3): _layer_norm,
    ("RopeOperation", 5): _rope,
    ("SelfAttentionOperation", 5): _self_attention,
    ("SelfAttentionOperation", 9): _flash_attention,
    ("PagedAttentionOperation", 5): _paged_attention,
}
"""By operation and number of inputs."""
