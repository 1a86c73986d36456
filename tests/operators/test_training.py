from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
from acc_pytest.tensors import hifloat8

EXACT: dict[str, Any] = {"accumulate": torch.float64, "round_outputs": False}


def test_packed_softmax_and_its_gradient() -> None:
    param = {"headNum": 2, "qSeqLen": [2, 3]}
    x = torch.randn(26, dtype=torch.float64, requires_grad=True)
    parts = x.split([8, 18])
    y = torch.cat([p.reshape(-1, s).softmax(-1).flatten() for p, s in zip(parts, (2, 3))])
    dy = torch.randn(26, dtype=torch.float64)
    y.backward(dy)
    torch.testing.assert_close(compute("FastSoftMaxOperation", param, [x.detach()], **EXACT)[0], y.detach())
    (dx,) = compute("FastSoftMaxGradOperation", param, [y.detach(), dy], **EXACT)
    torch.testing.assert_close(dx, x.grad)
    with pytest.raises(OperatorError, match="8 elements are not the squares of qSeqLen"):
        compute("FastSoftMaxOperation", param, [torch.ones(8)])


def test_masks_are_cut_and_repeated() -> None:
    mask = torch.arange(18.0).reshape(2, 1, 3, 3)
    (out,) = compute("GenAttentionMaskOperation", {"headNum": 2, "seqLen": [1, 2]}, [mask])
    assert out.tolist() == [0.0, 0.0, 9.0, 10.0, 12.0, 13.0, 9.0, 10.0, 12.0, 13.0]


@pytest.mark.parametrize("b_transposed", [False, True])
def test_strided_products_of_interleaved_heads(b_transposed: bool) -> None:
    # two heads side by side in rows: leading dimension 2 k, stride k
    a, b = torch.randn(3, 2, 4, dtype=torch.float64), torch.randn(4, 2, 5, dtype=torch.float64)
    if b_transposed:
        b = torch.randn(5, 2, 4, dtype=torch.float64)
    param = {"transA": False, "transB": b_transposed, "batch": 1, "head_num": 2, "m": [3], "n": [5], "k": [4],
             "lda": [8], "ldb": [8 if b_transposed else 10], "ldc": [10], "strideA": [4],
             "strideB": [4 if b_transposed else 5], "strideC": [5]}  # fmt: skip
    (out,) = compute("StridedBatchMatmulOperation", param, [a.flatten(), b.flatten()], **EXACT)
    each = torch.einsum("mhk,nhk->mhn" if b_transposed else "mhk,khn->mhn", a, b)
    torch.testing.assert_close(out.reshape(3, 2, 5), each)
    with pytest.raises(OperatorError, match="reaches outside"):
        compute("StridedBatchMatmulOperation", {**param, "lda": [9]}, [a.flatten(), b.flatten()])


def laser(**tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = torch.ones(6, 6, dtype=torch.float64).triu(1)
    inputs = [tensors["q"], tensors["k"], tensors["v"], None, None, None, hidden]
    param = {"headNum": 4, "scaleValue": 0.3}
    return compute(
        "LaserAttentionOperation", param, [t if t is None else t.detach() for t in inputs], **EXACT
    )


def test_laser_attention_and_its_gradients() -> None:
    q, k, v = (torch.randn(2, h, 6, 8, dtype=torch.float64, requires_grad=True) for h in (4, 2, 2))
    kk, vv = (t.repeat_interleave(2, 1) for t in (k, v))
    expected = F.scaled_dot_product_attention(q, kk, vv, is_causal=True, scale=0.3)
    highest, total, _, out = laser(q=q, k=k, v=v)
    torch.testing.assert_close(out, expected.detach())
    scores = (q @ kk.transpose(-1, -2) * 0.3).detach().masked_fill(torch.ones(6, 6).triu(1).bool(), -np.inf)
    torch.testing.assert_close(highest + total.log(), scores.logsumexp(-1))
    dy = torch.randn_like(out)
    expected.backward(dy)
    hidden = torch.ones(6, 6, dtype=torch.float64).triu(1)
    inputs = [q.detach(), k.detach(), v.detach(), dy, None, None, None, hidden, highest, total, None, out]
    gradients = compute("LaserAttentionGradOperation", {"headNum": 4, "scaleValue": 0.3}, inputs, **EXACT)
    for mine, leaf in zip(gradients, (q, k, v)):
        torch.testing.assert_close(mine, leaf.grad)


def test_laser_attention_with_the_sequence_first_is_the_same() -> None:
    q, k, v, dy = (torch.randn(2, 3, 6, n, dtype=torch.float64) for n in (8, 10, 4, 4))

    def turned(heads: torch.Tensor) -> torch.Tensor:
        return heads.permute(2, 0, 1, 3).flatten(2).contiguous()

    param = {"headNum": 3, "scaleValue": 0.3}
    highest, total, _, out = compute("LaserAttentionOperation", param, [q, k, v], **EXACT)
    sbh = {**param, "inputLayout": "SBH"}
    again = compute("LaserAttentionOperation", sbh, [turned(one) for one in (q, k, v)], **EXACT)
    for mine, wanted in zip(again, (highest, total, None, turned(out))):
        if wanted is not None:
            torch.testing.assert_close(mine, wanted)
    rest = [None, None, None, None, highest, total, None]
    plain = compute("LaserAttentionGradOperation", param, [q, k, v, dy, *rest, out], **EXACT)
    given = [turned(one) for one in (q, k, v, dy)]
    gradients = compute("LaserAttentionGradOperation", sbh, [*given, *rest, turned(out)], **EXACT)
    for one, wanted in zip(gradients[:3], plain[:3]):
        torch.testing.assert_close(one, turned(wanted))


def test_parts_of_laser_attention_that_are_not_computed_are_refused() -> None:
    q = torch.ones(1, 1, 2, 4)
    with pytest.raises(OperatorError, match="pseShift has no reference computation"):
        compute("LaserAttentionOperation", {}, [q, q, q, q])
    with pytest.raises(OperatorError, match=r"is not \[s, b, 0 heads\]"):
        compute("LaserAttentionOperation", {"inputLayout": "SBH"}, [q[0], q[0], q[0]])


def test_partial_attention_is_joined() -> None:
    scores, value = torch.randn(4, 10, dtype=torch.float64), torch.randn(4, 10, 3, dtype=torch.float64)
    parts = [(scores[:, s], value[:, s]) for s in (slice(0, 6), slice(6, 10))]
    lse = torch.stack([s.logsumexp(-1) for s, _ in parts])
    out = torch.stack([(s.softmax(-1)[..., None] * v).sum(1) for s, v in parts])
    (joined,) = compute("FaUpdateOperation", {"sp": 2}, [lse + 500, out], **EXACT)
    torch.testing.assert_close(joined, (scores.softmax(-1)[..., None] * value).sum(1))


def test_hifloat8_codes_are_their_own_rounding() -> None:
    codes = torch.arange(256).to(torch.uint8)
    values = hifloat8.decode(codes)
    assert values[0x08] == 1.0
    finite = values.isfinite()
    assert torch.equal(hifloat8.encode(values[finite]), codes[finite])
    assert hifloat8.encode(torch.tensor([np.nan, np.inf, -np.inf, 1e9])).tolist() == [0x80, 0x6F, 0xEF, 0x6F]
    assert float(values[finite].abs().max()) == 32768.0
    assert float(values[values > 0].min()) == 2.0**-22


def test_hifloat8_rounds_halves_away_from_zero() -> None:
    # between 1 and 2 steps are 1/8
    out = hifloat8.decode(hifloat8.encode(torch.tensor([1.0625, -1.0625, 1.06, 20.0, 320.0])))
    assert out.tolist() == [1.125, -1.125, 1.0, 20.0, 384.0]
