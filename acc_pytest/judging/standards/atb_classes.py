"""The class of an ATB operator, from which the `ascend` standard takes its bound: MOVE, COMPUTE_FLOAT, ...

ATB's test suite asks each operator for its class under given parameters. What is not listed is
COMPUTE_FLOAT. CV_FUSION needs the result of a second device; without one ATB judges it as VECTOR_FUSION.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOVE = (
    "AllGather AllGatherV AllToAll AllToAllV AllToAllVV2 AsStrided BlockCopy Broadcast Concat Fill Gather "
    "GenAttentionMask GroupTopk KvCache Pad PadWithHiddenState PagedCacheLoad Recv ReshapeAndCache "
    "ReshapeAndCacheOmni ReshapeAndCacheWithStride Send SetValue Slice Split Unpad UnpadWithHiddenState"
)
_CAST = "Transdata Transpose"
_INTEGER = "Onehot Gating"
_VECTOR_FUSION = (
    "FusedAddTopkDiv GroupedMatmulInplaceAdd LaserAttention LaserAttentionGrad MlaPreprocess "
    "MultiLatentAttention PagedAttention RelayAttention RingMLA RmsNormBackward RmsNormWithStride "
    "SelfAttention"
)
_QUANT = "SwigluQuant"
_BY_NAME = {
    f"{name}Operation": kind
    for kind, names in (
        ("MOVE", _MOVE),
        ("CAST", _CAST),
        ("COMPUTE_INTEGER", _INTEGER),
        ("VECTOR_FUSION", _VECTOR_FUSION),
        ("COMPUTE_QUANT", _QUANT),
    )
    for name in names.split()
}
_ELEWISE = {1: "CAST"} | dict.fromkeys((7, 11, 12, 13, 14, 16), "COMPUTE_INTEGER")
_ELEWISE |= dict.fromkeys((6, 17, 18, 19, 20), "COMPUTE_QUANT")
_NORMS = {1: "normParam", 2: "preNormParam", 3: "postNormParam", 4: "preNormParam"}
_FUSED_ACTIVATIONS = (4, 7, 8)
_MAX_MIN = (1, 2)


_CV_FUSION = frozenset(
    f"{name}Operation"
    for name in (
        *("LaserAttention", "LaserAttentionGrad", "MultiLatentAttention", "PagedAttention"),
        *("RelayAttention", "RingMLA", "SelfAttention"),
    )
)


def has_two_goldens(operator: str, param: Mapping[str, Any]) -> bool:
    """Whether ATB judges the operator by two goldens where it has both (its class CV_FUSION)."""
    if operator in ("ReduceScatterOperation", "ReduceScatterVOperation"):
        return param["reduceType"] not in ("max", "min")
    return operator in _CV_FUSION


def op_class(operator: str, param: Mapping[str, Any]) -> str:
    """The class of `operator` under its complete parameters."""
    short = operator.removesuffix("Operation")
    if short == "Elewise":
        return _ELEWISE.get(param["elewiseType"], "COMPUTE_FLOAT")
    if short == "Activation":
        return "VECTOR_FUSION" if param["activationType"] in _FUSED_ACTIVATIONS else "COMPUTE_FLOAT"
    if short == "Reduce":
        return "MOVE" if param["reduceType"] in _MAX_MIN else "COMPUTE_FLOAT"
    if short in ("ReduceScatter", "ReduceScatterV"):
        return "MOVE" if param["reduceType"] in ("max", "min") else "VECTOR_FUSION"
    if short == "AllReduce":
        return "COMPUTE_QUANT" if param["quantType"] > 0 else "COMPUTE_FLOAT"
    if short in ("LayerNorm", "RmsNorm"):
        return _norm(short, param)
    return _BY_NAME.get(operator, "COMPUTE_FLOAT")


def class_by_name(operator: str) -> str:
    """The class of `operator` where its parameters are not known: of those it may have, the loosest.

    The outputs in question are float ones: what a norm quantises is int8.
    """
    short = operator.removesuffix("Operation")
    if short in ("RmsNorm", "ReduceScatter", "ReduceScatterV"):
        return "VECTOR_FUSION"
    return _BY_NAME.get(operator, "COMPUTE_FLOAT")


def _norm(short: str, param: Mapping[str, Any]) -> str:
    kind = param["layerType"]
    inner = param[_NORMS[kind]] if kind in _NORMS else {}
    if inner.get("quantType", 0):
        return "COMPUTE_QUANT"
    return "COMPUTE_FLOAT" if short == "LayerNorm" and kind == 1 else "VECTOR_FUSION"
