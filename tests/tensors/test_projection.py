"""Projections of weights: products are checked with them, and errors estimated."""

from __future__ import annotations

import math

import pytest
import torch

from acc_pytest.tensors.digest import splitmix64
from acc_pytest.tensors.projection import WIDTH, projection, signs


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_signs_are_the_bits_of_splitmix64() -> None:
    wanted = [[1 - 2 * (splitmix64(row) >> bit & 1) for bit in range(WIDTH)] for row in range(300)]
    assert signs(300).tolist() == wanted
    assert signs(0).shape == (0, WIDTH)
    assert torch.equal(signs(7), signs(5000)[:7])


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (300, 4000)])
def test_a_product_is_the_same_by_the_projection(shape: tuple[int, int]) -> None:
    """The last weight is more than a piece. P is stored in float32: each term is off by 2^-24 of itself."""
    weight, x = normal(*shape), normal(3, shape[1], seed=2)
    found = x @ projection(weight).double()
    torch.testing.assert_close(
        found, x @ weight.T @ signs(len(weight)), rtol=0, atol=2**-24 * terms(x, weight)
    )


def terms(x: torch.Tensor, weight: torch.Tensor) -> float:
    """The largest sum of the sizes of terms of any entry."""
    return float((x.abs() @ (weight.T @ signs(len(weight))).abs()).max())


def test_the_square_of_an_error_is_estimated_without_bias() -> None:
    """Of 200 rows of 50 errors the estimate has a relative standard deviation of sqrt(2 / (200 * 8))."""
    error = normal(200, 50, seed=3)
    estimate = float((error @ signs(50)).square().mean(1).sum())
    assert estimate == pytest.approx(float(error.square().sum()), rel=5 * math.sqrt(2 / (200 * WIDTH)))


def test_a_weight_of_16_bits_is_projected_as_its_values() -> None:
    weight = normal(40, 30).bfloat16()
    assert torch.equal(projection(weight), projection(weight.double()))
