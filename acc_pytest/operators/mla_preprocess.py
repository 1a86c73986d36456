"""MlaPreprocessOperation: from a hidden state to the query and the cached key of latent attention.

Two int8 products with an RmsNorm before each, the query's part per head into the latent space, rotation,
and the key into its slot. Every kernel on the way writes the type of the input.
"""

from __future__ import annotations

import torch

from .cache import store
from .layout import group_of, nz_to_nd
from .norm import rms
from .param import choice, flag, integer, number
from .quantise import descale, integer_matmul, quantise_dynamic
from .registry import As, OperatorCall, Output, Outputs, Tensors, operator
from .rope import rotated
from .rounding import rounded

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
    weight = _weight(call, t[name], name)[:columns, : x.shape[-1]]
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


def _weight(call: OperatorCall, weight: torch.Tensor, name: str) -> torch.Tensor:
    call.need(weight.dtype == torch.int8, f"{name} is {weight.dtype} and not int8")
    if weight.ndim > 2:
        call.need(
            weight.shape[-1] == group_of(weight.dtype),
            f"{name} {list(weight.shape)} is not an int8 weight in NZ format",
        )
        weight = nz_to_nd(weight)
        weight = weight[0] if weight.ndim > 2 else weight
    return weight


def _cached(call: OperatorCall, t: Tensors, rows: torch.Tensor, name: str) -> Output:
    """The cache `name` with the rows of every token in their slots."""
    nz, cache = call.param["cacheMode"] in (EIGHT_BIT, NZ), t[name]
    new = store(call, rows, call.wide(cache), t["slotMapping"], nz=nz)
    return As(new, cache.dtype)
