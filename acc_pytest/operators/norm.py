"""RmsNormOperation and LayerNormOperation: plain, with the sum before (pre, post), quantised."""

from __future__ import annotations

import torch

from .param import Param, Schema, choice, flag, integer, number
from .quantise import quantise_dynamic, quantise_static
from .registry import As, OperatorCall, Output, Outputs, Tensors, operator

NORM, PRE, POST = 1, 2, 3
INT8 = 2
_STRUCTS = {NORM: "normParam", PRE: "preNormParam", POST: "postNormParam"}
_LAYER = choice(0, "norm", "prenorm", "postnorm", start=1, extra={0: "undefined"})
_QUANT = choice(0, "none", "int4", "int8", "int16", "float8", "float16")
_DYNAMIC = choice(0, "none", "symmetric", "asymmetric")

# The library of 2024 printed these into every struct; none changes what is computed.
_OLD: Schema = {
    "quantInputScale": number(1.0),
    "quantInputOffset": integer(),
    "quantInputAlpha": number(1.0),
    "zoomScaleValue": number(1.0),
    "opMode": choice(0, "high precision", "high performance"),
    "beginNormAxis": integer(),
    "beginParamsAxis": integer(),
}
_RMS_SIDE: Schema = {**_OLD, "quantType": _QUANT, "epsilon": number(1e-5), "hasBias": flag()}
RMS_NORM: Schema = {
    "layerType": _LAYER,
    "normParam": {
        **_OLD,
        "quantType": _QUANT,
        "epsilon": number(1e-5),
        "layerNormEps": number(1e-5),
        "rstd": flag(),
        "precisionMode": choice(0, "high precision", "high performance"),
        "modelType": choice(0, "llama", "gemma"),
        "dynamicQuantType": _DYNAMIC,
    },
    "preNormParam": _RMS_SIDE,
    "postNormParam": _RMS_SIDE,
}
_LAYER_SIDE: Schema = {**_OLD, "quantType": _QUANT, "epsilon": number(1e-5)}
LAYER_NORM: Schema = {
    "layerType": _LAYER,
    "normParam": {**_LAYER_SIDE, "dynamicQuantType": _DYNAMIC},
    "preNormParam": _LAYER_SIDE,
    "postNormParam": _LAYER_SIDE,
}


def _norm_of(param: Param) -> tuple[int, Param]:
    """The kind of norm, and the struct that counts for it (the other two are printed all the same)."""
    kind = param["layerType"] or NORM
    return kind, param[_STRUCTS[kind]]


def _quantised(norm_param: Param) -> bool:
    return bool(norm_param["quantType"] == INT8)


def _rms_inputs(param: Param) -> list[str]:
    kind, norm_param = _norm_of(param)
    if kind == NORM:
        if not _quantised(norm_param):
            return ["x", "gamma"]
        static = ["scale", "offset"] if not norm_param["dynamicQuantType"] else []
        return ["x", "gamma", "beta", *static]
    names = ["x", *(["bias"] if norm_param["hasBias"] else []), "residual", "gamma"]
    if _quantised(norm_param):
        names += [*(["beta"] if kind == PRE else []), "scale", "offset"]
    return names


@operator("RmsNormOperation", RMS_NORM, _rms_inputs)
def rms_norm(call: OperatorCall, t: Tensors) -> Outputs:
    """x / sqrt(mean(x^2) + epsilon) * gamma over the dimensions of gamma (leading ones do not count).

    prenorm normalises x (+ bias) + residual and gives that sum as second output, postnorm only
    normalises it. int8: (y (+ beta)) / scale + offset; or by the scale of each row. `rstd` adds
    1 / sqrt(mean(x^2) + epsilon) as second output.
    """
    kind, norm_param = _norm_of(call.param)
    _supported(call, norm_param)
    total = call.wide(t["x"])
    for name in ("bias", "residual"):
        if name in t:
            total = total + call.wide(t[name])
    value, rstd = rms(
        call, total, t["gamma"], norm_param["epsilon"], gemma=norm_param.get("modelType", 0) == 1
    )
    dtype = t["x"].dtype
    plain: list[Output] = [As(total, dtype)] if kind == PRE else []
    if not _quantised(norm_param):
        if kind == NORM and norm_param["rstd"]:
            plain.append(As(rstd, torch.float32))
        return [As(value, dtype), *plain]
    if "beta" in t:
        value = value + call.wide(t["beta"])
    if kind == NORM and norm_param["dynamicQuantType"]:
        return quantise_dynamic(call, value, asymmetric=norm_param["dynamicQuantType"] == 2)
    quantised = As(value / call.wide(t["scale"]) + call.wide(t["offset"]), torch.int8)
    return [quantised, *(plain if kind != POST else [As(value, dtype)])]


def rms(
    call: OperatorCall, x: torch.Tensor, gamma: torch.Tensor, epsilon: float, *, gemma: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised value and 1 / rms, whose normalised dimensions have size 1."""
    shape = list(gamma.shape)
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    call.need(
        len(shape) <= x.ndim and shape == list(x.shape[x.ndim - len(shape) :]),
        f"gamma {list(gamma.shape)} does not fit x {list(x.shape)}",
    )
    rstd = torch.rsqrt(x.square().mean(tuple(range(-len(shape), 0)), keepdim=True) + epsilon)
    weight = call.wide(gamma).reshape(shape)
    return x * rstd * (weight + 1 if gemma else weight), rstd


def _layer_inputs(param: Param) -> list[str]:
    kind, norm_param = _norm_of(param)
    names = ["x", "gamma", "beta"] if kind == NORM else ["x", "residual", "gamma", "beta"]
    if _quantised(norm_param) and not (kind == NORM and norm_param["dynamicQuantType"]):
        names += ["scale", "offset"]
    return names


@operator("LayerNormOperation", LAYER_NORM, _layer_inputs)
def layer_norm(call: OperatorCall, t: Tensors) -> Outputs:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over dimensions `beginNormAxis` and on.

    Prenorm, postnorm and int8 normalise the last dimension; prenorm and postnorm normalise
    x + zoomScaleValue * residual, prenorm gives that sum as second output. int8 multiplies by its scale
    (RmsNorm divides): y * scale + offset.
    """
    kind, norm_param = _norm_of(call.param)
    _supported(call, norm_param)
    x, dtype = call.wide(t["x"]), t["x"].dtype
    first = norm_param["beginNormAxis"] if kind == NORM and not _quantised(norm_param) else -1
    if kind != NORM:
        # the quantising postnorm kernel does not read the factor
        zoom = 1.0 if _quantised(norm_param) else norm_param["zoomScaleValue"]
        x = x + zoom * call.wide(t["residual"])
    value = layer(call, x, t["gamma"], t["beta"], first, norm_param["epsilon"])
    if not _quantised(norm_param):
        return [As(value, dtype), *([As(x, dtype)] if kind == PRE else [])]
    if kind == NORM and norm_param["dynamicQuantType"]:
        return quantise_dynamic(call, value, asymmetric=norm_param["dynamicQuantType"] == 2)
    quantised = quantise_static(call, value, t["scale"], t["offset"])
    return [As(value, dtype), quantised] if kind == POST else [quantised]


def layer(
    call: OperatorCall, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, first: int, epsilon: float
) -> torch.Tensor:
    call.need(-x.ndim <= first < x.ndim, f"x {list(x.shape)} has no dimension {first} (beginNormAxis)")
    dims = tuple(range(first % x.ndim, x.ndim))
    call.need(all(x.shape[d] for d in dims), f"x {list(x.shape)} has nothing to normalise")
    centred = x - x.mean(dims, keepdim=True)
    value = centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + epsilon)
    for name, tensor in (("gamma", gamma), ("beta", beta)):
        call.need(
            tensor.shape[-1] in (1, x.shape[-1]),
            f"{name} {list(tensor.shape)} does not fit x {list(x.shape)}",
        )
    result = value * call.wide(gamma) + call.wide(beta)
    # gamma may have leading dimensions of size 1 that x has not
    return result.reshape(x.shape)


def _supported(call: OperatorCall, norm_param: Param) -> None:
    call.need(
        norm_param["quantType"] in (0, INT8),
        f"quantType {norm_param['quantType']} is in ATB's enumeration but in none of its kernels; "
        "0 or 2 (int8)",
    )
