from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute

ELEWISE = "ElewiseOperation"


def run(kind: int, *inputs: torch.Tensor, soc: str = "Ascend910B", **param: object) -> torch.Tensor:
    (out,) = compute(ELEWISE, {"elewiseType": kind, **param}, inputs, soc=soc)
    return out


@pytest.mark.parametrize(
    ("kind", "function"), [(8, operator.add), (9, operator.mul), (10, operator.truediv), (15, operator.sub)]
)
def test_arithmetic_broadcasts_and_rounds_once(
    kind: int, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    x, y = torch.randn(3, 1, 4).half(), torch.randn(5, 1).half()
    assert torch.equal(run(kind, x, y), function(x.float(), y.float()).half())


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_integers_stay_exact(values: list[int]) -> None:
    x = torch.tensor(values)
    assert torch.equal(run(8, x, x), x + x)


def test_quantisation_rounds_half_to_even_and_saturates() -> None:
    x = torch.tensor([0.5, 1.5, -2.5, 300.0, -300.0]).half()
    assert run(6, x).tolist() == [0, 2, -2, 127, -128]
    # only the 950 reads scale and offset
    quant = {"inputScale": 2.0, "inputOffset": 1}
    assert run(6, x, quantParam=quant).tolist() == [0, 2, -2, 127, -128]
    assert run(6, x, quantParam=quant, soc="Ascend950").tolist() == [2, 4, -4, 127, -128]


def test_quantisation_by_channel_adds_its_offset_before_rounding() -> None:
    x, scale = torch.tensor([[1.0, 1.0]]).half(), torch.tensor([2.0, 0.3]).half()
    assert run(17, x, scale, torch.tensor([1, -2]).char()).tolist() == [[2, 1]]
    assert run(17, x, scale).tolist() == [[0, 3]]
    q = torch.tensor([[10, -128]]).char()
    assert run(18, q, scale, torch.tensor([1, 2]).char()).tolist() == [[18.0, -39.0]]
    big = torch.tensor([60000.0]).half()
    assert run(18, torch.tensor([100]).char(), big).item() == 65504.0


@pytest.mark.parametrize("asymmetric", [False, True])
def test_dynamic_quantisation_gives_each_row_back(asymmetric: bool) -> None:
    x = torch.randn(6, 32).half()
    param = {"elewiseType": 19, "quantParam": {"asymmetric": asymmetric}}
    z, scale, *offset = compute(ELEWISE, param, [x])
    assert z.dtype == torch.int8
    assert scale.shape == (6,)
    value = (z.double() - (offset[0].double()[:, None] if asymmetric else 0)) * scale[:, None]
    # half a step; the ends of an asymmetric row may lie on a half and saturate
    assert bool(((value - x.double()).abs() <= 0.502 * scale[:, None]).all())


@pytest.mark.parametrize(("code", "largest"), [(35, 57344.0), (36, 448.0)])
def test_dynamic_quantisation_to_eight_bit_floats(code: int, largest: float) -> None:
    x = torch.randn(4, 16).half()
    z, scale = compute(ELEWISE, {"elewiseType": 19, "outTensorType": code}, [x], soc="Ascend950")
    assert z.float().abs().amax(-1).tolist() == [largest] * 4
    torch.testing.assert_close(z.float() * scale[:, None], x.float(), rtol=2**-3, atol=2**-6)


def test_products_saturate_on_the_older_chips() -> None:
    x = torch.tensor([60000.0]).half()
    assert run(9, x, x).item() == float("inf")
    assert run(9, x, x, soc="Ascend310P").item() == 65504.0


def test_operands_that_do_not_broadcast() -> None:
    with pytest.raises(OperatorError, match=r"x \[2\] and y \[3\] do not broadcast"):
        run(8, torch.ones(2), torch.ones(3))
    with pytest.raises(OperatorError, match="parameter elewiseType is missing"):
        compute(ELEWISE, {}, [torch.ones(2)])


ACTIVATION = "ActivationOperation"
EXACT: dict[str, Any] = {"accumulate": torch.float64, "round_outputs": False}


def test_variants() -> None:
    x = torch.linspace(0.1, 4, 20, dtype=torch.float64)
    (exact,) = compute(ACTIVATION, {"activationType": 2, "geluMode": 1}, [x], **EXACT)
    torch.testing.assert_close(exact, F.gelu(x))
    (scaled,) = compute(ACTIVATION, {"activationType": 4, "scale": 2.0}, [x], **EXACT)
    torch.testing.assert_close(scaled, x * torch.sigmoid(2 * x))
    (log,) = compute(ACTIVATION, {"activationType": 5}, [x], **EXACT)
    torch.testing.assert_close(log, x.log())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_swiglu_and_its_gradient(dim: int) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    gate, up = x.chunk(2, dim)
    y = F.silu(gate) * up
    dy = torch.randn_like(y)
    y.backward(dy)
    (out,) = compute(ACTIVATION, {"activationType": 6, "dim": dim}, [x.detach()], **EXACT)
    torch.testing.assert_close(out, y.detach())
    (dx,) = compute(ACTIVATION, {"activationType": 7, "dim": dim}, [dy, x.detach()], **EXACT)
    torch.testing.assert_close(dx, x.grad)


def test_wrong_shapes() -> None:
    with pytest.raises(OperatorError, match="dimension -1 of x has odd size 3"):
        compute(ACTIVATION, {"activationType": 6}, [torch.ones(2, 3)])
    with pytest.raises(OperatorError, match="x has no dimension 2"):
        compute(ACTIVATION, {"activationType": 6, "dim": 2}, [torch.ones(2, 4)])
    with pytest.raises(OperatorError, match="is not half of x"):
        compute(ACTIVATION, {"activationType": 7}, [torch.ones(2, 3), torch.ones(2, 4)])
    with pytest.raises(OperatorError, match="activationType is missing"):
        compute(ACTIVATION, {}, [torch.ones(2)])
    with pytest.raises(OperatorError, match=r"activationType must be one of 1 .relu.*, got 10"):
        compute(ACTIVATION, {"activationType": 10}, [torch.ones(2)])


def test_softmax_refuses_axes_apart() -> None:
    for axes in ([0, 2], [], [3]):
        with pytest.raises(OperatorError, match="must name neighbouring axes"):
            compute("SoftmaxOperation", {"axes": axes}, [torch.ones(2, 3, 4)])


ROPE = "RopeOperation"
LENGTH = torch.tensor([3], dtype=torch.int32)


def tables(tokens: int, size: int, *, pairs: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.rand(tokens, size // 2, dtype=torch.float64) * 6
    angle = angle.repeat_interleave(2, 1) if pairs else angle.repeat(1, 2)
    return angle.cos(), angle.sin()


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


def test_frequencies_by_sequence() -> None:
    positions = torch.tensor([0, 1, 5], dtype=torch.int32)
    frequency = torch.tensor([[1.0, 0.5], [0.25, 0.125]])
    inputs = [positions, frequency, torch.tensor([2, 1], dtype=torch.int32)]
    sin, cos = compute("DynamicNTKOperation", {"outputType": 1}, inputs)
    assert sin.dtype == cos.dtype == torch.float16
    assert sin.shape == (3, 4)
    assert sin[1].tolist() == pytest.approx([math.sin(1), math.sin(0.5)] * 2, rel=2**-11)
    assert cos[2].tolist() == pytest.approx([math.cos(1.25), math.cos(0.625)] * 2, rel=2**-11)
