"""Keys and values moved row by row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from acc_pytest.base.older_torch import rms_norm

from .attention import attention_of, eight_bit, turned_heads
from .expected import TINY, Expected, U, same, written
from .table import Inputs, Param, oracle


@oracle("KvCacheOperation")
def kv_cache(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each new row at its position."""
    cache, layer, row = t["cache"].clone(), int(t["layerId"]), 0
    for b, (end, count) in enumerate(zip(t["tokenOffset"].tolist(), t["seqLen"].tolist())):
        for position in range(end - count, end):
            if cache.ndim == 4:
                cache[layer, b, position] = t["newKv"][row]
            for column, value in enumerate(t["newKv"][row] if cache.ndim == 5 else ()):
                cache[layer, b, column // 16, position, column % 16] = value
            row += 1
    return [same(cache)]


@oracle("ReshapeAndCacheOperation")
def reshape_and_cache(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each token into its slot."""
    if p["compressType"]:
        return [_by_head(t, "key"), _by_head(t, "value")]
    results = []
    for name in ("key", "value")[: 1 if p["kvCacheCfg"] == 1 else 2]:
        cache = t[f"{name}Cache"].clone()
        tiled = p["kvCacheCfg"] == 2
        block = cache.shape[2 if tiled else 1]
        for row, slot in zip(t[name], t["slots"].tolist()):
            if slot >= 0 and not tiled:
                cache[slot // block, slot % block] = row
            for column, value in enumerate(row.flatten() if slot >= 0 and tiled else ()):
                group = cache.shape[-1]
                cache[slot // block, column // group, slot % block, column % group] = value
        results.append(same(cache))
    return results


def _by_head(t: Inputs, name: str) -> Expected:
    """Entry by entry: the last tokens of a head, or all but a window, from its slot on."""
    new, cache = t[name], t[f"{name}Cache"].clone()
    rows, heads = cache.view(-1, cache.shape[-1]), new.shape[1]
    lengths, wins, slots = (t[n].tolist() for n in ("seqLen", "wins", "slots"))
    for i, (win, slot) in enumerate(zip(wins, slots)):
        b, head = divmod(i, heads)
        tokens = range(sum(lengths[:b]), sum(lengths[: b + 1]))
        for j, token in enumerate(tokens):
            if "offsetIndex" in t:
                start = int(t["offsetIndex"][i])
                keep = start == -1 or j < start or j >= start + win
            else:
                keep = j >= len(tokens) - win
            if keep and slot >= 0:
                rows[slot] = new[token, head]
                slot += 1
    return same(cache)


@oracle("ReshapeAndCacheOmniOperation")
def reshape_and_cache_omni(p: Param, t: Inputs) -> Sequence[Expected]:
    """All tokens but those of a window."""
    return [_by_head(t, "key"), _by_head(t, "value")]


@oracle("ReshapeAndCacheWithStrideOperation")
def reshape_and_cache_with_stride(p: Param, t: Inputs) -> Sequence[Expected]:
    """Element by element by strides, then as without."""
    views = dict(t)
    for name, letter in (("key", "k"), ("value", "v")):
        if name in t:
            steps, start = t[f"{letter}Stride"].tolist(), int(t[f"{letter}Offset"])
            flat = t[name].flatten()
            view = torch.empty_like(t[name])
            for place in itertools.product(*(range(n) for n in view.shape)):
                view[place] = flat[start + sum(i * step for i, step in zip(place, steps))]
            views[name] = view
    return reshape_and_cache(p, views)


@oracle("BlockCopyOperation")
def block_copy(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each block over its targets."""
    results = []
    for name in ("keyCache", "valueCache"):
        cache, start = t[name].clone(), 0
        for source, end in zip(t["srcBlocks"].tolist(), t["cumSum"].tolist()):
            for target in t["dstBlocks"].tolist()[start:end]:
                cache[target] = t[name][source]
            start = end
        results.append(same(cache))
    return results


@oracle("PagedCacheLoadOperation")
def paged_cache_load(p: Param, t: Inputs) -> Sequence[Expected]:
    """Rows of each request, one list."""
    counts = t["contextLens"].tolist()
    if p["isSeqLensCumsumMode"]:
        counts = [after - before for before, after in itertools.pairwise(counts)]
    starts = t["seqStarts"].tolist() if "seqStarts" in t else [0] * len(counts)
    results = []
    for name in ("key", "value"):
        cache, out = t[f"{name}Cache"], t[name].clone()
        if p["kvCacheCfg"] == 0:
            cache = torch.cat(cache.unbind(1), -1)
        block = cache.shape[1]
        places = [
            (int(table[first // block + i // block]), i % block)
            for table, count, first in zip(t["blockTables"], counts, starts)
            for i in range(count)
        ]
        for row, (number, place) in zip(out, places):
            row.copy_(cache[number, place].reshape(row.shape))
        results.append(same(out))
    return results


# PagedAttentionOperation: keys and values looked up row by row, each head by itself in float64.


@oracle("PagedAttentionOperation")
def paged_attention(p: Param, t: Inputs) -> Sequence[Expected]:
    """Sequences that do not run have no row of the query: those of the others lie before, zeros behind."""
    heads, groups, query, whole = (
        p["headNum"],
        p["kvHeadNum"],
        t["query"],
        "kDescale" in t and p["quantType"] > 1,
    )
    contexts, split = t["contextLens"].tolist(), p["compressType"] > 0
    counts = t["qSeqLen"].tolist() if "qSeqLen" in t else [1] * (len(contexts) // (groups if split else 1))
    wide = query.double().reshape(sum(counts), heads, -1) * (p["qScale"] or 1.0)
    size = p["mlaVHeadSize"] or t["valueCache"].shape[-1]
    value, error = (torch.zeros(sum(counts), heads, size, dtype=torch.float64) for _ in range(2))
    running = t["batchRunStatus"].tolist() if "batchRunStatus" in t else [1] * len(counts)
    first = 0
    for b, count in enumerate(counts):
        if not running[b]:
            continue
        part = slice(first, first + count)
        first += count
        for head in range(heads):
            group = head // (heads // groups)
            table = b * groups + group if split else b
            if not contexts[table]:
                continue
            places = _places(t, p, table, contexts[table])
            k, k_off = _row(p, t, "key", places, 0 if split else group)
            v, v_off = (
                (k[:, :size], k_off[:, :size])
                if p["mlaVHeadSize"]
                else _row(p, t, "value", places, 0 if split else group)
            )
            q, bias = wide[part, head], _bias(p, t, b, head, part.start, count, contexts[table])
            if "logN" in t:
                q = q * t["logN"].double()[b]
            if "razorOffset" in t:
                rows = torch.tensor([float(t["razorOffset"][block, i]) for block, i in places])
                bias = bias + rows.double() * p["qkScale"]
            if whole:
                first_scale, last = (float(t[n][head].double()) for n in ("kDescale", "vDescale"))
                scores = q @ k.T * first_scale * p["qkScale"]
                step = float(t["pScale"][head].double()) if "pScale" in t else 127.0
                found = eight_bit(scores + bias, scores.abs(), v, step, last if "pScale" in t else last / 127)
            else:
                found = attention_of(q, k, v, bias, p["qkScale"])
                found = (found[0], found[1] + _of_scales(q, k_off, v_off, found, p["qkScale"]))
            value[part, head], error[part, head] = found[0], found[1]
    lead = query.shape[:-1]
    shape = (*lead, size) if query.ndim > 2 else (*lead, heads * size)
    dtype = query.dtype
    if not dtype.is_floating_point:
        dtype = torch.bfloat16 if p["outDataType"] == 27 else torch.float16
    return [Expected(value.reshape(shape), dtype, error.reshape(shape))]


def _places(t: Inputs, p: Param, table: int, length: int) -> list[tuple[int, int]]:
    block = t["keyCache"].shape[2 if p["inputLayout"] else 1]
    return [(int(t["blockTables"][table, i // block]), i % block) for i in range(length)]


def _row(
    p: Param, t: Inputs, name: str, places: list[tuple[int, int]], group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of one key head, scaled back where they are int8, and what that may lose."""
    cache = t[f"{name}Cache"]
    rows = [cache[block, group, i] if p["inputLayout"] else cache[block, i, group] for block, i in places]
    found = torch.stack(rows).double()
    if p["quantType"] != 1:
        return found, torch.zeros_like(found)
    width, letter = found.shape[-1], name[0]
    columns = slice(group * width, (group + 1) * width)
    scale = t[f"{letter}Descale"]
    scale = scale.to(torch.int32).view(torch.float32) if scale.dtype == torch.int64 else scale
    if f"{letter}Offset" in t:
        found = found + t[f"{letter}Offset"].double()[columns]
    found = found * scale.double()[columns]
    return found, U * found.abs()


def _of_scales(
    q: torch.Tensor,
    k_off: torch.Tensor,
    v_off: torch.Tensor,
    found: tuple[torch.Tensor, ...],
    scale: float,
) -> torch.Tensor:
    """What keys and values that are off add: each score moves, a value counts by at most its weight."""
    moved = (scale * (q.abs() @ k_off.T)).amax(-1, keepdim=True)
    largest = found[0].abs().amax(-1, keepdim=True) + v_off.amax() / U
    return torch.expm1(2 * moved) * largest + v_off.amax(0)


def _bias(p: Param, t: Inputs, b: int, head: int, first: int, n: int, m: int) -> torch.Tensor:
    kind, bias = p["maskType"], torch.zeros(n, m, dtype=torch.float64)
    if kind == 0:
        return bias
    if kind == 4:
        for i in range(n):
            bias[i, m - n + i + 1 :] = -60000.0
        return bias
    mask = t["mask"].double()
    if kind == 3:
        return mask[first : first + n, :m]
    if p["calcType"]:
        return mask[m - n : m, :m]
    if mask.ndim == 3:
        return mask[b, :, :m]
    groups, each = p["kvHeadNum"], p["headNum"] // p["kvHeadNum"]
    return mask[b * groups + head // each, head % each, :, :m] if p["compressType"] else mask[b, head, :, :m]


# Norm, rotation and cache in float64; what is rounded on the way may be rounded from either side.


_Found = tuple[torch.Tensor, torch.Tensor]


def _kept(cache: torch.Tensor, rows: _Found, slots: torch.Tensor) -> Expected:
    """Rows of the cache, plain or in tiles, replaced one by one; what stays is exact."""
    value, error = cache.double().clone(), torch.zeros(cache.shape, dtype=torch.float64)
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        for target, source in ((value, rows[0]), (error, rows[1])):
            if cache.shape[2] == 1:
                target[slot // cache.shape[1], slot % cache.shape[1], 0] = source[token]
            else:
                tiles = source[token].reshape(cache.shape[1], cache.shape[3])
                target[slot // cache.shape[2], :, slot % cache.shape[2]] = tiles
    return Expected(value, cache.dtype, error)


def _rms(x: torch.Tensor, lost: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> _Found:
    """The norm of rows that are off by `lost`: their root mean square is off by no more than the worst."""
    value = rms_norm(x, x.shape[-1:], gamma.double(), epsilon)
    root = (x.square().mean(-1, keepdim=True) + epsilon).sqrt()
    relative = lost.square().mean(-1, keepdim=True).sqrt() / root
    error = gamma.double().abs() * lost / root * (1 + 2 * relative) + value.abs() * 2 * relative
    return value, error + (x.shape[-1] + 8) * U * value.abs()


@oracle("NormRopeReshapeOperation")
def norm_rope_reshape(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each head's norm, and the rotated part behind all of them."""
    x = t["x"].double()
    value, error = (one.flatten(1) for one in _rms(x, torch.zeros_like(x), t["gamma"], p["epsilon"]))
    cos, sin = t["cos"].double(), t["sin"].double()
    rope, rope_error = (one.flatten(1) for one in turned_heads(t["keyRope"].double()[:, None], cos, sin, 2))
    rows = torch.cat((value, rope), -1), torch.cat((error, rope_error), -1)
    return [_kept(t["keyCache"], rows, t["slotMapping"])]


def _plain(weight: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """A matrix, or that of its tiles; `[heads, rows, columns]` where the first dimension is no 1."""
    if weight.shape[-2:] == (rows, columns):
        return weight.double()
    side = torch.cat([weight[:, i] for i in range(weight.shape[1])], -1)[:, :rows, :columns].double()
    return side[0] if side.shape[0] == 1 and weight.dtype == torch.int8 else side


def _linear(p: Param, t: Inputs, number: int, x: torch.Tensor, lost: torch.Tensor) -> _Found:
    """Norm, quantisation, product with the int8 weight, scales; what the kernel then writes."""
    value, error = _rms(x, lost, t[f"gamma{number}"], 1e-6)
    value = value + t[f"beta{number}"].double()
    error = error + U * value.abs()
    scale = t[f"deScale{number}"]
    scale = (scale.to(torch.int32).view(torch.float32) if scale.dtype == torch.int64 else scale).double()
    weight = _plain(t[("wdqkv", "wuq")[number]], scale.numel(), x.shape[-1])
    if p["quantMode"]:
        value, error = written(value, error, torch.float16)
        step = value.abs().amax(-1, keepdim=True) / 127
        step_off = error.amax(-1, keepdim=True) / 127
        safe = torch.where(step > 0, step, 1.0)
        small, off = written(
            value / safe, error / safe + (value / safe).abs() * (step_off / safe + 3 * U), torch.int8
        )
        bias, loose = torch.zeros(()), step_off / safe + 5 * U
    else:
        divisor, shift = t[f"quantScale{number}"].double(), t[f"quantOffset{number}"].double()
        exact = value / divisor + shift
        small, off = written(
            exact, error / divisor + 2 * U * (value / divisor).abs() + U * exact.abs(), torch.int8
        )
        bias, step, loose = t[f"bias{number}"].double(), torch.ones(()), torch.tensor(4 * U)
    product = (small @ weight.T + bias) * scale * step
    far = off @ weight.abs().T * scale * step * (1 + loose) + loose * product.abs()
    return written(product, far, t["input"].dtype)


@oracle("MlaPreprocessOperation")
def mla_preprocess(p: Param, t: Inputs) -> Sequence[Expected]:
    """Stage by stage; each takes what the one before has written, and how far that may be off."""
    dtype, latent, rope = t["input"].dtype, t["gamma2"].numel(), t["cos"].shape[-1]
    x = t["input"].double()
    down, down_off = _linear(p, t, 0, x, torch.zeros_like(x))
    sizes = [latent, rope, down.shape[-1] - latent - rope]
    (key, turn, query), (key_off, turn_off, query_off) = (
        torch.split(one, sizes, -1) for one in (down, down_off)
    )
    up, up_off = (one.reshape(len(x), len(t["wuk"]), -1) for one in _linear(p, t, 1, query, query_off))
    nope = up.shape[-1] - rope
    wuk = _plain(t["wuk"], nope, latent)
    inner = torch.einsum("nhd,hdl->nhl", up[..., :nope], wuk)
    inner_off = torch.einsum("nhd,hdl->nhl", up_off[..., :nope] + nope * U * up[..., :nope].abs(), wuk.abs())
    cos, sin = t["cos"].double(), t["sin"].double()

    def rotated(heads: torch.Tensor, lost: torch.Tensor) -> _Found:
        value, error = turned_heads(heads, cos, sin, 2)
        half = rope // 2
        other = torch.cat((lost[..., half:], lost[..., :half]), -1)
        return value, error + lost * cos[:, None].abs() + other * sin[:, None].abs()

    outer, outer_off = rotated(up[..., nope:], up_off[..., nope:])
    key, key_off = _rms(key, key_off, t["gamma2"], 1e-6)
    key, key_off = written(key, key_off, dtype)
    turn, turn_off = (one[:, 0] for one in rotated(turn[:, None], turn_off[:, None]))
    slots = t["slotMapping"]
    if p["cacheMode"] == 0:
        rows = torch.cat((key, turn), -1), torch.cat((key_off, turn_off), -1)
        both = torch.cat((inner, outer), -1), torch.cat((inner_off, outer_off), -1)
        return [Expected(both[0], dtype, both[1] + TINY), _kept(t["kvCache"], rows, slots)]
    first = Expected(inner, dtype, inner_off + TINY)
    if p["cacheMode"] == 2:
        value, off = written(inner, inner_off, dtype)
        scale, divisor = t["qNopeScale"].double().reshape(1, -1, 1), t["ctkvScale"].double()
        first = Expected(value * scale, torch.int8, off * scale + 2 * U * (value * scale).abs())
        key, key_off = key / divisor, key_off / divisor + 2 * U * (key / divisor).abs()
    return [
        first,
        _kept(t["kvCache"], (key, key_off), slots),
        Expected(outer, dtype, outer_off + TINY),
        _kept(t["kvCacheRope"], (turn, turn_off), slots),
    ]
