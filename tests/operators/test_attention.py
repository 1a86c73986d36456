from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute, scores
from acc_pytest.operators.layout import nd_to_nz

SELF = "SelfAttentionOperation"
EXACT: dict[str, Any] = {"accumulate": torch.float64, "round_outputs": False}
SCALE = 0.3
INF = float("inf")


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """torch's own attention of `[n, heads, size]`, grouped heads repeated."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, bias, scale=SCALE)[0].transpose(0, 1)


def qkv(n: int, heads: int, kv: int, size: int = 8, m: int = 0) -> list[torch.Tensor]:
    shapes = ((n, heads, size), (m or n, kv, size), (m or n, kv, size))
    return [torch.randn(s, dtype=torch.float64) for s in shapes]


def causal(size: int) -> torch.Tensor:
    return torch.full((size, size), -INF, dtype=torch.float64).triu(1)


def lengths(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_rounding_stays_within_one_step() -> None:
    q, k, v = (t.half() for t in qkv(16, 4, 2))
    param = {"calcType": 3, "headNum": 4, "kvHeadNum": 2, "qkScale": SCALE, "maskType": 1}
    (out,) = compute(SELF, param, [q, k, v, causal(16).half(), lengths(16)])
    assert out.dtype == torch.float16
    exact = sdpa(q.double(), k.double(), v.double(), causal(16))
    torch.testing.assert_close(out.double(), exact, rtol=2**-10, atol=2**-14)


def test_a_mask_in_nz_is_the_same_mask() -> None:
    q, k, v = qkv(32, 2, 2)
    param = {"calcType": 3, "headNum": 2, "qkScale": SCALE, "maskType": 1}
    plain, nz = (
        compute(SELF, param, [q, k, v, m, lengths(32)], **EXACT)[0]
        for m in (causal(32), nd_to_nz(causal(32))[None])
    )
    assert torch.equal(plain, nz)


def test_a_small_triangle_covers_every_diagonal_block() -> None:
    q, k, v = qkv(300, 2, 1)
    base = {"calcType": 3, "headNum": 2, "kvHeadNum": 1, "qkScale": SCALE}
    expected = sdpa(q, k, v, causal(300))
    small = torch.full((128, 128), -10000.0, dtype=torch.float64).triu(1)
    for param in ({"maskType": 3}, {"maskType": 1, "isTriuMask": 1}):
        (out,) = compute(SELF, {**base, **param}, [q, k, v, small, lengths(300)], **EXACT)
        torch.testing.assert_close(out, expected)


def test_blocks_above_the_diagonal_are_skipped_whatever_the_mask_says() -> None:
    q, k, v = qkv(200, 1, 1)
    param = {"calcType": 3, "headNum": 1, "qkScale": SCALE, "maskType": 1, "isTriuMask": 1}
    (out,) = compute(SELF, param, [q, k, v, torch.zeros(200, 200), lengths(200)], **EXACT)
    torch.testing.assert_close(out[:128], sdpa(q[:128], k[:128], v[:128]))
    torch.testing.assert_close(out[128:], sdpa(q[128:], k, v))


def test_compressed_alibi_is_alibi() -> None:
    q, k, v = qkv(6, 2, 2)
    slopes = torch.tensor([-0.5, -0.25], dtype=torch.float64)
    distance = (torch.arange(6)[:, None] - torch.arange(6)).double()
    shapes = {4: distance, 5: distance.clamp(min=0).sqrt(), 6: -torch.arange(6.0).double().expand(6, 6)}
    for kind, bias in shapes.items():
        mask, sign = torch.zeros(256, 256), -1 if kind == 6 else 1
        param = {"calcType": 3, "headNum": 2, "qkScale": SCALE, "maskType": kind}
        (out,) = compute(SELF, param, [q, k, v, mask, lengths(6), sign * slopes], **EXACT)
        torch.testing.assert_close(out, sdpa(q, k, v, slopes[:, None, None] * bias + causal(6)))


def test_compressed_alibi_of_each_head_lies_by_distance() -> None:
    q, k, v = qkv(260, 2, 2)
    slopes = torch.tensor([0.5, 0.25], dtype=torch.float64)[:, None, None]
    distance = (torch.arange(260)[:, None] - torch.arange(260)).double()
    # rows 128 d to 128 d + 127: the tile of blocks d apart, which is the first column of blocks
    tiles = -slopes * (torch.arange(384)[:, None] - torch.arange(128)).double()
    param = {"calcType": 3, "headNum": 2, "qkScale": SCALE, "maskType": 4}
    (out,) = compute(SELF, param, [q, k, v, tiles, lengths(260)], **EXACT)
    torch.testing.assert_close(out, sdpa(q, k, v, -slopes * distance + causal(260)))


def test_a_causal_mask_needs_no_operand() -> None:
    q, k, v = qkv(5, 2, 2)
    param = {"calcType": 3, "headNum": 2, "qkScale": SCALE, "maskType": 9}
    (out,) = compute(SELF, param, [q, k, v, lengths(5)], **EXACT)
    torch.testing.assert_close(out, sdpa(q, k, v, causal(5)))


def test_values_may_be_inside_the_keys() -> None:
    q, k, _ = qkv(5, 2, 1)
    param = {"calcType": 3, "headNum": 2, "kvHeadNum": 1, "qkScale": SCALE, "mlaVHeadSize": 3}
    (out,) = compute(SELF, param, [q, k, lengths(5)], **EXACT)
    torch.testing.assert_close(out, sdpa(q, k, k[..., :3]))


def test_a_window_hides_what_is_far_behind() -> None:
    q, k, v = qkv(12, 2, 2)
    far = torch.full((12, 12), -INF, dtype=torch.float64).tril(-3)
    param = {"calcType": 3, "headNum": 2, "qkScale": SCALE, "maskType": 8, "windowSize": 3}
    (out,) = compute(SELF, param, [q, k, v, torch.zeros(512, 512), lengths(12)], **EXACT)
    torch.testing.assert_close(out, sdpa(q, k, v, causal(12) + far))


def flash(param: dict[str, object], offset: int, count: int, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One step of `count` tokens that ends at `offset`: output, caches, and what torch makes of it."""
    q, k, v = qkv(count, 4, 2)
    caches = [torch.randn(3, 1, 16, 16, dtype=torch.float64) for _ in range(2)]
    inputs = [q, k, v, *caches, mask, lengths(offset), lengths(count), lengths(1)]
    out, *after = compute(SELF, {"headNum": 4, "kvHeadNum": 2, **param}, inputs, **EXACT)
    for new, old, cache in zip((k, v), caches, after):
        old[1, 0, offset - count : offset] = new.flatten(1)
        assert torch.equal(cache, old)
    keys, values = (c[1, 0, :offset].reshape(offset, 2, 8) for c in after)
    return out, sdpa(q, keys, values, causal(16)[offset - count : offset, :offset])


OLD = {
    "headDim": 8,
    "isSupportAlibi": False,
    "coderType": 0,
    "isClamp": False,
    "isFp32": False,
    "qScale": SCALE,
}


@pytest.mark.parametrize("param", [{"maskType": 1, "qScale": SCALE}, OLD])
def test_flash_attention_appends_to_its_cache(param: dict[str, object]) -> None:
    out, expected = flash(param, 5, 5, causal(16))
    torch.testing.assert_close(out, expected)


def test_the_scaled_query_is_a_tensor_of_its_own() -> None:
    q = torch.tensor([[[1.0 + 2**-10]]]).half()
    k, v = torch.tensor([[[1000.0]], [[0.0]]]).half(), torch.tensor([[[1.0]], [[0.0]]]).half()
    cache = torch.zeros(1, 1, 2, 1).half()
    cache_k, cache_v = cache.clone(), cache.clone()
    cache_k[0, 0, 0], cache_v[0, 0, 0] = k[0, 0], v[0, 0]
    inputs = [q, k[1:], v[1:], cache_k, cache_v, lengths(2), lengths(1), lengths(0)]
    param = {"headNum": 1, "qScale": 0.0013}
    rounded = (q.float() * 0.0013).half()
    (out, *_) = compute(SELF, param, inputs)
    assert out.item() == torch.sigmoid(rounded.double() * 1000).half().item()


def test_bypass_reads_the_cache_alone() -> None:
    q, k, v = qkv(1, 2, 2, 4, m=5)
    caches = [torch.zeros(1, 1, 8, 8, dtype=torch.float64) for _ in range(2)]
    for cache, new in zip(caches, (k, v)):
        cache[0, 0, :5] = new.flatten(1)
    param = {"headNum": 2, "kvcacheCfg": 1, "qkScale": SCALE, "calcType": 2}
    (out,) = compute(SELF, param, [q, *caches, lengths(5), lengths(1), lengths(0)], **EXACT)
    torch.testing.assert_close(out, sdpa(q, k, v))


@pytest.mark.parametrize("cyclic", [False, True])
def test_decoding_sees_the_last_keys_of_a_window(cyclic: bool) -> None:
    q, k, v = qkv(1, 2, 2, 4, m=6)
    caches = [torch.zeros(1, 1, 8, 8, dtype=torch.float64) for _ in range(2)]
    for cache, new in zip(caches, (k, v)):
        rows = new[3:].roll(1, 0) if cyclic else new  # the places of a cyclic cache do not matter
        cache[0, 0, : len(rows)] = rows.flatten(1)
    param = {"headNum": 2, "kvcacheCfg": 1, "qkScale": SCALE, "calcType": 2, "maskType": 7, "windowSize": 3}
    inputs = [q, *caches, lengths(6), lengths(1), lengths(0)]
    (out,) = compute(SELF, {**param, "cacheType": int(cyclic)}, inputs, **EXACT)
    torch.testing.assert_close(out, sdpa(q, k[3:], v[3:]))


def test_keys_of_2024_that_are_given_count() -> None:
    q, k, v = qkv(4, 2, 2)
    new = {"headNum": 2, "calcType": 3, "qkScale": SCALE, "maskType": 2}
    old = {"headNum": 2, "isEncoder": True, "qkScale": SCALE, "isSupportAlibi": True, "headDim": 8}
    mask = torch.randn(2, 4, 4, dtype=torch.float64)
    a, b = (compute(SELF, p, [q, k, v, mask, lengths(4)], **EXACT)[0] for p in (new, old))
    assert torch.equal(a, b)
    with pytest.raises(OperatorError, match="parameter headDim is 7"):
        compute(SELF, {**old, "headDim": 7}, [q, k, v, mask, lengths(4)])


def test_a_prefix_lies_in_blocks() -> None:
    q, k, v = qkv(2, 2, 1, 4, m=5)
    blocks = torch.zeros(2, 4, 4, 1, 4, dtype=torch.float64)
    for cache, new in zip(blocks, (k, v)):
        cache[2], cache[0, :1] = new[:4], new[4:]
    param = {"headNum": 2, "kvHeadNum": 1, "calcType": 4, "maskType": 1, "qkScale": SCALE}
    inputs = [q, blocks[0], blocks[1], torch.tensor([[2, 0]]), causal(8), lengths(2), lengths(5)]
    (out,) = compute(SELF, param, inputs, **EXACT)
    torch.testing.assert_close(out, sdpa(q, k, v, causal(5)[3:]))


def test_planes_of_heads_before_rows() -> None:
    q, k, v = qkv(6, 2, 1, 4)
    param = {"headNum": 2, "kvHeadNum": 1, "calcType": 3, "inputLayout": 1, "qkScale": SCALE}
    (out,) = compute(SELF, param, [*(t.transpose(0, 1)[None] for t in (q, k, v)), lengths(4)], **EXACT)
    torch.testing.assert_close(out[0, :, :4].transpose(0, 1), sdpa(q[:4], k[:4], v[:4]))
    assert out[0, :, 4:].abs().sum() == 0


@pytest.mark.parametrize("offline", [False, True])
def test_int8_attention_is_near_the_attention_of_its_values(offline: bool) -> None:
    q, k, v = (torch.randint(-100, 100, (10, h, 16)).char() for h in (4, 2, 2))
    qk, vs = torch.full((4,), 0.002), torch.full((4,), 0.01)
    p = torch.full((4,), 127.0)
    param = {"calcType": 3, "headNum": 4, "kvHeadNum": 2, "qkScale": SCALE, "quantType": 2 if offline else 3}
    extra = [qk, torch.zeros(4).int(), vs / 127 if offline else vs, torch.zeros(4).int()]
    (out,) = compute(SELF, param, [q, k, v, lengths(10), *extra, *([p] if offline else [])])
    assert out.dtype == torch.float16
    exact = sdpa(q.double() * 0.002, k.double(), v.double() * 0.01)
    # every weight is off by at most half of 1/127 of the row's largest, values reach 1
    assert float((out.double() - exact).abs().max()) < 10 * 0.5 / 127


def test_logn_scales_each_position() -> None:
    q, k, v = qkv(4, 2, 2)
    factor = torch.tensor([1.0, 1.0, 1.5, 2.0], dtype=torch.float64)
    param = {"calcType": 3, "headNum": 2, "qkScale": SCALE, "scaleType": 1}
    (out,) = compute(SELF, param, [q, k, v, lengths(4), factor], **EXACT)
    torch.testing.assert_close(out, sdpa(q * factor[:, None, None], k, v))


def test_operands_that_do_not_fit() -> None:
    q, k, v = qkv(4, 2, 2)
    with pytest.raises(OperatorError, match="parameter headNum is missing"):
        compute(SELF, {"calcType": 3}, [q, k, v, lengths(4)])
    with pytest.raises(OperatorError, match=r"query \[4, 2, 8\] does not hold 5 tokens of 2 heads"):
        compute(SELF, {"calcType": 3, "headNum": 2}, [q, k, v, lengths(5)])
    with pytest.raises(OperatorError, match=r"mask \[1, 2, 2\] is too small for 4 queries and 4 keys"):
        compute(SELF, {"calcType": 3, "headNum": 2, "maskType": 1}, [q, k, v, causal(2), lengths(4)])
    cache = torch.zeros(1, 1, 8, 16)
    with pytest.raises(OperatorError, match="layerId is 3, the caches have 1 layers"):
        compute(SELF, {"headNum": 2}, [q, k, v, cache, cache, lengths(4), lengths(4), lengths(3)])
    with pytest.raises(OperatorError, match="quantType 1 is reserved"):
        compute(SELF, {"calcType": 3, "headNum": 2, "quantType": 1}, [q, k, v, lengths(4)])


LATENT, RELAY = "MultiLatentAttentionOperation", "RelayAttentionOperation"
PARAM = {"headNum": 4, "kvHeadNum": 1, "qkScale": SCALE, "cacheMode": 1}
TABLE = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)


def caches() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 16, 1, 32, dtype=torch.float64), torch.randn(4, 16, 1, 16, dtype=torch.float64)


def test_the_latent_is_key_and_value() -> None:
    query, turned = torch.randn(2, 4, 32, dtype=torch.float64), torch.randn(2, 4, 16, dtype=torch.float64)
    latent, rope = caches()
    inputs = [query, turned, latent, rope, TABLE, lengths(20, 5)]
    out, sums = compute(LATENT, {**PARAM, "calcType": 2}, inputs, **EXACT)
    for b, length in enumerate((20, 5)):
        c, r = (t[TABLE[b].long()].flatten(0, 1)[:length] for t in (latent, rope))
        q = torch.cat((query[b], turned[b]), -1)[None]
        key = torch.cat((c, r), -1)
        torch.testing.assert_close(out[b : b + 1], sdpa(q, key, c))
        scores = torch.einsum("nhd,md->hnm", q, key[:, 0]) * SCALE
        torch.testing.assert_close(sums[b, :, 0], scores.logsumexp(-1)[:, 0])
    nz = [query, turned, nd_to_nz(latent[:, :, 0]), nd_to_nz(rope[:, :, 0]), TABLE, lengths(20, 5)]
    (packed,) = compute(LATENT, {**PARAM, "cacheMode": 3}, nz, **EXACT)
    assert torch.equal(packed, out)


def test_prefill_and_several_tokens_are_causal() -> None:
    query, turned = torch.randn(5, 4, 32, dtype=torch.float64), torch.randn(5, 4, 16, dtype=torch.float64)
    key, rope = torch.randn(5, 1, 32, dtype=torch.float64), torch.randn(5, 1, 16, dtype=torch.float64)
    param = {**PARAM, "calcType": 4, "maskType": 3}
    inputs = [query, turned, key, rope, key, lengths(5), lengths(5)]
    (out,) = compute(LATENT, param, inputs, **EXACT)
    expected = sdpa(torch.cat((query, turned), -1), torch.cat((key, rope), -1), key, causal(5))
    torch.testing.assert_close(out, expected)
    latent, cached = (torch.zeros(1, 16, 1, n, dtype=torch.float64) for n in (32, 16))
    latent[0, :5], cached[0, :5] = key, rope
    several = {**PARAM, "calcType": 1, "maskType": 2}
    inputs = [query[3:], turned[3:], latent, cached, TABLE[:1, 1:], lengths(5), causal(5), lengths(2)]
    (out,) = compute(LATENT, several, inputs, **EXACT)
    torch.testing.assert_close(out, expected[3:])


@pytest.mark.parametrize("kind", [1, 4])
def test_masks_of_the_latent_form(kind: int) -> None:
    query, turned = torch.randn(2, 4, 32, dtype=torch.float64), torch.randn(2, 4, 16, dtype=torch.float64)
    latent, rope = caches()
    window = torch.full((2, 9), -torch.inf, dtype=torch.float64)
    window[0, 5:8], window[1, 6:9] = 0, 0
    param = {**PARAM, "calcType": 1, "maskType": kind, "windowSize": 3}
    inputs = [query, turned, latent, rope, TABLE[:1], lengths(9), window, lengths(2)]
    (out,) = compute(LATENT, param, inputs, **EXACT)
    c, r = (t[TABLE[0].long()].flatten(0, 1)[:9] for t in (latent, rope))
    expected = sdpa(torch.cat((query, turned), -1), torch.cat((c, r), -1), c, window)
    torch.testing.assert_close(out, expected)


def test_forms_without_reference_are_refused() -> None:
    x = torch.ones(1, 4, 8)
    with pytest.raises(OperatorError, match="ATB itself refuses cacheMode 0"):
        compute(LATENT, {**PARAM, "cacheMode": 0}, [x, x, x, x, TABLE, lengths(1)])
    with pytest.raises(OperatorError, match=r"cacheMode 2 does not go with a query of torch.float32"):
        compute(LATENT, {**PARAM, "cacheMode": 2}, [x, x, x, x, TABLE, lengths(1), x, x])


@pytest.mark.parametrize("several", [False, True])
def test_int8_latents_and_float_ropes(several: bool) -> None:
    """Row by row: integers exact, weights rounded to 127 steps of the largest."""
    counts = (2, 1) if several else (1, 1)
    n = sum(counts)
    query = torch.randint(-5, 6, (n, 4, 64)).to(torch.int8)
    turned, rope = torch.randn(n, 4, 16).half(), torch.randn(4, 32, 1, 16).half()
    latent = torch.randint(-5, 6, (4, 32, 1, 64)).to(torch.int8)
    score, weight = torch.rand(4) / 20, torch.rand(4) / 20
    caches = [nd_to_nz(latent[:, :, 0], 32), nd_to_nz(rope[:, :, 0])]
    inputs = [query, turned, *caches, TABLE, lengths(40, 9), *([lengths(*counts)] if several else [])]
    param = {**PARAM, "cacheMode": 2, "calcType": 3 if several else 2}
    out, sums = compute(LATENT, param, [*inputs, score, weight], **EXACT)
    row = 0
    for b, (length, count) in enumerate(zip((40, 9), counts)):
        c, r = (one[TABLE[b].long()].flatten(0, 1)[:length, 0].double() for one in (latent, rope))
        for _ in range(count):
            for h in range(4):
                s = c @ query[row, h].double() * score[h].double() + r @ turned[row, h].double()
                powers = (s * SCALE - (s * SCALE).max()).exp()
                small = (powers * 127).half().double().round()
                expected = small @ c * weight[h].double() / 127 / powers.sum()
                torch.testing.assert_close(out[row, h], expected)
                torch.testing.assert_close(sums[row, h, 0], (s * SCALE).logsumexp(0))
            row += 1


def test_a_mask_may_be_used_by_some_sequences_only_and_keys_may_be_padded() -> None:
    query, turned = torch.randn(5, 4, 32, dtype=torch.float64), torch.randn(5, 4, 16, dtype=torch.float64)
    key, rope = torch.randn(2, 6, 4 * 32, dtype=torch.float64), torch.randn(2, 6, 4 * 16, dtype=torch.float64)
    param = {**PARAM, "kvHeadNum": 4, "calcType": 4, "maskType": 2, "maskUseStatusType": 1}
    mask, status = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0, 1], dtype=torch.int32)
    inputs = [query, turned, key, rope, key, lengths(2, 3), lengths(4, 3), mask, status]
    (out,) = compute(LATENT, param, inputs, **EXACT)
    both = torch.cat((query, turned), -1)
    keys = [torch.cat((key[b].view(6, 4, 32), rope[b].view(6, 4, 16)), -1)[:n] for b, n in ((0, 4), (1, 3))]
    first = sdpa(both[:2], keys[0], key[0].view(6, 4, 32)[:4])
    second = sdpa(both[2:], keys[1], key[1].view(6, 4, 32)[:3], causal(3))
    torch.testing.assert_close(out, torch.cat((first, second)))


def test_shared_rows_come_before_the_sequences_own() -> None:
    q, k, v = (torch.randn(2, h, 8, dtype=torch.float64) for h in (4, 2, 2))
    own_k, own_v = (torch.randn(5, 2, 8, dtype=torch.float64) for _ in range(2))
    param = {"headNum": 4, "kvHeadNum": 2, "qkScale": SCALE}
    inputs = [q, own_k, own_v, k, v, lengths(1, 1), lengths(4, 3), lengths(0, -1), lengths(2)]
    (out,) = compute(RELAY, param, inputs, **EXACT)
    first = sdpa(q[:1], torch.cat((k, own_k[:2])), torch.cat((v, own_v[:2])))
    torch.testing.assert_close(out, torch.cat((first, sdpa(q[1:], own_k[2:], own_v[2:]))))


def test_parts_of_a_ring_join_to_the_whole() -> None:
    q, k = torch.randn(3, 4, 16, dtype=torch.float64), torch.randn(10, 2, 16, dtype=torch.float64)
    v = torch.randn(10, 2, 8, dtype=torch.float64)
    param = {"headNum": 4, "kvHeadNum": 2, "qkScale": SCALE, "maskType": 0}

    def part(which: slice, *before: torch.Tensor) -> tuple[torch.Tensor, ...]:
        keys, values = k[which], v[which]
        count = torch.tensor([[3], [len(keys)]])
        inputs = [q[..., :12], q[..., 12:], keys[..., :12], keys[..., 12:], values, None, count, *before]
        return compute("RingMLAOperation", {**param, "calcType": 0 if before else 1}, inputs, **EXACT)

    out, sums = part(slice(6, 10), *part(slice(0, 6)))
    torch.testing.assert_close(out, sdpa(q, k, v))
    whole, total = part(slice(0, 10))
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(sums, total)
    same, zero = part(slice(0, 0), out, sums)
    torch.testing.assert_close(same, out)
    assert zero.abs().sum() == 0


def test_a_ring_may_be_causal() -> None:
    q, v = torch.randn(4, 2, 16, dtype=torch.float64), torch.randn(4, 2, 8, dtype=torch.float64)
    inputs = [q[..., :12], q[..., 12:], q[..., :12], q[..., 12:], v, torch.ones(512, 512), lengths(4)]
    param = {"headNum": 2, "qkScale": SCALE, "maskType": 1, "calcType": 1}
    out, _ = compute("RingMLAOperation", param, inputs, **EXACT)
    torch.testing.assert_close(out, sdpa(q, q, v, causal(4)))


PAGED = "PagedAttentionOperation"
BLOCK_TABLE = torch.tensor([[2, 0, 3], [1, 4, 0]], dtype=torch.int32)
CONTEXT = lengths(9, 3)
HEADS = {"headNum": 4, "kvHeadNum": 2, "qkScale": SCALE}


@pytest.fixture
def paged_caches() -> list[torch.Tensor]:
    return [torch.randn(5, 4, 2, 16, dtype=torch.float64) for _ in range(2)]


@pytest.fixture
def query() -> torch.Tensor:
    return torch.randn(2, 4, 16, dtype=torch.float64)


def rows(cache: torch.Tensor, b: int) -> torch.Tensor:
    return cache[BLOCK_TABLE[b].long()].flatten(0, 1)[: int(CONTEXT[b])]


def expected(
    query: torch.Tensor, caches: list[torch.Tensor], bias: list[torch.Tensor] | None = None
) -> torch.Tensor:
    keys, values = caches
    parts = [
        sdpa(query[b : b + 1], rows(keys, b), rows(values, b), bias[b] if bias else None) for b in (0, 1)
    ]
    return torch.cat(parts)


def test_layouts_of_the_cache(query: torch.Tensor, paged_caches: list[torch.Tensor]) -> None:
    target = expected(query, paged_caches)
    by_head = [c.transpose(1, 2) for c in paged_caches]
    (out,) = compute(PAGED, {**HEADS, "inputLayout": 1}, [query, *by_head, BLOCK_TABLE, CONTEXT], **EXACT)
    torch.testing.assert_close(out, target)
    merged = [c.flatten(2) for c in paged_caches]
    (out,) = compute(PAGED, HEADS, [query, *merged, BLOCK_TABLE, CONTEXT], **EXACT)
    torch.testing.assert_close(out, target)
    wide = [torch.cat((c, c.new_zeros(5, 12, 2, 16)), 1) for c in paged_caches]
    nz = [nd_to_nz(c.flatten(2)) for c in wide]
    context, table = lengths(4, 3), BLOCK_TABLE[:, :1]
    one = [query, *(w.reshape(5, 16, 2, 16) for w in wide), table, context]
    (plain,) = compute(PAGED, HEADS, one, **EXACT)
    (packed,) = compute(PAGED, HEADS, [query, *nz, table, context], soc="Ascend310P3", **EXACT)
    assert torch.equal(plain, packed)


def test_several_tokens_a_sequence(paged_caches: list[torch.Tensor]) -> None:
    q = torch.randn(3, 4, 16, dtype=torch.float64)
    counts = lengths(2, 1)
    free = torch.full((2, 9), -60000.0, dtype=torch.float64).triu(8)
    first = sdpa(q[:2], rows(paged_caches[0], 0), rows(paged_caches[1], 0), free)
    target = torch.cat((first, sdpa(q[2:], *(rows(c, 1) for c in paged_caches))))
    spec = torch.zeros(3, 12, dtype=torch.float64)
    spec[:2, :9] = free
    square = torch.full((12, 12), -60000.0, dtype=torch.float64).triu(1)
    for kind, mask in ((3, spec), (1, square), (4, torch.zeros(1, 1))):
        param = {**HEADS, "calcType": 1, "maskType": kind}
        (out,) = compute(PAGED, param, [q, *paged_caches, BLOCK_TABLE, CONTEXT, mask, counts], **EXACT)
        torch.testing.assert_close(out, target)


def test_the_query_may_be_scaled_before(query: torch.Tensor, paged_caches: list[torch.Tensor]) -> None:
    for factor in (0.0, 1.0, 0.5):
        (out,) = compute(
            PAGED, {**HEADS, "qScale": factor}, [query, *paged_caches, BLOCK_TABLE, CONTEXT], **EXACT
        )
        torch.testing.assert_close(out, expected(query * (factor or 1.0), paged_caches))


@pytest.mark.parametrize("offline", [False, True])
def test_int8_everywhere_is_near_the_attention_of_its_values(offline: bool) -> None:
    query = torch.randint(-100, 100, (2, 4, 16)).char()
    caches = [torch.randint(-100, 100, (5, 4, 2, 16)).char() for _ in range(2)]
    scale, value = torch.full((4,), 0.002), torch.full((4,), 0.01)
    param = {**HEADS, "quantType": 2 if offline else 3, "outDataType": 27}
    extra = [scale, value / 127 if offline else value, *([torch.full((4,), 127.0)] if offline else [])]
    (out,) = compute(PAGED, param, [query, *caches, BLOCK_TABLE, CONTEXT, *extra])
    assert out.dtype == torch.bfloat16
    exact = expected(query.double() * 0.002, [caches[0].double(), caches[1].double() * 0.01])
    assert float((out.double() - exact).abs().max()) < 9 * 0.5 / 127


def test_compressed_heads_have_tables_of_their_own(query: torch.Tensor) -> None:
    caches = [torch.randn(6, 4, 1, 16, dtype=torch.float64) for _ in range(2)]
    table = torch.tensor([[0, 1], [2, 3], [4, 0], [5, 1]], dtype=torch.int32)
    context = lengths(5, 2, 8, 4)
    razor = torch.randn(6, 4, dtype=torch.float64)
    param = {**HEADS, "compressType": 2}
    (out,) = compute(PAGED, param, [query, *caches, table, context, razor], **EXACT)
    for i in range(4):
        k, v, r = (c[table[i].long()].flatten(0, 1)[: int(context[i])] for c in (*caches, razor))
        part = slice(2 * (i % 2), 2 * (i % 2) + 2)
        target = sdpa(query[i // 2 : i // 2 + 1, part], k, v, r[None] * SCALE)
        torch.testing.assert_close(out[i // 2 : i // 2 + 1, part], target)


def test_sequences_without_context_give_zeros_and_those_that_do_not_run_no_row(
    query: torch.Tensor, paged_caches: list[torch.Tensor]
) -> None:
    (out,) = compute(PAGED, HEADS, [query, *paged_caches, BLOCK_TABLE, lengths(0, 3)], **EXACT)
    assert out[0].abs().sum() == 0
    param = {**HEADS, "batchRunStatusEnable": True}
    (out,) = compute(PAGED, param, [query, *paged_caches, BLOCK_TABLE, CONTEXT, lengths(0, 1)], **EXACT)
    torch.testing.assert_close(out[0], sdpa(query[:1], *(rows(c, 1) for c in paged_caches))[0])
    assert out[1].abs().sum() == 0


def test_paged_operands_that_do_not_fit(query: torch.Tensor, paged_caches: list[torch.Tensor]) -> None:
    with pytest.raises(OperatorError, match=r"blockTables \[2, 0, 3\] do not name 4 of 5 blocks"):
        compute(PAGED, HEADS, [query, *paged_caches, BLOCK_TABLE, lengths(13, 3)])
    with pytest.raises(OperatorError, match="2 sequences of queries, 3 contextLens, 2 blockTables"):
        compute(PAGED, HEADS, [query, *paged_caches, BLOCK_TABLE, lengths(1, 2, 3)])
    with pytest.raises(OperatorError, match=r"mask \[2, 1, 4\] is shorter than 9 keys"):
        compute(
            PAGED,
            {**HEADS, "maskType": 1},
            [query, *paged_caches, BLOCK_TABLE, CONTEXT, torch.zeros(2, 1, 4)],
        )
    with pytest.raises(OperatorError, match="heads do not divide or sizes differ"):
        compute(PAGED, {**HEADS, "kvHeadNum": 2}, [query[..., :8], *paged_caches, BLOCK_TABLE, CONTEXT])


# Long sequences are computed head by head, with the same result.


@pytest.mark.parametrize("mask", ["none", "plane", "alibi"])
@pytest.mark.parametrize("groups", [2, 4])
def test_head_by_head_is_the_same_as_all_heads_together(
    mask: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    heads, size, n = 4, 8, 6
    query, key, value = (torch.randn(n, count * size).half() for count in (heads, groups, groups))
    plane = torch.full((n, n), -10000.0).triu(1).half()
    planes = plane + torch.arange(heads).half()[:, None, None] * torch.arange(n).half()
    param = {"headNum": heads, "kvHeadNum": groups, "qkScale": 0.5, "calcType": 3}
    param["maskType"] = {"none": 0, "plane": 1, "alibi": 2}[mask]
    given = {"none": [], "plane": [plane], "alibi": [planes]}[mask]
    inputs = [query, key, value, *given, torch.tensor([n], dtype=torch.int32)]
    (together,) = compute("SelfAttentionOperation", param, inputs)
    monkeypatch.setattr(scores, "_SCORES_AT_ONCE", 0)
    (apart,) = compute("SelfAttentionOperation", param, inputs)
    # float32 sums may be taken in another order; half a spacing of float16 hides all but ties
    torch.testing.assert_close(apart, together, rtol=2**-10, atol=2**-24)
    (exact,) = compute("SelfAttentionOperation", param, inputs, accumulate=torch.float64, round_outputs=False)
    torch.testing.assert_close(apart.double(), exact, rtol=2**-10, atol=2**-20)
