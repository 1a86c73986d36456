"""The leaf operations of the demo models: parameters as ATB writes them, and the computation in float32."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .graph import Operation

ADD, MUL, MULS = 8, 9, 2
"""`elewiseType` of ATB: x + y, x * y, x * attribute."""


def single(value: float) -> float:
    """A float parameter as ATB prints it: rounded to float32, then widened."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def gather() -> Operation:
    """Rows of a table: `[rows, width]`, `[n]` -> `[n, width]`."""
    return Operation(
        "GatherOperation",
        ("x", "indices"),
        ("output",),
        {"axis": 0, "batchDims": 0},
        compute=lambda x, i: x[i],
    )


def rms_norm(eps: float) -> Operation:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    side = {"epsilon": single(1e-5), "hasBias": False, "quantType": 0}
    param = {
        "layerType": 1,
        "normParam": {
            "dynamicQuantType": 0,
            "epsilon": single(eps),
            "layerNormEps": 1e-05,
            "modelType": 0,
            "precisionMode": 0,
            "quantType": 0,
            "rstd": False,
        },
        "postNormParam": side,
        "preNormParam": side,
    }

    def compute(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    return Operation("RmsNormOperation", ("x1", "x2"), ("output",), param, compute=compute)


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
    return Operation(
        "LayerNormOperation",
        ("x", "gamma", "beta"),
        ("output",),
        param,
        compute=lambda x, w, b: F.layer_norm(x, w.shape, w, b, eps),
    )


def linear(*, bias: bool = False, old: bool = False) -> Operation:
    """x W^T (+ bias); `old` gives the short parameter list of 2024."""
    param: dict[str, Any] = {"hasBias": bias, "transposeA": False, "transposeB": True}
    if not old:
        extra = {"enAccum": False, "matmulType": 0, "outDataType": -1, "quantMode": 0}
        param = dict(sorted({**param, **extra}.items()))
    inputs = ("input", "weight", "bias") if bias else ("input", "weight")
    return Operation("LinearOperation", inputs, ("output",), param, compute=lambda *t: F.linear(*t))


def elewise(kind: int, *, old: bool = False, scale: float = 0.0) -> Operation:
    """`ADD`, `MUL` of two tensors (broadcast), `MULS` of one by `scale`."""
    quant = (
        {"inputOffset": 0, "inputScale": 1.0}
        if old
        else {"asymmetric": False, "inputOffset": 0, "inputScale": 1.0}
    )
    param = {"elewiseType": kind, "mulsParam": {"varAttr": scale}, "outTensorType": -1, "quantParam": quant}
    if kind == MULS:
        return Operation("ElewiseOperation", ("x",), ("output",), param, compute=lambda x: x * scale)
    compute = (lambda x, y: x + y) if kind == ADD else (lambda x, y: x * y)
    return Operation("ElewiseOperation", ("x", "y"), ("output",), param, compute=compute)


def activation(kind: str) -> Operation:
    """`swish` or `gelu` (the tanh approximation)."""
    types = {"swish": (4, F.silu), "gelu": (2, lambda x: F.gelu(x, approximate="tanh"))}
    number, compute = types[kind]
    return Operation(
        "ActivationOperation",
        ("x",),
        ("y",),
        {"activationType": number, "dim": -1, "scale": 1.0},
        compute=compute,
    )


def softmax() -> Operation:
    """Softmax over the last dimension."""
    return Operation("SoftmaxOperation", ("x",), ("output",), {"axes": [-1]}, compute=lambda x: x.softmax(-1))


def split(widths: Sequence[int], *, head_size: int = 0, dim: int = -1, old: bool = False) -> Operation:
    """Cut along `dim` into parts of `widths`; with `head_size` a part becomes `[n, heads, head_size]`."""
    uneven = len(set(widths)) > 1
    param: dict[str, Any] = {"splitDim": dim, "splitNum": len(widths)}
    if not old:
        param["splitSizes"] = list(widths) if uneven else []

    def compute(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = torch.split(x, list(widths), dim)
        return tuple(p.reshape(*p.shape[:-1], -1, head_size) for p in parts) if head_size else tuple(parts)

    outputs = tuple(f"output{i + 1}" for i in range(len(widths)))
    return Operation("SplitOperation", ("x",), outputs, param, compute=compute)


def take(offsets: Sequence[int], size: Sequence[int]) -> Operation:
    """A box of the tensor: from `offsets` (negative counts from the end), `size` elements (-1 = the rest)."""

    def compute(x: torch.Tensor) -> torch.Tensor:
        for dim, (start, count) in enumerate(zip(offsets, size)):
            first = start % x.shape[dim]
            x = x.narrow(dim, first, x.shape[dim] - first if count == -1 else count)
        return x

    return Operation(
        "SliceOperation", ("x",), ("output",), {"offsets": list(offsets), "size": list(size)}, compute=compute
    )


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of `[..., size]` by halves: x cos + (-x2, x1) sin."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def rope(head_size: int) -> Operation:
    """Rotate query and key: two `[n, heads * size]`, cos, sin `[n, size]`, seqLen -> `[n, heads, size]`s."""

    def compute(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, _: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        shape = (q.shape[0], -1, head_size)
        return tuple(rotate(t.reshape(shape), cos[:, None], sin[:, None]) for t in (q, k))

    inputs = ("x1", "x2", "x3", "x4", "x5")
    param = {"cosFormat": 0, "rotaryCoeff": 2}
    return Operation("RopeOperation", inputs, ("output1", "output2"), param, compute=compute)


def tables(positions: int, head_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of the rotary embedding, `[positions, head_size]`, both halves alike, base 10000."""
    frequency = 10000.0 ** (-torch.arange(0, head_size, 2).float() / head_size)
    angle = torch.outer(torch.arange(positions).float(), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def all_reduce(rank: int, ranks: int) -> Operation:
    """Sum over ranks."""
    param = {
        "allReduceType": "sum",
        "backend": "lccl",
        "commDomain": "",
        "commMode": 0,
        "hcclComm": 0,
        "outDataType": -1,
        "quantType": 0,
        "rank": rank,
        "rankRoot": 0,
        "rankSize": ranks,
        "rankTableFile": "",
    }

    def compute(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.stack(parts).sum(0)] * len(parts)

    return Operation("AllReduceOperation", ("",), ("",), param, compute=compute, collective=True)


def all_gather(rank: int, ranks: int) -> Operation:
    """Stack over ranks on a new first dimension."""
    param = {
        "backend": "lccl",
        "commDomain": "",
        "commMode": 0,
        "hcclComm": 0,
        "rank": rank,
        "rankRoot": 0,
        "rankSize": ranks,
        "rankTableFile": "",
    }
    compute = lambda parts: [torch.stack(parts)] * len(parts)  # noqa: E731
    return Operation("AllGatherOperation", ("",), ("",), param, compute=compute, collective=True)


def transpose_gathered() -> Operation:
    """`[ranks, n, width]` -> `[n, ranks * width]`."""
    return Operation(
        "TransposeOperation",
        ("",),
        ("",),
        {"perm": [1, 0, 2]},
        compute=lambda x: x.transpose(0, 1).flatten(1),
    )


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Attention of `[n, heads, size]` over `[m, kv_heads, size]`, `bias` broadcast to `[heads, n, m]`."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q, k) * scale
    if bias is not None:
        scores = scores + bias
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v)


def score_scale(head_size: int) -> float:
    """1 / sqrt(size)."""
    return 1.0 / math.sqrt(head_size)
