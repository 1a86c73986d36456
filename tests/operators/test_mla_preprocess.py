from __future__ import annotations

import pytest
import torch

from acc_pytest.base.older_torch import rms_norm
from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute, operator_of
from acc_pytest.operators.layout import nd_to_nz, nz_to_nd

MLA = "MlaPreprocessOperation"
TOKENS, HIDDEN, LATENT, ROPE, RANK, HEADS, NOPE = 3, 64, 32, 16, 48, 2, 24


def packed(scale: torch.Tensor) -> torch.Tensor:
    """float32 in the low half of int64."""
    return scale.view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def operands(mode: int = 0) -> dict[str, torch.Tensor]:
    def whole(low: int, high: int, *size: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
        return torch.randint(low, high, size).to(dtype)

    first, second = LATENT + ROPE + RANK, HEADS * (NOPE + ROPE)
    caches = {
        0: [torch.randn(4, 16, 1, LATENT + ROPE).half(), torch.empty(0).half()],
        1: [torch.randn(4, 16, 1, LATENT).half(), torch.randn(4, 16, 1, ROPE).half()],
        2: [whole(-9, 9, 4, LATENT // 32, 16, 32), torch.randn(4, ROPE // 16, 16, 16).half()],
        3: [torch.randn(4, LATENT // 16, 16, 16).half(), torch.randn(4, ROPE // 16, 16, 16).half()],
    }[mode]
    return {
        "input": torch.randn(TOKENS, HIDDEN).half(),
        "gamma0": torch.randn(HIDDEN).half(),
        "beta0": torch.randn(HIDDEN).half(),
        "quantScale0": torch.tensor([0.05]).half(),
        "quantOffset0": torch.tensor([3], dtype=torch.int8),
        "wdqkv": whole(-3, 4, first, HIDDEN),
        "deScale0": packed(torch.rand(first) / 1000),
        "bias0": whole(-10, 10, 1, first, dtype=torch.int32),
        "gamma1": torch.randn(RANK).half(),
        "beta1": torch.randn(RANK).half(),
        "quantScale1": torch.tensor([0.04]).half(),
        "quantOffset1": torch.tensor([-7], dtype=torch.int8),
        "wuq": whole(-3, 4, second, RANK),
        "deScale1": packed(torch.rand(second) / 1000),
        "bias1": whole(-10, 10, 1, second, dtype=torch.int32),
        "gamma2": torch.randn(LATENT).half(),
        "cos": torch.randn(TOKENS, ROPE).half(),
        "sin": torch.randn(TOKENS, ROPE).half(),
        "wuk": torch.randn(HEADS, NOPE, LATENT).half(),
        "kvCache": caches[0],
        "kvCacheRope": caches[1],
        "slotMapping": torch.tensor([33, -1, 5], dtype=torch.int32),
        "ctkvScale": torch.tensor([0.03]).half(),
        "qNopeScale": torch.rand(1, HEADS, 1).half() * 50,
    }


def rms(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, x.shape[-1:], gamma.double(), 1e-6)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = ROPE // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos.double() + swapped * sin.double()


def pieces(t: dict[str, torch.Tensor], by_token: bool = False) -> tuple[torch.Tensor, ...]:
    """Query in the latent space, its rotated part, the key and its rotated part, in float64."""

    def linear(x: torch.Tensor, number: int, weight: torch.Tensor) -> torch.Tensor:
        scale = (t[f"deScale{number}"].to(torch.int32)).view(torch.float32).double()
        value = rms(x, t[f"gamma{number}"]) + t[f"beta{number}"].double()
        if by_token:
            value = value.half().double()
            step = value.abs().amax(-1, keepdim=True) / 127
            return (value / step).round() @ weight.double().T * scale * step
        value = value / t[f"quantScale{number}"].double() + t[f"quantOffset{number}"].double()
        product = value.round().clamp(-128, 127) @ weight.double().T
        return (product + t[f"bias{number}"].double()) * scale

    down = linear(t["input"].double(), 0, t["wdqkv"]).half().double()
    key, rope, query = down.split([LATENT, ROPE, RANK], -1)
    up = linear(query, 1, t["wuq"]).half().double().reshape(TOKENS, HEADS, -1)
    inner = torch.stack([up[:, h, :NOPE] @ t["wuk"][h].double() for h in range(HEADS)], 1)
    outer = turned(up[..., NOPE:], t["cos"][:, None], t["sin"][:, None])
    return inner, outer, rms(key, t["gamma2"]).half().double(), turned(rope, t["cos"], t["sin"])


def close(mine: torch.Tensor, expected: torch.Tensor) -> None:
    """Within the steps of float16 that products of rounded values can be off."""
    torch.testing.assert_close(mine.double(), expected, rtol=2.0**-8, atol=2.0**-8)


def kept(cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    result = cache.double().clone()
    for row, (block, place) in ((0, (2, 1)), (2, (0, 5))):
        result[block, place, 0] = rows[row]
    return result


@pytest.mark.parametrize("by_token", [False, True])
def test_one_cache_holds_latent_and_rope_side_by_side(by_token: bool) -> None:
    t = operands()
    names = [name for name in t if name not in ("ctkvScale", "qNopeScale")]
    query, cache = compute(MLA, {"quantMode": int(by_token)}, [t[name] for name in names])
    inner, outer, key, rope = pieces(t, by_token)
    close(query, torch.cat((inner, outer), -1))
    close(cache, kept(t["kvCache"], torch.cat((key, rope), -1)))
    # an earlier release has no operand for a second cache
    older = compute(MLA, {}, [t[name] for name in names if name != "kvCacheRope"])
    assert len(older) == 2


@pytest.mark.parametrize("nz", [False, True])
def test_caches_apart_plain_and_in_tiles(nz: bool) -> None:
    t = operands(3 if nz else 1)
    inner, outer, key, rope = pieces(t)
    given = dict(t)
    if nz:
        given["wdqkv"], given["wuq"] = (nd_to_nz(t[n][None], 32) for n in ("wdqkv", "wuq"))
        given["wuk"] = nd_to_nz(t["wuk"], 16)
    param = {"cacheMode": 3 if nz else 1}
    results = compute(MLA, param, list(given.values()))
    caches = [results[1], results[3]]
    before = [t["kvCache"], t["kvCacheRope"]]
    if nz:
        caches, before = ([nz_to_nd(one)[:, :, None] for one in pair] for pair in (caches, before))
    close(results[0], inner)
    close(results[2], outer)
    close(caches[0], kept(before[0], key))
    close(caches[1], kept(before[1], rope))
    assert operator_of(MLA, param).aliases == ((1, 19), (3, 20))


def test_latent_parts_in_int8() -> None:
    t = operands(2)
    inner, outer, key, rope = pieces(t)
    query, cache, query_rope, cache_rope = compute(MLA, {"cacheMode": 2}, list(t.values()))
    assert query.dtype == cache.dtype == torch.int8
    small = (inner.half().double() * t["qNopeScale"].double()).round().clamp(-128, 127)
    assert (query.double() - small).abs().max() <= 1
    stored = nz_to_nd(cache)[:, :, None].double()
    expected = kept(
        nz_to_nd(t["kvCache"])[:, :, None], (key / t["ctkvScale"].double()).round().clamp(-128, 127)
    )
    assert (stored - expected).abs().max() <= 1
    close(query_rope, outer)
    close(nz_to_nd(cache_rope)[:, :, None], kept(nz_to_nd(t["kvCacheRope"])[:, :, None], rope))


def test_what_the_kernel_has_not_is_refused() -> None:
    t = operands()
    with pytest.raises(OperatorError, match="ATB itself refuses quantMode 2 and 3"):
        compute(MLA, {"quantMode": 3}, list(t.values()))
    with pytest.raises(OperatorError, match=r"wdqkv .3, 64. is not .96, 64. or its NZ"):
        compute(MLA, {}, [*list(t.values())[:5], t["wdqkv"][:3], *list(t.values())[6:]])
    with pytest.raises(OperatorError, match="cacheMode 1 needs kvCacheRope"):
        compute(MLA, {"cacheMode": 1}, list(t.values()))
