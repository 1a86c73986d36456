"""Norm, rotation and cache in float64; what is rounded on the way may be rounded from either side."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from acc_pytest.base.older_torch import rms_norm

from .attention import turned_heads
from .expected import TINY, Expected, U, written
from .table import Inputs, Param, oracle

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
