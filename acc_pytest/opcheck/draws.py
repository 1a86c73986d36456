"""Random operators: which outputs are drawn, which other draw is as right, and whether two samples are alike.

Both operators take C's random numbers after a seed, so a draw can be repeated and is judged element by
element. Where the device had other numbers, only the distribution can be: the two-sample test of
Kolmogorov and Smirnov, which is what ATB's suite has for such operators (it declares none).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from ..operators.sampling import rand, running_sums

MULTINOMIAL, TOPK_TOPP = "MultinomialOperation", "TopkToppSamplingOperation"
_FROM_SEEDS = (0, 1)
"""Values of `topkToppSamplingType` that draw from seeds; the others are given their noise."""

NEAR = 2.0**-10
"""How near a random number and a running sum have to be for either side to be right."""


def is_drawn(operator: str, param: Mapping[str, Any], number: int) -> bool:
    """Whether output `number` depends on random numbers that no input holds."""
    if operator == MULTINOMIAL:
        return number == 0
    return operator == TOPK_TOPP and param["topkToppSamplingType"] in _FROM_SEEDS and number <= 1


def nearest_valid_draws(
    probs: torch.Tensor, param: Mapping[str, Any], golden: torch.Tensor, mine: torch.Tensor
) -> torch.Tensor:
    """`golden` places of MultinomialOperation, those of mine where the random number lies at an edge of them.

    The kernel asks for a sum that is not below the number, its reference for one above it, and both round.
    """
    sums = torch.nn.functional.pad(running_sums(probs).double(), (1, 0))
    inside = (mine >= 0) & (mine < probs.shape[-1])
    place = mine.long().clamp(0, probs.shape[-1] - 1)
    numbers = torch.tensor(list(islice(rand(param["randSeed"]), mine.shape[-1])), dtype=torch.float64)
    edges = (sums.gather(-1, place), sums.gather(-1, place + 1))
    near = ((edges[0] - numbers).abs() < NEAR) | ((edges[1] - numbers).abs() < NEAR)
    return torch.where(inside & near, mine, golden)


def compared(
    operator: str, number: int, probs: torch.Tensor, golden: torch.Tensor, mine: torch.Tensor
) -> dict[str, float]:
    """Output `number` of both sides, all rows together, as samples; `probs` is what was drawn from.

    `ks_p_value` that they are of one distribution, `impossible_draws`: values of mine that nobody could draw,
    `mean_shift`: difference of the means in standard errors, of 30 draws and more.
    """
    # all rows of MultinomialOperation see the same numbers, so only its columns are independent
    draws = mine.shape[-1] if operator == MULTINOMIAL and mine.ndim > 1 else mine.numel()
    a, b = golden.double().flatten(), mine.double().flatten()
    numbers = {
        "ks_p_value": p_value(a.tolist(), b.tolist(), draws),
        "impossible_draws": float(_impossible(probs, number, mine)),
    }
    if draws >= _ENOUGH:
        error = math.sqrt((float(a.var()) + float(b.var())) / draws)
        distance = abs(float(a.mean() - b.mean()))
        numbers["mean_shift"] = distance / error if error else (math.inf if distance else 0.0)
    return numbers


_ENOUGH = 30


def _impossible(probs: torch.Tensor, number: int, mine: torch.Tensor) -> int:
    """How many values of mine are no place with a probability, or no probability of their row."""
    rows = mine.reshape(len(probs), -1)
    if number:
        return int((rows[..., None] != probs[:, None].to(rows.dtype)).all(-1).sum())
    inside = (rows >= 0) & (rows < probs.shape[-1])
    chance = probs.gather(-1, rows.long().clamp(0, probs.shape[-1] - 1))
    return int((~inside | (chance <= 0)).sum())


def p_value(a: Sequence[float], b: Sequence[float], draws: int) -> float:
    """How likely two samples of `draws` from one distribution differ at least as much as `a` and `b` do.

    The largest distance of their distribution functions, and the exact law of it for samples of one size
    (Gnedenko and Korolyuk): 2 sum (-1)^(j + 1) C(2n, n - j k) / C(2n, n). Equal values make it too careful.
    """
    if not draws or not a:
        return 1.0
    steps = math.ceil(_distance(a, b) * draws - 1e-9)
    if steps <= 0:
        return 1.0
    total = 0.0
    for j in range(1, draws // steps + 1):
        log = (
            2 * math.lgamma(draws + 1)
            - math.lgamma(draws - j * steps + 1)
            - math.lgamma(draws + j * steps + 1)
        )
        total += (-1) ** (j + 1) * math.exp(log)
    return min(max(2 * total, 0.0), 1.0)


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    samples = [torch.tensor(sorted(sample), dtype=torch.float64) for sample in (a, b)]
    values = torch.cat(samples).sort().values
    below = [torch.searchsorted(sample, values, right=True).double() / len(sample) for sample in samples]
    return float((below[0] - below[1]).abs().max())
