from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute

ELEWISE = "ElewiseOperation"


def run(kind: int, *inputs: torch.Tensor, soc: str = "Ascend910B", **param: object) -> torch.Tensor:
    (out,) = compute(ELEWISE, {"elewiseType": kind, **param}, inputs, soc=soc)
    return out


@pytest.mark.parametrize(
    ("kind", "function"), [(3, torch.cos), (4, torch.sin), (5, operator.neg), (20, torch.tanh)]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_functions_of_one_operand(
    kind: int, function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    x = (torch.randn(4, 8) * 3).to(dtype)
    exact = function(x.double())
    torch.testing.assert_close(run(kind, x).double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


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


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (13, operator.lt),
        (14, operator.gt),
        (16, operator.eq),
        (11, torch.logical_and),
        (12, torch.logical_or),
    ],
)
def test_comparisons_give_zeros_and_ones(
    kind: int, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    x, y = torch.randint(-1, 2, (2, 40)).char()
    out = run(kind, x, y)
    assert out.dtype == torch.int8
    assert torch.equal(out, function(x, y).char())
    assert torch.equal(run(7, x), (~x.bool()).char())


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(0, torch.float32), (1, torch.float16), (3, torch.int32), (9, torch.int64), (27, torch.bfloat16)],
)
def test_casts(code: int, dtype: torch.dtype) -> None:
    x = torch.tensor([-1.75, 0.0, 2.999])
    out = run(1, x, outTensorType=code)
    assert out.dtype == dtype
    assert torch.equal(out, x.to(dtype))
    assert run(1, x).dtype == torch.float32


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


def test_a_row_of_zeros_has_scale_zero() -> None:
    z, scale = compute(ELEWISE, {"elewiseType": 19}, [torch.zeros(1, 4).half()])
    assert z.tolist() == [[0, 0, 0, 0]]
    assert scale.tolist() == [0.0]


def test_products_saturate_on_the_older_chips() -> None:
    x = torch.tensor([60000.0]).half()
    assert run(9, x, x).item() == float("inf")
    assert run(9, x, x, soc="Ascend310P").item() == 65504.0


def test_operands_that_do_not_broadcast() -> None:
    with pytest.raises(OperatorError, match=r"x \[2\] and y \[3\] do not broadcast"):
        run(8, torch.ones(2), torch.ones(3))
    with pytest.raises(OperatorError, match="parameter elewiseType is missing"):
        compute(ELEWISE, {}, [torch.ones(2)])
