"""PagedAttentionOperation: keys and values looked up row by row, each head by itself in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .attention import attention_of
from .expected import Expected, U
from .latent import eight_bit
from .table import Inputs, Param, oracle


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
