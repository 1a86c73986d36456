"""Shape rules of norms and of softmax."""

from __future__ import annotations

from typing import Any

import torch

from ...operators.layout import nd_to_nz
from .values import (
    FLOATS,
    SHORT,
    Draw,
    Drawn,
    distinct,
    flag,
    floats,
    integer,
    integers,
    numbers,
    one_of,
    rule,
    shape,
    uniform,
)

_STRUCTS = {1: "normParam", 2: "preNormParam", 3: "postNormParam"}


def _epsilon(draw: Draw) -> float:
    return one_of(draw, 1e-5, 1e-6, 1e-2)


@rule("RmsNormOperation")
def rms_norm(draw: Draw) -> Drawn:
    """norm, prenorm, postnorm; int8 with a given scale or those of each row; rstd and gemma."""
    kind, dtype = one_of(draw, 1, 2, 3), one_of(draw, *FLOATS)
    quantised = flag(draw)
    dtype = torch.float16 if quantised else dtype
    size = shape(draw, 1, 4, 9)
    gamma = size[-integer(draw, 1, len(size)) :] if kind == 1 and not quantised else size[-1:]
    norm_param: dict[str, Any] = {"epsilon": _epsilon(draw), "quantType": 2 if quantised else 0}
    x, weight = floats(draw, size, dtype), floats(draw, gamma, dtype)
    scale = [floats(draw, [1], dtype, positive=True), integers(draw, [1], -20, 20, torch.int8)]
    if kind == 1:
        extra = (
            _quantised_norm(draw, norm_param, weight, scale)
            if quantised
            else _plain_norm(draw, norm_param, weight)
        )
        return {"layerType": kind, _STRUCTS[kind]: norm_param}, [x, *extra]
    norm_param["hasBias"] = flag(draw)
    inputs = [x, *([floats(draw, size[-1:], dtype)] if norm_param["hasBias"] else [])]
    inputs += [floats(draw, size, dtype), weight]
    if quantised:
        inputs += [floats(draw, gamma, dtype)] if kind == 2 else []
        inputs += scale
    return {"layerType": kind, _STRUCTS[kind]: norm_param}, inputs


def _plain_norm(draw: Draw, norm_param: dict[str, Any], weight: torch.Tensor) -> list[torch.Tensor]:
    """The weight of a norm that hands out its reciprocal root mean squares, or is that of gemma or not."""
    if flag(draw):
        norm_param["rstd"] = True
    else:
        norm_param["modelType"] = integer(draw, 0, 1)
    return [_perhaps_with_dimension(draw, weight)]


def _quantised_norm(
    draw: Draw, norm_param: dict[str, Any], weight: torch.Tensor, scale: list[torch.Tensor]
) -> list[torch.Tensor]:
    """gamma and beta of a norm with the given scale, or with one of each row without and with an offset."""
    width = len(weight)
    norm_param["dynamicQuantType"] = integer(draw, 0, 2 if width > 1 else 1)
    if norm_param["dynamicQuantType"] == 2:
        return _spread(draw, width, weight.dtype)
    beta = floats(draw, [width], weight.dtype)
    inputs = [_perhaps_with_dimension(draw, weight), beta]
    return inputs if norm_param["dynamicQuantType"] else [*inputs, *scale]


def _perhaps_with_dimension(draw: Draw, weight: torch.Tensor) -> torch.Tensor:
    """Dimensions of size 1 in front of a weight count for nothing."""
    return weight[None] if flag(draw) else weight


def _spread(draw: Draw, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """gamma and beta that keep the elements of a row apart: a row of equal ones has no scale of its own."""
    beta = 8.0 * distinct(draw, width, width)
    return [uniform(draw, [width], 0.1, 1.0).to(dtype), beta.to(dtype)]


@rule("LayerNormOperation")
def layer_norm(draw: Draw) -> Drawn:
    """norm over trailing dimensions, prenorm, postnorm; int8 with a given scale or those of each row."""
    kind, quantised = one_of(draw, 1, 2, 3), flag(draw)
    dtype = torch.float16 if quantised else one_of(draw, *FLOATS)
    size = shape(draw, 1, 4, 9)
    norm_param: dict[str, Any] = {"epsilon": _epsilon(draw), "quantType": 2 if quantised else 0}
    first = len(size) - 1
    if kind == 1 and not quantised:
        first = integer(draw, 0, len(size) - 1)
        norm_param["beginNormAxis"] = first if flag(draw) else first - len(size)
    x = floats(draw, size, dtype)
    weights = [floats(draw, size[first:], dtype) for _ in range(2)]
    inputs = [x]
    if kind != 1:
        inputs.append(floats(draw, size, dtype))
        if not quantised:
            norm_param["zoomScaleValue"] = one_of(draw, 1.0, 0.5, 3.0)
    inputs += weights
    if kind == 1 and quantised:
        norm_param["dynamicQuantType"] = integer(draw, 0, 2 if size[-1] > 1 else 0)
        if norm_param["dynamicQuantType"]:
            inputs[1:] = _spread(draw, size[-1], dtype)
            return {"layerType": kind, _STRUCTS[kind]: norm_param}, inputs
    if quantised:
        inputs += [floats(draw, [1], dtype, positive=True), integers(draw, [1], -20, 20, torch.int8)]
    return {"layerType": kind, _STRUCTS[kind]: norm_param}, inputs


@rule("CohereLayerNormOperation")
def cohere_layer_norm(draw: Draw) -> Drawn:
    """A weight for each of the last elements, or a row of them for each head."""
    size, dtype = shape(draw, 2, 3, 9), one_of(draw, *SHORT)
    weight = size[-integer(draw, 1, 2) :]
    return {"epsilon": _epsilon(draw)}, [floats(draw, size, dtype), floats(draw, weight, dtype)]


@rule("GatherPreRmsNormOperation")
def gather_pre_rms_norm(draw: Draw) -> Drawn:
    """Rows of the residual picked for each row of x."""
    rows, sources = integer(draw, 1, 6), integer(draw, 1, 6)
    width, dtype = integer(draw, 1, 16), one_of(draw, *SHORT)
    tensors = [floats(draw, [rows, width], dtype), floats(draw, [sources, width], dtype)]
    indices = integers(draw, [rows], 0, sources - 1, torch.int32)
    return {"epsilon": _epsilon(draw)}, [*tensors, indices, floats(draw, [width], dtype)]


@rule("RmsNormBackwardOperation")
def rms_norm_backward(draw: Draw) -> Drawn:
    """A gradient, with the reciprocal root mean square that the forward pass gave."""
    size, dtype = shape(draw, 2, 3, 9), one_of(draw, *FLOATS)
    x = floats(draw, size, dtype)
    rstd = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-3).float()
    return {}, [floats(draw, size, dtype), x, rstd, floats(draw, size[-1:], dtype)]


@rule("SoftmaxOperation")
def softmax(draw: Draw) -> Drawn:
    """One axis, or several neighbouring ones, counted from either end."""
    size = shape(draw)
    first = integer(draw, 0, len(size) - 1)
    last = integer(draw, first, len(size) - 1)
    back = len(size) if flag(draw) else 0
    axes = [axis - back for axis in range(first, last + 1)]
    return {"axes": axes}, [floats(draw, size, one_of(draw, *FLOATS))]


def _views(draw: Draw, size: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Elements of which a view of the same shape is taken: transposed, from an offset on, or as they are."""
    steps: list[int] = []
    count = 1
    for n in reversed(size):
        steps.insert(0, count)
        count *= n
    steps[0] = integer(draw, 0, steps[0])
    return [
        floats(draw, size, dtype),
        torch.tensor(steps, dtype=torch.int64),
        torch.tensor([0], dtype=torch.int64),
    ]


@rule("RmsNormWithStrideOperation")
def rms_norm_with_stride(draw: Draw) -> Drawn:
    """Plain norms of views whose rows overlap or repeat."""
    size, dtype = shape(draw, 2, 3, 9), one_of(draw, *SHORT)
    x, strides, offset = _views(draw, size, dtype)
    param = {"layerType": 1, "normParam": {"epsilon": _epsilon(draw)}}
    return param, [x, floats(draw, size[-1:], dtype), strides, offset]


@rule("LayerNormWithStrideOperation")
def layer_norm_with_stride(draw: Draw) -> Drawn:
    """Plain norms of views whose rows overlap or repeat."""
    size, dtype = shape(draw, 2, 3, 9), one_of(draw, *SHORT)
    x, strides, offset = _views(draw, size, dtype)
    param = {"layerType": 1, "normParam": {"epsilon": _epsilon(draw), "beginNormAxis": -1}}
    weights = [floats(draw, size[-1:], dtype) for _ in range(2)]
    return param, [x, *weights, strides, offset]


@rule("FastSoftMaxOperation")
def fast_softmax(draw: Draw) -> Drawn:
    """Packed squares of scores."""
    heads, lengths = integer(draw, 1, 3), numbers(draw, 1, 3, 1, 5)
    size = heads * sum(n * n for n in lengths)
    return {"headNum": heads, "qSeqLen": lengths}, [floats(draw, [size], torch.float16)]


@rule("FastSoftMaxGradOperation")
def fast_softmax_grad(draw: Draw) -> Drawn:
    """Packed squares of weights and of their gradients."""
    param, (x,) = fast_softmax(draw)
    assert x is not None
    return param, [floats(draw, x.shape, torch.float16).sigmoid(), floats(draw, x.shape, torch.float16)]


# Shape rules of the operators that norm, rotate and cache a key at once.


def _slots(draw: Draw, tokens: int, rows: int) -> torch.Tensor:
    """Different slots, one of them perhaps skipped."""
    slots = distinct(draw, tokens, rows)
    if flag(draw):
        slots[integer(draw, 0, tokens - 1)] = -1
    return slots


@rule("NormRopeReshapeOperation")
def norm_rope_reshape(draw: Draw) -> Drawn:
    """Some heads of a latent and one rotated part, side by side in a slot."""
    tokens, heads = integer(draw, 1, 4), integer(draw, 1, 2)
    size, rope = integer(draw, 1, 9), 2 * integer(draw, 1, 4)
    dtype, block, blocks = one_of(draw, *SHORT), integer(draw, 1, 3), integer(draw, 4, 5)
    angles = floats(draw, [tokens, rope], torch.float32)
    cache = floats(draw, [blocks, block, 1, heads * size + rope], dtype)
    inputs = [floats(draw, [tokens, heads, size], dtype), floats(draw, [size], dtype)]
    inputs += [floats(draw, [tokens, rope], dtype), angles.cos().to(dtype), angles.sin().to(dtype)]
    param = {"epsilon": one_of(draw, 1e-5, 1e-6, 1e-2), "rotaryCoeff": 2}
    return param, [*inputs, _slots(draw, tokens, blocks * block), cache]


@rule("MlaPreprocessOperation")
def mla_preprocess(draw: Draw) -> Drawn:
    """All caches, quantised by tensor or by token, weights plain or in tiles."""
    mode, by_token, tiled = integer(draw, 0, 3), flag(draw), flag(draw)
    tokens, hidden = integer(draw, 1, 3), integer(draw, 1, 40)
    rank, heads = integer(draw, 1, 20), integer(draw, 1, 2)
    nope, latent, rope, dtype = 16, 32, 16, one_of(draw, *SHORT)
    first, second = latent + rope + rank, heads * (nope + rope)
    inputs: list[torch.Tensor] = [floats(draw, [tokens, hidden], dtype)]
    for width, columns in ((hidden, first), (rank, second)):
        inputs += [floats(draw, [width], dtype), floats(draw, [width], dtype)]
        inputs += [floats(draw, [1], dtype, positive=True) / 8, integers(draw, [1], -20, 20, torch.int8)]
        weight = integers(draw, [columns, width], -20, 20, torch.int8)
        scale = uniform(draw, [columns], 0.0001, 0.002)
        if dtype == torch.float16 and not by_token:
            scale = scale.view(torch.int32).to(torch.int64)
        inputs += [nd_to_nz(weight[None], 32) if tiled else weight, scale]
        inputs.append(integers(draw, [1, columns], -50, 50, torch.int32))
    angles = floats(draw, [tokens, rope], torch.float32)
    inputs += [floats(draw, [latent], dtype), angles.cos().to(dtype), angles.sin().to(dtype)]
    wuk = floats(draw, [heads, nope, latent], dtype)
    inputs.append(nd_to_nz(wuk) if tiled else wuk)
    block, blocks = 16, 2
    if mode == 0:
        caches = [floats(draw, [blocks, block, 1, latent + rope], dtype), torch.empty(0, dtype=dtype)]
    elif mode == 1:
        caches = [floats(draw, [blocks, block, 1, width], dtype) for width in (latent, rope)]
    else:
        cache = integers(draw, [blocks, latent // 32, block, 32], -20, 20, torch.int8)
        plain = floats(draw, [blocks, latent // 16, block, 16], dtype)
        caches = [cache if mode == 2 else plain, floats(draw, [blocks, rope // 16, block, 16], dtype)]
    inputs += [*caches, _slots(draw, tokens, blocks * block)]
    inputs += [floats(draw, [1], dtype, positive=True) / 8, floats(draw, [1, heads, 1], dtype, positive=True)]
    return {"cacheMode": mode, "quantMode": int(by_token)}, inputs
