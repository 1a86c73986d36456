"""Several draws of the noise of a tensor that one run calls wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from acc_pytest.diagnosis.measured_bound import Twice, judged_twice
from acc_pytest.diagnosis.recompute_torch import DRAWS, asks_for_draws, stored_as, with_draws


def noisy(exact: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    """A tensor each row of which is off by a share of it."""
    unit = torch.randn(exact.shape, generator=torch.Generator().manual_seed(seed))
    return exact + size * unit * exact.norm(dim=1, keepdim=True) / unit.norm(dim=1, keepdim=True)


def drawn(exact: torch.Tensor, sizes: Sequence[float]) -> list[torch.Tensor]:
    return [noisy(exact, size, 10 + number) for number, size in enumerate(sizes)]


SIZES = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.06, 0.06]


@pytest.mark.parametrize(
    ("error", "sizes", "outcome"),
    [
        (0.1, SIZES, "right"),
        (0.1, [0.01] * DRAWS, "wrong"),
        (0.1, SIZES[1:], "wrong"),  # too few draws
        (0.07, [size / 3 for size in SIZES], "wrong"),  # that draws differ by 6 times widens nothing
        (0.3, SIZES, "wrong"),
    ],
)
def test_noise_of_all_is_at_least_that_of_the_noisiest_draw(
    error: float, sizes: list[float], outcome: str
) -> None:
    """The run has noise of 1 %, of which mine may have 2, and of the noisiest draw too. By how much draws
    differ widens nothing: 7 times the noise is wrong beside draws of a third to twice of it."""
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    twice = Twice(exact, noisy(exact, 0.01, 2), "in bfloat16")
    mine = noisy(exact, error, 3).bfloat16()
    found = judged_twice(twice, mine)
    assert asks_for_draws(found), found
    again = with_draws(twice, mine, drawn(exact, sizes))
    assert again.outcome == outcome, again
    assert ("the noisiest of 8 draws" in again.reason) == (len(sizes) == DRAWS)


def test_a_zeroed_row_is_wrong_though_the_noise_of_a_massive_one_differs() -> None:
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    exact[0] *= 50
    twice = Twice(exact, exact.bfloat16(), "in bfloat16")
    mine = exact.bfloat16()
    mine[9] = 0
    found = judged_twice(twice, mine)
    assert asks_for_draws(found), found
    draws = []
    for number, size in enumerate(SIZES):
        draws.append(exact.clone())
        draws[-1][0] = noisy(exact, size, number)[0]
    again = with_draws(twice, mine, draws)
    assert again.outcome == "wrong"
    assert "rows are wrong; row [9]" in again.why


@pytest.mark.parametrize(("off", "outcome"), [(0.03, "right"), (0.08, "wrong")])
def test_a_row_may_have_the_noise_of_its_worst_draw(off: float, outcome: str) -> None:
    """One row of a thousand is of sums that cancel: its noise is 1 % in some draws, and it may have 4 %."""
    torch.manual_seed(3)
    exact = torch.randn(1000, 64)
    unit = torch.randn(1000, 64)
    unit *= exact.norm(dim=1, keepdim=True) / unit.norm(dim=1, keepdim=True)
    one = torch.zeros(1000, 1)
    one[7] = 1.0
    mine = (exact + off * one * unit).bfloat16()
    found = judged_twice(Twice(exact, exact.bfloat16(), "in bfloat16"), mine)
    assert asks_for_draws(found), found
    twice = Twice(exact, exact.bfloat16(), "in bfloat16")
    draws = [exact + 0.01 * one * unit] * DRAWS
    assert with_draws(twice, mine, draws).outcome == outcome


def test_a_rounded_computation_is_stored_as_mine_where_that_is_coarser() -> None:
    exact = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(stored_as(exact, exact.bfloat16()), exact.bfloat16())
    assert stored_as(exact.bfloat16(), exact).dtype == torch.bfloat16
    assert stored_as(exact, torch.zeros(4, dtype=torch.int8)) is exact
