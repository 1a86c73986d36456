from __future__ import annotations

import pytest
import torch

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
from acc_pytest.operators.layout import nd_to_nz

from .test_attention import EXACT, SCALE, causal, lengths, sdpa

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
