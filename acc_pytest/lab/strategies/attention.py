"""Shape rules of rotary embedding and of joining partial attention."""

from __future__ import annotations

from typing import Any

import torch

from .values import (
    FLOATS,
    LARGE,
    SHORT,
    Draw,
    Drawn,
    block_tables,
    counts,
    flag,
    floats,
    head_counts,
    integer,
    integers,
    numbers,
    one_of,
    rule,
    uniform,
)


@rule("RopeOperation")
def rope(draw: Draw) -> Drawn:
    """Heads of query and key, side by side or apart, rotated by halves, by quarters or by pairs."""
    size = 4 * integer(draw, 1, 4)
    batch, length = integer(draw, 1, 3), integer(draw, 1, 4)
    dtype, form = one_of(draw, *FLOATS), one_of(draw, "beside", "apart", "batch")
    table = torch.float32 if flag(draw) else dtype
    angles = floats(draw, [batch * length, size], torch.float32)
    vectors = []
    for _ in range(2):
        heads = integer(draw, 1, 3)
        vector = floats(draw, [batch * length, heads * size], dtype)
        shapes = {"apart": [batch * length, heads, size], "batch": [batch, length, heads, size]}
        vectors.append(vector.reshape(shapes.get(form, [batch * length, heads * size])))
    param = {"rotaryCoeff": one_of(draw, 2, 4, size)}
    return param, [*vectors, angles.cos().to(table), angles.sin().to(table), counts([length] * batch)]


@rule("RopeGradOperation")
def rope_grad(draw: Draw) -> Drawn:
    """Gradients of packed sequences, each from the first row of the tables on."""
    lengths, size = numbers(draw, 1, 3, 0, 5), 2 * integer(draw, 1, 8)
    angles = floats(draw, [max(lengths) + integer(draw, 1, 2), size], torch.float32)
    gradients = [floats(draw, [sum(lengths), integer(draw, 1, 3) * size], torch.float16) for _ in range(2)]
    return {"c_qSeqLen": lengths}, [*gradients, angles.cos().half(), angles.sin().half()]


@rule("RopeQConcatOperation")
def rope_q_concat(draw: Draw) -> Drawn:
    """Rotated heads with what is put behind them."""
    size, dtype = 2 * integer(draw, 1, 8), one_of(draw, *SHORT)
    tokens, heads, width = integer(draw, 1, 6), integer(draw, 1, 3), integer(draw, 1, 8)
    angles = floats(draw, [tokens, size], torch.float32)
    query, tail = floats(draw, [tokens, heads * size], dtype), floats(draw, [tokens, heads, width], dtype)
    return {}, [query, angles.cos().to(dtype), angles.sin().to(dtype), tail]


@rule("DynamicNTKOperation")
def dynamic_ntk(draw: Draw) -> Drawn:
    """Positions of some sequences, frequencies for each."""
    lengths, half = numbers(draw, 1, 3, 1, 5), integer(draw, 1, 8)
    positions = integers(draw, [sum(lengths)], 0, 50, torch.int32)
    frequencies = floats(draw, [len(lengths), half], torch.float32)
    return {"outDataType": one_of(draw, 1, 27)}, [positions, frequencies, counts(lengths)]


@rule("FaUpdateOperation")
def fa_update(draw: Draw) -> Drawn:
    """Partial results of some ranks with the logarithms of their sums."""
    ranks, rows, size = integer(draw, 1, 4), integer(draw, 1, 6), integer(draw, 1, 8)
    sums = floats(draw, [ranks, rows], torch.float32)
    return {"sp": ranks}, [sums, floats(draw, [ranks, rows, size], torch.float32)]


# Shape rules of SelfAttentionOperation: packed, over caches, over blocks, by batch, and in int8.


_KINDS = {
    "none": 0, "norm": 1, "norm by sequence": 1, "indicator": 1, "alibi": 2, "alibi by sequence": 2,
    "compress": 3, "slopes": 4, "slopes, square root": 5, "slopes, left": 6, "window": 7,
    "window compress": 8, "causal": 9,
}  # fmt: skip
"""Masks of packed sequences and their `maskType`."""


@rule("SelfAttentionOperation")
def self_attention(draw: Draw) -> Drawn:
    """Every `calcType`, `kvcacheCfg`, `inputLayout` and `maskType`."""
    return one_of(draw, _packed, _flash, _decoding, _prefix, _by_batch, _eight_bit)(draw)


def _param(draw: Draw, heads: int, groups: int, **more: Any) -> dict[str, Any]:
    return {"headNum": heads, "kvHeadNum": groups, "qkScale": one_of(draw, 1.0, 0.5, 0.125), **more}


def _lengths(draw: Draw) -> list[int]:
    """Sequences, some of them perhaps empty."""
    lengths = numbers(draw, 1, 3, 0, 6)
    return lengths if any(lengths) else [1]


def _hidden(size: int, window: int = 0) -> torch.Tensor:
    mask = torch.full((size, size), LARGE).triu(1)
    return mask + torch.full((size, size), LARGE).tril(-window) if window else mask


def _mask(
    draw: Draw, name: str, param: dict[str, Any], longest: int, batch: int, dtype: torch.dtype
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The mask's operand and, behind the lengths, its slopes."""
    heads, hidden = param["headNum"], _hidden(longest)
    if name in ("none", "causal"):
        return [], []
    if name.startswith("slopes"):
        sign = 1 if name.endswith("left") else -1
        return [torch.zeros(4, 4, dtype=dtype)], [sign * torch.exp2(-torch.arange(heads).float())]
    if name.startswith("alibi"):
        place, slopes = torch.arange(longest).float(), torch.exp2(-torch.arange(heads).float())
        biases = (slopes[:, None, None] * -(place[:, None] - place).abs() + hidden).to(dtype)
        return [biases.expand(batch, -1, -1, -1).contiguous() if name.endswith("sequence") else biases], []
    if name.startswith("window"):
        param["windowSize"] = integer(draw, 1, 4)
        plane = _hidden(4) if name.endswith("compress") else _hidden(longest, param["windowSize"])
        return [plane.to(dtype)], []
    plane = {"indicator": (hidden < 0).float(), "compress": _hidden(one_of(draw, 2, 4, 8))}.get(name, hidden)
    plane = plane.to(dtype)
    return [plane.expand(batch, longest, longest).contiguous() if name.endswith("sequence") else plane], []


def _packed(draw: Draw) -> Drawn:
    """Queries and keys of all sequences behind each other."""
    lengths, (heads, groups, size), name = _lengths(draw), head_counts(draw), one_of(draw, *_KINDS)
    dtype, wide = one_of(draw, *SHORT), integer(draw, 1, 12)
    param = _param(draw, heads, groups, calcType=3, maskType=_KINDS[name], kernelType=integer(draw, 0, 1))
    apart = name in ("none", "causal") and flag(draw)
    totals = [n + integer(draw, 0, 4) for n in lengths] if apart else lengths
    spread, inside = flag(draw), flag(draw)
    if inside:
        param["mlaVHeadSize"] = wide = integer(draw, 1, size)
    sizes = [(sum(lengths), heads, size), (sum(totals), groups, size), (sum(totals), groups, wide)]
    shapes = [[n, h, width] if spread else [n, h * width] for n, h, width in sizes]
    inputs = [floats(draw, tensor_shape, dtype) for tensor_shape in shapes[: 2 if inside else 3]]
    mask, slopes = _mask(draw, name, param, max(lengths), len(lengths), dtype)
    count = torch.stack((counts(lengths), counts(totals))) if apart else counts(lengths)
    log_n = []
    if flag(draw):
        param["scaleType"] = 1
        log_n = [uniform(draw, [max(lengths)], 1.0, 2.0)]
    return param, [*inputs, *mask, count, *slopes, *log_n]


def _cached(draw: Draw, new: list[int], **more: Any) -> tuple[dict[str, Any], list[torch.Tensor], list[int]]:
    """Parameters, query, new rows and caches of layers, and how long each sequence is then."""
    (heads, groups, size), wide = head_counts(draw), integer(draw, 1, 12)
    param = _param(draw, heads, groups, qScale=one_of(draw, 1.0, 0.5, 2.0), **more)
    dtype, layers = one_of(draw, *SHORT), integer(draw, 1, 2)
    ends = [max(n + integer(draw, 0, 4), 1) for n in new]
    positions = max(ends) + integer(draw, 0, 2)
    query = floats(draw, [sum(new), heads * size], dtype)
    rows = [floats(draw, [sum(new), groups * width], dtype) for width in (size, wide)]
    caches = [floats(draw, [layers, len(new), positions, groups * width], dtype) for width in (size, wide)]
    if flag(draw):
        param["clampType"], param["clampMin"], param["clampMax"] = 1, -1.0, 0.5
    bypass = flag(draw)
    if bypass:
        param["kvcacheCfg"] = 1
    return param, [query, *([] if bypass else rows), *caches], ends


def _flash(draw: Draw) -> Drawn:
    """Several new tokens behind what a cache holds; all of it is seen, or what is not ahead."""
    new = _lengths(draw)
    param, inputs, ends = _cached(draw, new, calcType=integer(draw, 0, 1))
    positions, dtype = inputs[-1].shape[2], inputs[0].dtype
    mask = []
    if flag(draw):
        param["maskType"] = 1
        mask = [_hidden(positions).to(dtype)]
    return param, [*inputs, *mask, *_tail(draw, param, ends, new, max(new))]


def _decoding(draw: Draw) -> Drawn:
    """One new token of each sequence: masks by sequence, windows, and caches that go round."""
    new = [1] * integer(draw, 1, 3)
    param, inputs, ends = _cached(draw, new, calcType=2)
    name, dtype = one_of(draw, "none", "norm", "window"), inputs[0].dtype
    mask = []
    if name == "norm":
        param["maskType"] = 1
        values = integers(draw, [len(new), 1, max(ends)], 0, 1, torch.int8).to(dtype) * LARGE
        values[..., 0] = 0
        mask = [values]
    if name == "window":
        param["maskType"], param["windowSize"] = 7, integer(draw, 1, 4)
        param["cacheType"] = int("kvcacheCfg" in param and flag(draw))
    return param, [*inputs, *mask, *_tail(draw, param, ends, new, len(new))]


def _tail(
    draw: Draw, param: dict[str, Any], ends: list[int], new: list[int], factors: int
) -> list[torch.Tensor]:
    """Lengths, the layer, which sequences run, factors of the scores."""
    last = [counts(ends), counts(new), counts([0])]
    if flag(draw):
        param["batchRunStatusEnable"] = True
        last.append(counts([integer(draw, 0, 1) for _ in new]))
    if flag(draw):
        param["scaleType"] = 1
        last.append(uniform(draw, [factors], 1.0, 2.0))
    return last


def _prefix(draw: Draw) -> Drawn:
    """Packed queries behind a prefix, keys and values in blocks."""
    lengths, (heads, groups, size), dtype = _lengths(draw), head_counts(draw), one_of(draw, *SHORT)
    name = one_of(draw, "none", "norm", "causal", "slopes", "slopes, square root", "slopes, left")
    totals = [max(n + integer(draw, 0, 5), 1) for n in lengths]
    block = one_of(draw, 2, 4)
    tables, blocks = block_tables(draw, totals, block)
    query = floats(draw, [sum(lengths), heads * size], dtype)
    caches = [floats(draw, [blocks, block, groups, size], dtype) for _ in range(2)]
    param = _param(draw, heads, groups, calcType=4, maskType=_KINDS[name])
    mask, slopes = _mask(draw, name, param, max(totals), len(lengths), dtype)
    return param, [query, *caches, tables, *mask, counts(lengths), counts(totals), *slopes]


def _by_batch(draw: Draw) -> Drawn:
    """Heads before tokens, sequences in planes of their own."""
    lengths, (heads, groups, size), dtype = _lengths(draw), head_counts(draw), one_of(draw, *SHORT)
    name, longest = one_of(draw, "none", "norm", "causal"), max(lengths) + integer(draw, 0, 2)
    wide = integer(draw, 1, 6)
    param = _param(draw, heads, groups, calcType=3, inputLayout=1, maskType=_KINDS[name])
    sizes = ((heads, size), (groups, size), (groups, wide))
    inputs = [floats(draw, [len(lengths), h, longest, width], dtype) for h, width in sizes]
    mask, _ = _mask(draw, name, param, longest, len(lengths), dtype)
    return param, [*inputs, *mask, counts(lengths)]


def _eight_bit(draw: Draw) -> Drawn:
    """int8 all through, weights quantised by their largest or by a given scale."""
    lengths, (heads, groups, _), offline = _lengths(draw), head_counts(draw), flag(draw)
    name, size = one_of(draw, "none", "norm", "causal"), 8 * integer(draw, 1, 2)
    param = _param(draw, heads, groups, calcType=3, maskType=_KINDS[name])
    param |= {"quantType": 2 if offline else 3, "outDataType": one_of(draw, 1, 27)}
    dtype = torch.bfloat16 if param["outDataType"] == 27 else torch.float16
    inputs = [integers(draw, [sum(lengths), n * size], -20, 20, torch.int8) for n in (heads, groups, groups)]
    mask, _ = _mask(draw, name, param, max(lengths), len(lengths), dtype)
    unused = [counts([0] * heads) if flag(draw) else None for _ in range(2)]
    scales = [uniform(draw, [heads], 0.001, 0.01) for _ in range(2)]
    last = [uniform(draw, [heads], 60.0, 127.0)] if offline else []
    return param, [*inputs, *mask, counts(lengths), scales[0], unused[0], scales[1], unused[1], *last]


# Shape rules of attention for training and of its gradient.


def _laid_out(heads: torch.Tensor, layout: str) -> torch.Tensor:
    return heads if layout == "BNSD" else heads.permute(2, 0, 1, 3).flatten(2).contiguous()


def _tensors(draw: Draw) -> tuple[dict[str, Any], torch.dtype, list[torch.Tensor], torch.Tensor | None]:
    """Query, key (perhaps wider), value `[b, heads, s, size]`; a mask that shows every row something."""
    layout, batch, length = one_of(draw, "BNSD", "SBH"), integer(draw, 1, 2), integer(draw, 1, 6)
    groups, share = integer(draw, 1, 2), 1 if layout == "SBH" else integer(draw, 1, 2)
    size, dtype = integer(draw, 1, 8), one_of(draw, torch.bfloat16, *SHORT)
    widths = (size, size + integer(draw, 0, 3), integer(draw, 1, 8))
    heads = (groups * share, groups, groups)
    tensors = [floats(draw, [batch, n, length, width], dtype) for n, width in zip(heads, widths)]
    param: dict[str, Any] = {
        "headNum": groups * share,
        "inputLayout": layout,
        "scaleValue": one_of(draw, 0.08838834764831843, 0.5, 0.25),
        "preTokens": one_of(draw, 2**31 - 1, 1, 2),
    }
    mask = torch.ones(length, length).triu(1).to(dtype) if flag(draw) else None
    return param, dtype, tensors, mask


@rule("LaserAttentionOperation")
def laser_attention(draw: Draw) -> Drawn:
    """Both layouts, grouped heads, all keys, causal, or the last ones."""
    param, _, tensors, mask = _tensors(draw)
    laid = [_laid_out(tensor, param["inputLayout"]) for tensor in tensors]
    return param, [*laid, *([None, None, None, mask] if mask is not None else [])]


@rule("LaserAttentionGradOperation")
def laser_attention_grad(draw: Draw) -> Drawn:
    """Gradients with what the forward pass left, here nearly exact."""
    param, dtype, tensors, mask = _tensors(draw)
    query, key, value = (tensor.double() for tensor in tensors)
    key, value = (tensor.repeat_interleave(param["headNum"] // tensor.shape[1], 1) for tensor in (key, value))
    scores = query @ key[..., : query.shape[-1]].transpose(-1, -2) * param["scaleValue"]
    if mask is not None:
        hidden = mask.double()
        if param["preTokens"] < len(hidden):
            place = torch.arange(len(hidden))
            hidden = hidden + (place[:, None] - place > param["preTokens"])
        scores = scores - 65536 * hidden
    highest = scores.amax(-1)
    total = (scores - highest[..., None]).exp().sum(-1)
    out = scores.softmax(-1) @ value
    grad = floats(draw, out.shape, dtype)
    layout = param["inputLayout"]
    laid = [_laid_out(tensor, layout) for tensor in (*tensors, grad)]
    rest = [None, None, None, mask, highest.float(), total.float(), None, _laid_out(out, layout).float()]
    return param, [*laid, *rest]


@rule("GenAttentionMaskOperation")
def gen_attention_mask(draw: Draw) -> Drawn:
    """Corners of masks, one after the other."""
    lengths, largest = numbers(draw, 1, 3, 0, 5), integer(draw, 5, 6)
    mask = floats(draw, [len(lengths), 1, largest, largest], torch.float16)
    return {"headNum": integer(draw, 1, 3), "seqLen": lengths}, [mask]
