"""Several draws of the noise of a tensor that one run calls wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from acc_pytest.diagnosis.draws import DRAWS, asks_for_draws, with_draws
from acc_pytest.diagnosis.measured_bound import Twice, held
from acc_pytest.diagnosis.recomputation import Recomputation


def test_noise_of_few_rows_may_be_off_by_as_much_as_draws_of_it_differ() -> None:
    """The largest of the noises is 6 times the smallest, and so much wider is the bound."""
    exact = torch.zeros(4)
    draws = [torch.full((4,), float(1 + min(draw, 5))) for draw in range(DRAWS)]
    found = Recomputation("wrong", 0.5, "it is off", 0.05, 0.1, "twice its noise")

    def again(error: float, made: Sequence[torch.Tensor] = draws) -> Recomputation:
        twice = Twice(exact, exact, "in bfloat16")
        return with_draws(replace(found, error=error), twice, exact, made)

    right = again(0.59)
    assert (right.outcome, right.why, right.allowed) == ("right", "", 0.1 * 6)
    assert right.reason == "twice its noise, times 6 for noise that 8 draws of it differ by"
    assert again(0.61).outcome == "wrong"
    assert again(0.09).outcome == "wrong", "what is wrong within this bound is so for its bias"
    assert again(0.59, [*draws[:-1], torch.zeros(3)]).outcome == "wrong", "another choice made another shape"
    assert again(0.59, draws[:-1]).outcome == "wrong"
    assert again(0.59, [*draws[:-1], exact]).outcome == "wrong", "without noise nothing is known"


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
    found = held(Twice(exact, exact.bfloat16(), "in bfloat16"), mine)
    assert asks_for_draws(found), found
    twice = Twice(exact, exact.bfloat16(), "in bfloat16")
    draws = [exact + 0.01 * one * unit] * DRAWS
    assert with_draws(found, twice, mine, draws).outcome == outcome
