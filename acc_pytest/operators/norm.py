"""RmsNormOperation and LayerNormOperation: plain, with the sum before (pre, post), quantised."""

from __future__ import annotations

import torch

from .cache import store, view
from .layout import (
    descale,
    int8_weight,
    integer_matmul,
    nz_to_nd,
    quantise_dynamic,
    quantise_static,
    torch_dtype,
)
from .registry import (
    As,
    OperatorCall,
    Output,
    Outputs,
    Param,
    Schema,
    Tensors,
    choice,
    data_type,
    flag,
    integer,
    integers,
    number,
    operator,
    rounded,
)

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


# RopeOperation: rotary position embedding of query and key.


ROPE = {"rotaryCoeff": integer(4), "cosFormat": choice(0, "inference", "training")}


@operator("RopeOperation", ROPE, ("query", "key", "cos", "sin", "seqLen?"))
def rope(call: OperatorCall, t: Tensors) -> Outputs:
    """Rotate `query` and `key` (`[n, heads * size]`, `[n, heads, size]` or `[b, s, heads, size]`).

    `cos` and `sin` are `[n, size]`, one row a token; their width is the head size. `rotaryCoeff` c cuts a
    head into blocks of 2 t, t = size / c: (u, w) -> (u cos - w sin, w cos + u sin). c = 2 is the rotation
    by halves, c = size the one of neighbouring pairs, c = 4 rotates two halves on their own (the second
    stays as it is where its cos is 1 and sin 0).
    """
    size = t["cos"].shape[-1]
    coefficient = call.param["rotaryCoeff"]
    call.need(
        coefficient in (2, 4, size) and size % coefficient == 0,
        f"parameter rotaryCoeff is {coefficient}; allowed are 2, 4 and the head size {size}",
    )
    call.need(t["cos"].shape == t["sin"].shape, "cos and sin have different shapes")
    cos, sin = (call.wide(t[name]).reshape(-1, 1, size) for name in ("cos", "sin"))
    return [As(_rotated(call, t[name], name, cos, sin), t[name].dtype) for name in ("query", "key")]


def _rotated(
    call: OperatorCall, x: torch.Tensor, name: str, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    tokens, size = cos.shape[0], cos.shape[-1]
    call.need(
        x.numel() % (tokens * size) == 0 if tokens * size else x.numel() == 0,
        f"{name} {list(x.shape)} is not {tokens} tokens of heads of {size} elements, as cos has",
    )
    heads = call.wide(x).reshape(tokens, x.numel() // max(tokens * size, 1), size)
    return rotated(heads, cos, sin, call.param["rotaryCoeff"]).reshape(x.shape)


def rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, coefficient: int) -> torch.Tensor:
    """`[..., size]` rotated in blocks of size / coefficient."""
    stride = heads.shape[-1] // coefficient
    blocks = torch.unflatten(heads, -1, (-1, 2, stride))
    first, second = blocks.unbind(-2)
    turned = torch.stack((-second, first), -2).flatten(-3)
    return heads * cos + turned * sin


@operator("RopeQConcatOperation", {}, ("query", "cos", "sin", "concat"))
def rope_q_concat(call: OperatorCall, t: Tensors) -> Outputs:
    """Rotate each head of `[n, heads * size]` by halves and put `concat` `[n, heads, width]` behind it."""
    size, tail = t["cos"].shape[-1], t["concat"]
    cos, sin = (call.wide(t[name]).reshape(-1, 1, size) for name in ("cos", "sin"))
    call.need(
        tail.ndim == 3 and t["query"].numel() == tail.shape[0] * tail.shape[1] * size,
        f"query {list(t['query'].shape)} and concat {list(tail.shape)} do not fit heads of {size} elements",
    )
    heads = call.wide(t["query"]).reshape(tail.shape[0], tail.shape[1], size)
    value = torch.cat((rotated(heads, cos, sin, 2), call.wide(tail)), -1)
    return [As(value, t["query"].dtype)]


NTK = {"outDataType": data_type(1, alias="outputType")}


@operator("DynamicNTKOperation", NTK, ("positionIds", "invFreq", "seqLens"))
def dynamic_ntk(call: OperatorCall, t: Tensors) -> Outputs:
    """sin, then cos `[tokens, size]` of position * frequency, both halves alike; frequencies by sequence."""
    counts = [int(n) for n in t["seqLens"].flatten().tolist()]
    positions, frequencies = call.wide(t["positionIds"].flatten()), call.wide(t["invFreq"])
    call.need(
        sum(counts) == len(positions) and len(counts) == len(frequencies),
        f"seqLens {counts} do not cut {len(positions)} positions for {len(frequencies)} rows of invFreq",
    )
    angles = torch.cat([torch.outer(p, f) for p, f in zip(torch.split(positions, counts), frequencies)])
    table = angles.repeat(1, 2)
    dtype = torch_dtype(call.param["outDataType"], torch.float16)
    return [As(table.sin(), dtype), As(table.cos(), dtype)]


@operator(
    "RopeGradOperation", {"c_qSeqLen": integers(alias="qSeqLen")}, ("queryGrad", "keyGrad", "cos", "sin")
)
def rope_grad(call: OperatorCall, t: Tensors) -> Outputs:
    """g * (cos + [sin2, -sin1]) for each head: what the kernel computes.

    It is not the derivative of RopeOperation; ATB's own golden is the same.
    """
    counts, size = call.param["c_qSeqLen"], t["cos"].shape[-1]
    call.need(
        sum(counts) == t["queryGrad"].shape[0] and max(counts, default=0) <= t["cos"].shape[0],
        f"c_qSeqLen {list(counts)} does not fit {t['queryGrad'].shape[0]} tokens "
        f"and {t['cos'].shape[0]} rows of cos",
    )
    rows = [position for count in counts for position in range(count)]
    cos, sin = (call.wide(t[n])[rows] for n in ("cos", "sin"))
    first, second = sin.chunk(2, -1)
    factor = (cos + torch.cat((second, -first), -1))[:, None]
    results = []
    for name in ("queryGrad", "keyGrad"):
        gradient = call.wide(t[name])
        value = torch.unflatten(gradient, -1, (-1, size)) * factor
        results.append(As(value.reshape(gradient.shape), t[name].dtype))
    return results


# Operators around a norm: strided views, no bias, gather before, rope and cache after, gradient.


@operator("RmsNormWithStrideOperation", RMS_NORM, ("x", "gamma", "strides", "offset"))
def rms_norm_with_stride(call: OperatorCall, t: Tensors) -> Outputs:
    """RmsNorm (plain) of the view of `x` that `strides` and `offset` describe."""
    x = call.wide(view(call, t["x"], t["strides"], t["offset"]))
    value, _ = rms(call, x, t["gamma"], call.param["normParam"]["epsilon"])
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


# MlaPreprocessOperation: from a hidden state to the query and the cached key of latent attention.
#
# Two int8 products with an RmsNorm before each, the query's part per head into the latent space, rotation,
# and the key into its slot. Every kernel on the way writes the type of the input.


EPSILON = 1e-6
"""The kernel's constant: ATB's header calls `epsilon`, like most parameters of this operator, reserved."""

ONE_CACHE, APART, EIGHT_BIT, NZ = range(4)
PER_TENSOR, PER_TOKEN = 0, 1
MLA_PREPROCESS = {
    "wdqDim": integer(),
    "qRopeDim": integer(),
    "kRopeDim": integer(),
    "epsilon": number(1e-5),
    "qRotaryCoeff": integer(2),
    "kRotaryCoeff": integer(2),
    "transposeWdq": flag(True),
    "transposeWuq": flag(True),
    "transposeWuk": flag(True),
    "cacheMode": choice(0, "one cache", "latent and rope apart", "int8 and NZ", "NZ"),
    "quantMode": choice(0, "per tensor", "per token", "per token, asymmetric", "none"),
}
_INPUTS = (
    *("input", "gamma0", "beta0?", "quantScale0?", "quantOffset0?", "wdqkv", "deScale0", "bias0?"),
    *("gamma1", "beta1?", "quantScale1?", "quantOffset1?", "wuq", "deScale1", "bias1?"),
    *("gamma2", "cos", "sin", "wuk", "kvCache", "kvCacheRope?", "slotMapping?", "ctkvScale?", "qNopeScale?"),
)


@operator(
    "MlaPreprocessOperation",
    MLA_PREPROCESS,
    _INPUTS,
    aliases=lambda p: {1: "kvCache", **({} if p["cacheMode"] == ONE_CACHE else {3: "kvCacheRope"})},
)
def mla_preprocess(call: OperatorCall, t: Tensors) -> Outputs:
    """Query `[n, heads, latent + rope]` and the cache with the new keys; apart where the caches are.

    input `[n, hidden]`; wdqkv `[latent + rope + rank, hidden]` and wuq `[heads (nope + rope), rank]` int8,
    plain or NZ; wuk `[heads, nope, latent]`; cos and sin `[n, rope]`; caches `[blocks, block, 1, width]`
    or NZ `[blocks, width / 16 (int8: 32), block, 16]`. An earlier release has no rope cache among its
    operands where `cacheMode` is 0.
    """
    p, dtype = call.param, t["input"].dtype
    call.need(
        p["quantMode"] in (PER_TENSOR, PER_TOKEN), "ATB itself refuses quantMode 2 and 3; 0 and 1 exist"
    )
    t = _with_slots(call, t)
    latent, rope, rank = t["gamma2"].numel(), t["cos"].shape[-1], t["gamma1"].numel()
    wuk = nz_to_nd(t["wuk"]) if t["wuk"].ndim == 4 else t["wuk"]
    call.need(wuk.ndim == 3, f"wuk {list(t['wuk'].shape)} is not [heads, nope, latent]")
    heads, tokens = wuk.shape[0], len(t["input"])
    nope = t["deScale1"].numel() // max(heads, 1) - rope
    down = _linear(call, t, 0, call.wide(t["input"]), "wdqkv", latent + rope + rank)
    key, key_rope, query = torch.split(call.between(down, dtype), [latent, rope, rank], -1)
    up = _linear(call, t, 1, query, "wuq", heads * (nope + rope))
    up = call.between(up, dtype).reshape(tokens, heads, nope + rope)
    inner = torch.einsum("nhd,hdl->nhl", up[..., :nope], call.wide(wuk)[:, :nope, :latent])
    cos, sin = (call.wide(t[name]).reshape(tokens, 1, rope) for name in ("cos", "sin"))
    outer = rotated(up[..., nope:], cos, sin, 2)
    key, _ = rms(call, key, t["gamma2"], EPSILON)
    key, turned = call.between(key, dtype), rotated(key_rope, cos[:, 0], sin[:, 0], 2)
    return _outputs(call, t, (inner, outer), (key, turned))


def _outputs(
    call: OperatorCall,
    t: Tensors,
    query: tuple[torch.Tensor, torch.Tensor],
    keys: tuple[torch.Tensor, torch.Tensor],
) -> Outputs:
    """The latent and the rotated part of the query, and of the caches with the keys, as `cacheMode` asks."""
    (inner, outer), (key, turned) = query, keys
    mode, dtype = call.param["cacheMode"], t["input"].dtype
    if mode == ONE_CACHE:
        joined = As(torch.cat((inner, outer), -1), dtype)
        return [joined, _cached(call, t, torch.cat((key, turned), -1), "kvCache")]
    first = As(inner, dtype)
    if mode == EIGHT_BIT:
        call.need("ctkvScale" in t and "qNopeScale" in t, "cacheMode 2 needs ctkvScale and qNopeScale")
        scale = call.wide(t["qNopeScale"]).reshape(1, -1, 1)
        first = As(call.between(inner, dtype) * scale, torch.int8)
        key = key / call.wide(t["ctkvScale"]).flatten()[0]
    return [
        first,
        _cached(call, t, key, "kvCache"),
        As(outer, dtype),
        _cached(call, t, turned, "kvCacheRope"),
    ]


def _with_slots(call: OperatorCall, t: Tensors) -> Tensors:
    """The operands of the earlier release, in which the slots stand where the rope cache is today."""
    if "slotMapping" not in t and "kvCacheRope" in t and not t["kvCacheRope"].is_floating_point():
        t = {**t, "slotMapping": t["kvCacheRope"]}
    call.need("slotMapping" in t, "input slotMapping is missing")
    call.need(
        call.param["cacheMode"] == ONE_CACHE or "kvCacheRope" in t,
        f"cacheMode {call.param['cacheMode']} needs kvCacheRope",
    )
    return t


def _linear(
    call: OperatorCall, t: Tensors, number: int, x: torch.Tensor, name: str, columns: int
) -> torch.Tensor:
    """RmsNorm of wide `x`, quantised, times the int8 weight `name`, scaled back, wide `[n, columns]`."""
    value, _ = rms(call, x, t[f"gamma{number}"], EPSILON)
    if f"beta{number}" in t:
        value = value + call.wide(t[f"beta{number}"])
    weight = int8_weight(call, t[name], name, 2)[:columns, : x.shape[-1]]
    call.need(
        weight.shape == (columns, x.shape[-1]),
        f"{name} {list(t[name].shape)} is not [{columns}, {x.shape[-1]}] or its NZ",
    )
    scale = descale(call, t[f"deScale{number}"]).flatten()
    if call.param["quantMode"] == PER_TOKEN:
        small, step = quantise_dynamic(call, call.between(value, torch.float16), asymmetric=False)
        assert isinstance(small, As)
        assert isinstance(step, As)
        product = integer_matmul(rounded(small.value, torch.int8), weight.T)
        return call.wide(product) * scale * step.value[:, None]
    names = [f"quantScale{number}", f"quantOffset{number}"]
    call.need(all(operand in t for operand in names), f"quantMode 0 needs {' and '.join(names)}")
    divisor, shift = (call.wide(t[operand]).flatten()[0] for operand in names)
    product = integer_matmul(rounded(value / divisor + shift, torch.int8), weight.T)
    if f"bias{number}" in t:
        product = product + t[f"bias{number}"].double().flatten()
    return call.wide(product) * scale


def _cached(call: OperatorCall, t: Tensors, rows: torch.Tensor, name: str) -> Output:
    """The cache `name` with the rows of every token in their slots."""
    nz, cache = call.param["cacheMode"] in (EIGHT_BIT, NZ), t[name]
    new = store(call, rows, call.wide(cache), t["slotMapping"], nz=nz)
    return As(new, cache.dtype)
