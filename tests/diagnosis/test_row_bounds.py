"""row_bounds: of how many independent roundings is a bias the mean?"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from acc_pytest.diagnosis.measured_bound import fewest_samples, roundings
from acc_pytest.judging.tolerance import scatter_of

ROWS, CHANNELS, DRAWS = 48, 32, 300


def even(draw: torch.Generator) -> torch.Tensor:
    return torch.randn(ROWS, CHANNELS, generator=draw, dtype=torch.float64)


def with_large_channel(draw: torch.Generator) -> torch.Tensor:
    return even(draw) * torch.tensor([100.0] + [1.0] * (CHANNELS - 1), dtype=torch.float64)


def with_rows_alike(draw: torch.Generator) -> torch.Tensor:
    return even(draw)[:1].expand(ROWS, CHANNELS)


def with_two_rows(draw: torch.Generator) -> torch.Tensor:
    return even(draw)[:2].repeat(ROWS // 2, 1)


def bias_of_rounding(exact: torch.Tensor) -> tuple[float, float]:
    """How much too large rounding to bfloat16 makes rows on average, and the error of a value, as a share."""
    error = exact.bfloat16().double() - exact
    sizes = exact.square().sum(1)
    return float(((error * exact).sum(1) / sizes).mean()), float((error.square().sum(1) / sizes).mean())


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (even, ROWS * CHANNELS),
        (with_large_channel, ROWS),
        (with_rows_alike, CHANNELS),
        (with_two_rows, 2 * CHANNELS),
    ],
)
def test_the_spread_of_the_bias_is_that_of_so_many_roundings(
    make: Callable[[torch.Generator], torch.Tensor], count: int
) -> None:
    """Against rounding itself. Squares of normal values weigh unevenly, a factor of 3 in the count; beside a
    large channel the others are a few more. The spread of 300 draws is known to 1 / sqrt(600), 4 %."""
    draw = torch.Generator().manual_seed(11)
    drawn = [make(draw) for _ in range(DRAWS)]
    biases, squares = zip(*map(bias_of_rounding, drawn))
    measured = float(torch.tensor(biases).std())
    counted = sum(roundings(one.bfloat16()) for one in drawn) / DRAWS
    assert count / 4 <= counted <= 1.25 * count
    expected = math.sqrt(sum(squares) / DRAWS / counted)
    assert 1 / 1.5 < measured / expected < 1.5


def test_there_is_one_rounding_at_least() -> None:
    assert roundings(torch.zeros(4, 8)) == 1.0
    assert roundings(torch.tensor([[3.0, 0.0], [3.0, 0.0]])) == 1.0
    assert roundings(torch.tensor([[3.0, 0.0], [3.0, 0.0], [4.0, 0.0]])) == 2.0


def test_a_norm_of_normal_values_has_as_many_samples_as_numbers_and_one_channel_few() -> None:
    draw = torch.Generator().manual_seed(5)
    count = ROWS * CHANNELS
    assert 0.9 * count < fewest_samples(even(draw).bfloat16(), count) <= count
    assert fewest_samples(with_large_channel(draw).bfloat16(), count) <= 4 * ROWS


def test_few_roundings_scatter_by_the_most_that_one_can_be_off() -> None:
    alike = torch.tensor([[3.0, 0.0]]).expand(50, 2)
    assert 2.3 < scatter_of(fewest_samples(alike, 100)) <= math.sqrt(6)
    assert fewest_samples(alike, 5) == 5
    assert fewest_samples(torch.tensor(1.0), 1) == 1
