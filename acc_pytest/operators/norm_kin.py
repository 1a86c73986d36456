"""Operators around a norm: strided views, no bias, gather before, rope and cache after, gradient."""

from __future__ import annotations

import torch

from .cache import store, view
from .norm import LAYER_NORM, RMS_NORM, layer, rms
from .param import choice, integer, number
from .registry import As, OperatorCall, Outputs, Tensors, operator
from .rope import rotated


@operator("RmsNormWithStrideOperation", RMS_NORM, ("x", "gamma", "strides", "offset"))
def rms_norm_with_stride(call: OperatorCall, t: Tensors) -> Outputs:
    """RmsNorm (plain) of the view of `x` that `strides` and `offset` describe."""
    value, _ = rms(
        call,
        call.wide(view(call, t["x"], t["strides"], t["offset"])),
        t["gamma"],
        call.param["normParam"]["epsilon"],
    )
    return [As(value, t["x"].dtype)]


@operator("LayerNormWithStrideOperation", LAYER_NORM, ("x", "gamma", "beta", "strides", "offset"))
def layer_norm_with_stride(call: OperatorCall, t: Tensors) -> Outputs:
    """LayerNorm (plain) of the view of `x` that `strides` and `offset` describe."""
    norm_param = call.param["normParam"]
    x = call.wide(view(call, t["x"], t["strides"], t["offset"]))
    value = layer(call, x, t["gamma"], t["beta"], norm_param["beginNormAxis"], norm_param["epsilon"])
    return [As(value, t["x"].dtype)]


@operator("CohereLayerNormOperation", {"epsilon": number(1e-5)}, ("x", "weight"))
def cohere_layer_norm(call: OperatorCall, t: Tensors) -> Outputs:
    """weight * (x - mean) / sqrt(variance + epsilon) over the last dimension, no bias."""
    x = call.wide(t["x"])
    call.need(x.ndim > 0 and x.shape[-1] > 0, f"x {list(x.shape)} has nothing to normalise")
    centred = x - x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + call.param["epsilon"])
    value = centred * rstd * call.wide(t["weight"])
    call.need(value.shape == x.shape, f"weight {list(t['weight'].shape)} does not fit x {list(x.shape)}")
    return [As(value, t["x"].dtype)]


@operator("GatherPreRmsNormOperation", {"epsilon": number(1e-5)}, ("x", "residual", "indices", "gamma"))
def gather_pre_rms_norm(call: OperatorCall, t: Tensors) -> Outputs:
    """RmsNorm of x + residual[indices], in float32; the sum is the second output."""
    indices = t["indices"].flatten().long()
    call.need(
        len(indices) == t["x"].shape[0] and bool(((indices >= 0) & (indices < len(t["residual"]))).all()),
        f"indices do not pick a row of residual {list(t['residual'].shape)} "
        f"for each row of x {list(t['x'].shape)}",
    )
    total = call.wide(t["x"]) + call.wide(t["residual"])[indices]
    value, _ = rms(call, total, t["gamma"], call.param["epsilon"])
    return [As(value, torch.float32), As(total, t["x"].dtype)]


NORM_ROPE = {
    "epsilon": number(1e-5),
    "precisionMode": choice(0, "high precision", "high performance"),
    "rotaryCoeff": integer(2),
}


@operator(
    "NormRopeReshapeOperation",
    NORM_ROPE,
    ("x", "gamma", "keyRope", "cos", "sin", "slotMapping", "keyCache"),
    aliases={0: "keyCache"},
)
def norm_rope_reshape(call: OperatorCall, t: Tensors) -> Outputs:
    """Each token's RmsNorm of `x` and rotated `keyRope`, side by side, into its slot of the cache.

    The kernel rotates by halves whatever `rotaryCoeff` says.
    """
    normed, _ = rms(call, call.wide(t["x"]), t["gamma"], call.param["epsilon"])
    key, cos, sin = (call.wide(t[n]) for n in ("keyRope", "cos", "sin"))
    tokens = normed.shape[0]
    turned = rotated(key.reshape(tokens, -1), cos.reshape(tokens, -1), sin.reshape(tokens, -1), 2)
    rows = torch.cat((normed.reshape(tokens, -1), turned), -1)
    cache = store(call, rows, call.wide(t["keyCache"]), t["slotMapping"])
    return [As(cache, t["keyCache"].dtype)]


@operator("RmsNormBackwardOperation", {}, ("dy", "x", "rstd", "gamma"))
def rms_norm_backward(call: OperatorCall, t: Tensors) -> Outputs:
    """The gradients of x and gamma: dy gamma r - mean(dy gamma r^3 x) x, and the sum of dy x r over rows."""
    dy, x, r, gamma = (call.wide(t[n]) for n in ("dy", "x", "rstd", "gamma"))
    dims = tuple(range(-gamma.ndim, 0))
    call.need(list(gamma.shape) == list(x.shape[x.ndim - gamma.ndim :]), "gamma does not fit x")
    scaled = dy * gamma
    dx = scaled * r - (scaled * r.pow(3) * x).mean(dims, keepdim=True) * x
    rows = tuple(range(x.ndim - gamma.ndim))
    dgamma = (dy * x * r).sum(rows) if rows else dy * x * r
    return [As(dx, t["x"].dtype), As(dgamma, torch.float32)]
