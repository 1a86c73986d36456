from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
from acc_pytest.tensors import hifloat8

RMS, LAYER = "RmsNormOperation", "LayerNormOperation"
EXACT: dict[str, Any] = {"accumulate": torch.float64, "round_outputs": False}


def rms(x: torch.Tensor, eps: float, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 5, 8, dtype=torch.float64)


def test_dynamic_quantisation_gives_the_row_back() -> None:
    x = torch.randn(4, 16).half()
    gamma, beta = torch.ones(16).half(), torch.randn(16).half()
    for name in (RMS, LAYER):
        for kind, asymmetric in ((1, False), (2, True)):
            norm = {
                "layerType": 1,
                "normParam": {"quantType": 2, "dynamicQuantType": kind, "beginNormAxis": 1},
            }
            quantised, scale, *offset = compute(name, norm, [x, gamma, beta])
            assert len(offset) == asymmetric
            value = quantised.double() - (offset[0][:, None] if offset else 0)
            plain = {"layerType": 1, "normParam": {"beginNormAxis": 1}}
            inputs = [x, gamma, beta] if name == LAYER else [x, gamma]
            (normed,) = compute(name, plain, inputs, **EXACT)
            expected = normed if name == LAYER else normed + beta
            error = (value * scale[:, None] - expected).abs()
            assert bool((error <= 0.5001 * scale[:, None]).all())


def test_a_gamma_that_does_not_fit(x: torch.Tensor) -> None:
    with pytest.raises(OperatorError, match=r"gamma \[7\] does not fit x \[3, 5, 8\]"):
        compute(RMS, {"layerType": 1}, [x, torch.ones(7)])
    with pytest.raises(OperatorError, match=r"gamma \[7\] does not fit x"):
        compute(LAYER, {"layerType": 1, "normParam": {"beginNormAxis": 2}}, [x, torch.ones(7), torch.ones(7)])
    with pytest.raises(OperatorError, match=r"no dimension 3 .beginNormAxis"):
        compute(LAYER, {"layerType": 1, "normParam": {"beginNormAxis": 3}}, [x, torch.ones(8), torch.ones(8)])
    with pytest.raises(OperatorError, match="quantType 3 is in ATB's enumeration but in none of its kernels"):
        compute(RMS, {"layerType": 1, "normParam": {"quantType": 3}}, [x, torch.ones(8)])


def test_a_strided_view_is_normalised() -> None:
    x, gamma, beta = torch.randn(4, 8), torch.randn(8), torch.randn(8)
    strides, offset = torch.tensor([4, 1]), torch.tensor([2])
    view = x.as_strided((4, 8), (4, 1), 2)
    (out,) = compute("RmsNormWithStrideOperation", {"layerType": 1}, [x, gamma, strides, offset])
    torch.testing.assert_close(out, rms(view, 1e-5, gamma))
    norm = {"layerType": 1, "normParam": {"beginNormAxis": 1}}
    (out,) = compute("LayerNormWithStrideOperation", norm, [x, gamma, beta, strides, offset])
    torch.testing.assert_close(out, F.layer_norm(view, (8,), gamma, beta))
    with pytest.raises(OperatorError, match="reach outside x"):
        compute("RmsNormWithStrideOperation", {"layerType": 1}, [x, gamma, torch.tensor([9, 1]), offset])


def test_norms_around_other_work() -> None:
    x, w = torch.randn(3, 8).double(), torch.randn(8).double()
    (out,) = compute("CohereLayerNormOperation", {"epsilon": 1e-4}, [x, w], **EXACT)
    torch.testing.assert_close(out, F.layer_norm(x, (8,), w, None, 1e-4))
    residual, indices = torch.randn(5, 8).double(), torch.tensor([4, 0, 4], dtype=torch.int32)
    y, total = compute("GatherPreRmsNormOperation", {}, [x, residual, indices, w[None]], **EXACT)
    torch.testing.assert_close(total, x + residual[[4, 0, 4]])
    torch.testing.assert_close(y, rms(total, 1e-5, w))


def test_norm_rope_reshape_writes_both_parts_into_the_slot() -> None:
    x, gamma, key = torch.randn(2, 1, 4), torch.randn(4), torch.randn(2, 2)
    angle = torch.rand(2, 1).repeat(1, 2)
    cache = torch.zeros(2, 3, 1, 6)
    slots = torch.tensor([4, 0], dtype=torch.int32)
    inputs = [x, gamma, key, angle.cos(), angle.sin(), slots, cache]
    (out,) = compute("NormRopeReshapeOperation", {"rotaryCoeff": 2}, inputs)
    turned = key * angle.cos() + torch.stack((-key[:, 1], key[:, 0]), 1) * angle.sin()
    rows = torch.cat((rms(x[:, 0], 1e-5, gamma), turned), 1)
    torch.testing.assert_close(out.reshape(6, 6)[[4, 0]], rows)
    assert out.reshape(6, 6)[[1, 2, 3, 5]].abs().sum() == 0


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
