from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute

ROPE = "RopeOperation"
EXACT: dict[str, Any] = {"accumulate": torch.float64, "round_outputs": False}
LENGTH = torch.tensor([3], dtype=torch.int32)


def tables(tokens: int, size: int, *, pairs: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.rand(tokens, size // 2, dtype=torch.float64) * 6
    angle = angle.repeat_interleave(2, 1) if pairs else angle.repeat(1, 2)
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("form", [(3, 16), (3, 2, 8), (1, 3, 2, 8)])
def test_halves_turn_as_complex_numbers(form: tuple[int, ...]) -> None:
    q, k = torch.randn(form, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
    cos, sin = tables(3, 8)
    for x, out in zip((q, k), compute(ROPE, {"rotaryCoeff": 2}, [q, k, cos, sin, LENGTH], **EXACT)):
        assert out.shape == x.shape
        heads = x.reshape(3, -1, 8)
        turned = torch.complex(heads[..., :4], heads[..., 4:]) * torch.complex(cos, sin)[:, None, :4]
        torch.testing.assert_close(out.reshape(3, -1, 8), torch.cat((turned.real, turned.imag), -1))


def test_pairs_turn_as_complex_numbers() -> None:
    x = torch.randn(3, 16, dtype=torch.float64)
    cos, sin = tables(3, 8, pairs=True)
    out, _ = compute(ROPE, {"rotaryCoeff": 8}, [x, x, cos, sin, LENGTH], **EXACT)
    number = torch.view_as_complex(x.reshape(3, 2, 4, 2)) * torch.complex(cos, sin)[:, None, ::2]
    torch.testing.assert_close(out, torch.view_as_real(number).reshape(3, 16))


def test_a_second_half_with_cosine_one_stays_as_it_is() -> None:
    x = torch.randn(3, 16, dtype=torch.float64)
    cos, sin = tables(3, 8)
    cos, sin = torch.cat((cos, torch.ones(3, 8)), 1), torch.cat((sin, torch.zeros(3, 8)), 1)
    out, _ = compute(ROPE, {}, [x, x, cos, sin, LENGTH], **EXACT)
    assert torch.equal(out[:, 8:], x[:, 8:])
    half, _ = compute(ROPE, {"rotaryCoeff": 2}, [x[:, :8], x[:, :8], cos[:, :8], sin[:, :8], LENGTH], **EXACT)
    torch.testing.assert_close(out[:, :8], half)


@given(st.sampled_from([2, 4, 8]), st.integers(1, 4), st.integers(1, 3))
def test_rotation_keeps_lengths(coefficient: int, tokens: int, heads: int) -> None:
    x = torch.randn(tokens, heads * 8, dtype=torch.float64)
    angle = torch.full((tokens, 8), 0.7, dtype=torch.float64)
    out, _ = compute(ROPE, {"rotaryCoeff": coefficient}, [x, x, angle.cos(), angle.sin(), LENGTH], **EXACT)
    torch.testing.assert_close(out.norm(dim=1), x.norm(dim=1))


def test_what_does_not_fit() -> None:
    x, cos = torch.ones(3, 16), torch.ones(3, 8)
    with pytest.raises(OperatorError, match="rotaryCoeff is 3; allowed are 2, 4 and the head size 8"):
        compute(ROPE, {"rotaryCoeff": 3}, [x, x, cos, cos, LENGTH])
    with pytest.raises(OperatorError, match=r"key \[3, 12\] is not 3 tokens of heads of 8 elements"):
        compute(ROPE, {}, [x, x[:, :12], cos, cos, LENGTH])
    with pytest.raises(OperatorError, match="cos and sin have different shapes"):
        compute(ROPE, {}, [x, x, cos, cos[:2], LENGTH])


def test_rope_before_a_concatenation() -> None:
    q, tail = torch.randn(3, 16, dtype=torch.float64), torch.randn(3, 2, 5, dtype=torch.float64)
    cos, sin = tables(3, 8)
    (out,) = compute("RopeQConcatOperation", {}, [q, cos, sin, tail], **EXACT)
    turned, _ = compute(ROPE, {"rotaryCoeff": 2}, [q, q, cos, sin, LENGTH], **EXACT)
    torch.testing.assert_close(out, torch.cat((turned.reshape(3, 2, 8), tail), -1))


def test_frequencies_by_sequence() -> None:
    positions = torch.tensor([0, 1, 5], dtype=torch.int32)
    frequency = torch.tensor([[1.0, 0.5], [0.25, 0.125]])
    inputs = [positions, frequency, torch.tensor([2, 1], dtype=torch.int32)]
    sin, cos = compute("DynamicNTKOperation", {"outputType": 1}, inputs)
    assert sin.dtype == cos.dtype == torch.float16
    assert sin.shape == (3, 4)
    assert sin[1].tolist() == pytest.approx([math.sin(1), math.sin(0.5)] * 2, rel=2**-11)
    assert cos[2].tolist() == pytest.approx([math.cos(1.25), math.cos(0.625)] * 2, rel=2**-11)


def test_the_gradient_is_the_kernels_and_not_the_derivative() -> None:
    g = torch.randn(3, 8, dtype=torch.float64)
    cos, sin = torch.randn(4, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
    out, _ = compute("RopeGradOperation", {"qSeqLen": [2, 1]}, [g, g, cos, sin], **EXACT)
    rows = [0, 1, 0]
    factor = cos[rows] + torch.cat((sin[rows][:, 4:], -sin[rows][:, :4]), 1)
    torch.testing.assert_close(out, g * factor)
