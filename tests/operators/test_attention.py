from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
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


@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("merged", [False, True])
def test_packed_sequences_attend_to_themselves(heads: int, kv: int, merged: bool) -> None:
    q, k, v = qkv(9, heads, kv)
    mask = causal(8)
    param = {"calcType": 3, "headNum": heads, "kvHeadNum": kv, "qkScale": SCALE, "maskType": 1}
    inputs = [t.flatten(1) if merged else t for t in (q, k, v)]
    (out,) = compute(SELF, param, [*inputs, mask, lengths(5, 4)], **EXACT)
    assert out.shape == inputs[0].shape
    expected = torch.cat([sdpa(q[s], k[s], v[s], mask[: len(q[s]), : len(q[s])])
                          for s in (slice(0, 5), slice(5, 9))])  # fmt: skip
    torch.testing.assert_close(out.reshape(expected.shape), expected)


def test_without_mask_and_with_longer_keys() -> None:
    q, k, v = qkv(3, 2, 2, m=7)
    param = {"calcType": 3, "headNum": 2, "qkScale": SCALE}
    (out,) = compute(SELF, param, [q, k, v, torch.tensor([[3], [7]])], **EXACT)
    torch.testing.assert_close(out, sdpa(q, k, v))


def test_rounding_stays_within_one_step() -> None:
    q, k, v = (t.half() for t in qkv(16, 4, 2))
    param = {"calcType": 3, "headNum": 4, "kvHeadNum": 2, "qkScale": SCALE, "maskType": 1}
    (out,) = compute(SELF, param, [q, k, v, causal(16).half(), lengths(16)])
    assert out.dtype == torch.float16
    exact = sdpa(q.double(), k.double(), v.double(), causal(16))
    torch.testing.assert_close(out.double(), exact, rtol=2**-10, atol=2**-14)


@pytest.mark.parametrize("shape", ["heads", "batch", "both"])
def test_masks_of_heads_and_of_sequences(shape: str) -> None:
    q, k, v = qkv(8, 2, 2)
    planes = torch.randn(2, 2, 4, 4, dtype=torch.float64) * 3
    mask = {"heads": planes[0], "batch": planes[:, 0], "both": planes}[shape]
    param = {"calcType": 3, "headNum": 2, "qkScale": SCALE, "maskType": 1 if shape == "batch" else 2}
    (out,) = compute(SELF, param, [q, k, v, mask, lengths(4, 4)], **EXACT)
    of = {"heads": [mask, mask], "batch": [mask[0], mask[1]], "both": [mask[0], mask[1]]}[shape]
    expected = [sdpa(q[s], k[s], v[s], of[b]) for b, s in enumerate((slice(0, 4), slice(4, 8)))]
    torch.testing.assert_close(out, torch.cat(expected))


def test_a_mask_of_zeros_and_ones_hides() -> None:
    q, k, v = qkv(6, 2, 2)
    param = {"calcType": 3, "headNum": 2, "qkScale": SCALE, "maskType": 1}
    (out,) = compute(SELF, param, [q, k, v, torch.ones(6, 6).triu(1).char(), lengths(6)], **EXACT)
    torch.testing.assert_close(out, sdpa(q, k, v, causal(6)))


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


def test_a_decoding_row_of_a_causal_plane_is_the_tokens_own() -> None:
    out, expected = flash({"maskType": 1, "qScale": SCALE}, 9, 2, causal(16))
    torch.testing.assert_close(out, expected)


def test_a_decoding_mask_of_zeros_starts_at_its_first_row() -> None:
    mask = torch.full((16, 16), -INF, dtype=torch.float64)
    mask[0] = 0
    out, expected = flash({"maskType": 1, "qkScale": SCALE}, 9, 1, mask)
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


def test_sequences_that_do_not_run_give_zeros_and_clamping_cuts() -> None:
    q, k, v = qkv(2, 1, 1, 4)
    cache = torch.zeros(1, 2, 4, 4, dtype=torch.float64)
    inputs = [q, k, v, cache, cache, lengths(1, 1), lengths(1, 1), lengths(0), lengths(1, 0)]
    out, *_ = compute(SELF, {"headNum": 1, "batchRunStatusEnable": True}, inputs, **EXACT)
    torch.testing.assert_close(out, torch.cat((v[:1], torch.zeros_like(v[1:]))))
    clamp = {"headNum": 2, "clampType": 1, "clampMin": 0.0, "clampMax": 0.0}
    q, k, v = qkv(3, 2, 2, 4)
    cache = torch.zeros(1, 1, 4, 8, dtype=torch.float64)
    out, *_ = compute(SELF, clamp, [q, k, v, cache, cache, lengths(3), lengths(3), lengths(0)], **EXACT)
    torch.testing.assert_close(out, v.mean(0, keepdim=True).expand(3, 2, 4))


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
