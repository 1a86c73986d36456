"""Mine beside an operator computed twice: what rounding was measured to do decides, not what it may do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from acc_pytest.errors import OperatorError
from acc_pytest.ge_operators import Unrounded
from acc_pytest.judging.tolerance import scatter_of
from acc_pytest.reference.modules import DRAWS, chosen, stored_as, with_draws
from acc_pytest.reference.recomputation import Recomputation
from acc_pytest.reference.rows import fewest_samples, roundings
from acc_pytest.reference.twice import Twice, hold

FINE = torch.randn(64, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ROUNDED = FINE.bfloat16()
NOISE = float((ROUNDED.double() - FINE).norm() / FINE.norm())


def judged(mine: torch.Tensor, fine: torch.Tensor = FINE, rounded: torch.Tensor = ROUNDED) -> Recomputation:
    twice = Twice.of(fine, rounded, "told how")
    return chosen(twice, mine) or hold(twice, mine)


def off(times: float) -> torch.Tensor:
    """Mine, off by so many times the noise beside its own rounding."""
    other = torch.randn(FINE.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (FINE + times * NOISE * FINE.norm() / other.norm() * other).bfloat16()


def test_what_is_rounded_as_the_operator_is_is_right() -> None:
    found = judged(ROUNDED)
    assert found.outcome == "right"
    assert found.error == found.noise == pytest.approx(NOISE)
    scatter = math.exp(3.72 / math.sqrt(FINE.numel()))
    assert found.allowed == pytest.approx(2 * scatter * NOISE)
    assert "told how" in found.reason


@pytest.mark.parametrize(("times", "said"), [(0.5, "right"), (1.5, "right"), (2.0, "wrong"), (3.0, "wrong")])
def test_a_fault_of_twice_the_noise_is_wrong(times: float, said: str) -> None:
    assert judged(off(times)).outcome == said


def test_storing_may_round_where_every_value_could_be_held() -> None:
    whole = FINE.bfloat16().double()
    assert judged(whole.bfloat16(), whole, whole.bfloat16()).allowed == pytest.approx(2**-8 / math.sqrt(3))


def test_a_wrong_row_is_seen_beside_a_row_of_large_values() -> None:
    fine = FINE.clone()
    fine[0] *= 1e4
    mine = fine.bfloat16()
    mine[7] = 0
    found = judged(mine, fine, fine.bfloat16())
    assert found.outcome == "wrong"
    assert found.error is not None
    assert found.allowed is not None
    assert found.error < found.allowed, "the whole tensor hides it"
    assert "1 of 64 rows are wrong; row [7] is 1 off" in found.detail


def test_rows_are_those_of_the_last_dimension() -> None:
    shape = (32, 2, 128)
    mine = ROUNDED.clone().reshape(shape)
    mine[5, 1] *= 1.2
    found = judged(mine, FINE.reshape(shape), ROUNDED.reshape(shape))
    assert found.outcome == "wrong"
    small = FINE.reshape(shape).clone()
    small[5] *= 0.01
    mine = small.bfloat16()
    mine[5, 1] *= 1.2
    said = judged(mine, small, small.bfloat16())
    assert (said.outcome, said.why[:39]) == ("wrong", "1 of 64 rows are wrong; row [5, 1] is 0")


@pytest.mark.parametrize(("scale", "said"), [(1.002, "too large"), (0.998, "too small")])
def test_a_result_that_is_two_thousandths_off_is_seen_by_its_bias(scale: float, said: str) -> None:
    """Its error is 1.6 times the noise of bfloat16, u / sqrt(6), and within twice that."""
    found = judged((FINE * scale).bfloat16())
    assert found.outcome == "wrong"
    assert found.error is not None
    assert found.allowed is not None
    assert found.error < found.allowed
    assert found.bias == pytest.approx(scale - 1, abs=4 * 2**-8 / math.sqrt(3 * FINE.numel()))
    assert said in found.detail


def test_a_head_that_is_one_percent_off_is_named_by_its_channels() -> None:
    """Of the whole it is a sixteenth of a percent, less than u/4 in bfloat16."""
    mine = FINE.clone()
    mine[:, 32:40] *= 1.01
    found = judged(mine.bfloat16())
    assert found.outcome == "wrong"
    assert found.bias is not None
    assert found.bias_allowed is not None
    assert found.bias < found.bias_allowed
    assert found.detail.startswith("channels 32 to 39 are 0.01")


def test_noise_that_all_rows_share_may_have_a_direction() -> None:
    """That of weights of whole numbers: here each channel is up to 0.8 % too large in all rows."""
    drawn = torch.rand(FINE.shape[-1], generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mine, noise = FINE * (1 + 0.008 * drawn), FINE * (1 + 0.008 * (drawn - 0.5))
    found = hold(replace(Twice.of(FINE, noise.bfloat16(), "told how"), shared=True), mine.bfloat16())
    assert (found.outcome, found.bias) == ("right", None)
    assert hold(Twice.of(FINE, noise.bfloat16(), "told how"), mine.bfloat16()).outcome == "wrong"
    twice = hold(replace(Twice.of(FINE, noise.bfloat16(), "told how"), shared=True), (FINE * 1.02).bfloat16())
    assert twice.outcome == "wrong"


def test_rounding_to_zero_is_seen_by_its_bias() -> None:
    """What is cut off is up to 2u of a value, half of it on average, so that a mean of 0.7u is missing."""
    towards_zero = (FINE.float().view(torch.int32) & -65536).view(torch.float32).bfloat16()
    found = judged(towards_zero)
    assert found.outcome == "wrong"
    assert "too small" in found.detail


def test_what_the_other_computation_has_of_a_bias_mine_may_have_too() -> None:
    assert judged((FINE * 1.002).bfloat16(), rounded=(FINE * 1.002).bfloat16()).outcome == "right"


def test_one_percent_beside_a_row_whose_rounding_is_all_of_the_noise_is_seen() -> None:
    """The first row is 1,000 times the others, and what its halves cancel makes 4 % of noise there."""
    fine = FINE.clone()
    fine[0] *= 1e3
    rounded = fine.clone()
    draw = torch.Generator().manual_seed(2)
    rounded[0] *= 1 + 0.04 * torch.randn(FINE.shape[1], generator=draw, dtype=torch.float64)
    mine = fine + 0.01 * torch.randn(FINE.shape, generator=draw, dtype=torch.float64) * fine.abs()
    mine[0] = fine[0]
    found = hold(
        Twice.of(fine, torch.cat([rounded[:1], fine[1:].bfloat16()]).double(), "told how"), mine.bfloat16()
    )
    assert found.outcome == "wrong"
    assert found.error is not None
    assert found.allowed is not None
    assert found.error < found.allowed
    assert found.detail.startswith("a typical row is 0.0")


def test_where_the_other_computation_overflows_the_derived_bound_stands() -> None:
    found = judged(FINE.bfloat16(), rounded=torch.full_like(ROUNDED, math.inf))
    assert found.outcome == "right"
    assert found.reason.startswith("only one computation is possible (the other overflows): T = 8*")
    assert judged(off(30), rounded=torch.full_like(ROUNDED, math.inf)).outcome == "wrong"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_only_mine_cannot_hold_is_wrong(value: float) -> None:
    mine = ROUNDED.clone()
    mine[0, 0] = value
    assert judged(mine).detail == "1 of 8192 elements are NaN or infinite"
    fine, rounded = FINE.clone(), ROUNDED.clone()
    fine[0, 0] = rounded[0, 0] = value
    assert judged(mine, fine, rounded).outcome == "right"
    assert judged(ROUNDED, fine, rounded).detail == "1 of 8192 elements should not be finite"


def test_a_mask_may_lie_on_another_of_equal_elements() -> None:
    fine, rounded, mine = FINE.clone(), ROUNDED.clone(), ROUNDED.clone()
    fine[0, 0] = rounded[0, 1] = mine[0, 1] = -math.inf
    assert judged(mine, fine, rounded).outcome == "right"
    rounded[0] = ROUNDED[0]
    rounded[0, 0] = -math.inf
    assert judged(mine, fine, rounded).outcome == "wrong", "both computations mask another"


def test_an_overflow_of_float16_is_one_in_mine_too() -> None:
    fine = torch.tensor([70000.0, 1.0], dtype=torch.float64)
    assert judged(fine.half(), fine, fine.half()).outcome == "right"


def test_zeros_are_zeros() -> None:
    zeros = torch.zeros(3, 4)
    assert judged(zeros, zeros, zeros).outcome == "right"
    assert judged(zeros + 1e-3, zeros, zeros).outcome == "wrong"


def test_tensors_of_another_size_say_nothing() -> None:
    assert judged(ROUNDED[1:]).outcome == ""


def test_choices_are_those_of_either_computation() -> None:
    one, two, three = (torch.tensor([[0, number]]) for number in (1, 2, 3))
    assert judged(one, one, two).outcome == judged(two, one, two).outcome == "right"
    assert judged(three, one, two).why == "it chose other elements, which it may among equal ones"
    wrong = judged(three, one, one)
    assert (wrong.outcome, wrong.detail) == ("wrong", "1 of 2 elements are not those it makes")
    assert judged(three, one, two).outcome == ""


def test_in_float32_the_bound_is_at_least_that_of_one_operator() -> None:
    fine = FINE.clone()
    found = judged(fine.float(), fine, fine.float())
    assert found.reason.startswith("T = 8*")
    assert found.allowed is not None
    assert found.noise is not None
    assert found.allowed > 30 * found.noise


def test_halves_that_cancel_may_be_rounded() -> None:
    first = 50 * FINE.flip(0)
    in_two = first.bfloat16() + (FINE - first).bfloat16()
    assert judged(in_two).outcome == "wrong"
    found = hold(replace(Twice.of(FINE, ROUNDED, ""), in_two=in_two), in_two)
    assert found.outcome == "right"
    assert found.reason.startswith(
        "1.5*1.04 (scatter of 8192 elements) times that of a product summed in two"
    )


def as_rounded(_: torch.dtype) -> torch.Tensor:
    return ROUNDED


def refused(_: torch.dtype) -> torch.Tensor:
    raise OperatorError("not for bfloat16")


@pytest.mark.parametrize(
    ("expected", "rounded", "said"),
    [
        (Unrounded(FINE), as_rounded, "2*1.04 (scatter"),
        (Unrounded(FINE), refused, "only one computation is possible (not for bfloat16): T = 8*"),
        (Unrounded(ROUNDED.double(), moved=True), refused, ""),
        (Unrounded(FINE, others=(FINE + 1,)), refused, "T = 8*"),
    ],
)
def test_an_operator_is_judged_beside_a_second_computation_where_there_is_one(
    expected: Unrounded, rounded: Callable[[torch.dtype], torch.Tensor], said: str
) -> None:
    found = hold(Twice(expected, rounded), ROUNDED)
    assert found.outcome == "right"
    assert found.reason.startswith(said)


def test_sums_that_cancel_may_be_off_by_the_rounding_of_their_terms() -> None:
    sizes = torch.full_like(FINE, 1e5)
    for magnitude, said in ((lambda: sizes, "right"), (None, "wrong")):
        expected = Unrounded(FINE, 4096, magnitude)
        assert hold(Twice(expected, as_rounded), off(8)).outcome == said


def test_what_cancelling_sums_add_to_the_bound_is_said_where_it_is_worth_it() -> None:
    def reason(size: float) -> str:
        expected = Unrounded(FINE, 4096, lambda: torch.full_like(FINE, size))
        return hold(Twice(expected, as_rounded), ROUNDED).reason

    assert " for sums that cancel" in reason(1e5)
    assert "cancel" not in reason(1.0)


def test_single_values_are_bound_by_their_own_size() -> None:
    fine = FINE.clone()
    fine[0, 0] = -1e6
    mine = fine.bfloat16()
    mine[3, 3] *= 1.2
    for singly, said in ((True, "wrong"), (False, "right")):
        expected = Unrounded(fine.reshape(-1, 1), singly=singly)
        found = hold(Twice(expected, lambda dtype: fine.to(dtype)), mine.reshape(-1, 1))
        assert found.outcome == said


ANGLES = torch.arange(512.0, dtype=torch.float64)[:, None] / 10 ** torch.linspace(
    0, 4, 16, dtype=torch.float64
)
TURNS = torch.polar(torch.ones_like(ANGLES), ANGLES)


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (TURNS * (1 + 2**-24), "right"),  # another rounding of the last place, as devices have it
        (TURNS * (1 + 2**-17), "wrong"),
        (TURNS.conj(), "wrong"),
        (torch.complex(TURNS.real, torch.zeros_like(TURNS.real)), "wrong"),
        (TURNS.clone().index_fill_(0, torch.tensor(3), 0), "wrong"),
    ],
    ids=["rounded", "scaled", "turned the other way", "one part", "a row"],
)
def test_complex_numbers_are_rounded_as_their_parts_are(mine: torch.Tensor, said: str) -> None:
    fine = TURNS.to(torch.complex64)
    assert hold(Twice.of(fine, fine, "told how"), mine.to(torch.complex64)).outcome == said
    measured = hold(Twice(Unrounded(TURNS), lambda _: fine), mine.to(torch.complex64))
    assert measured.outcome == said


def test_one_complex_number_is_a_row_of_two() -> None:
    fine = torch.tensor(3 + 4j)
    assert hold(Twice.of(fine, fine, "told how"), torch.tensor(3 + 4j * (1 + 2**-23))).outcome == "right"
    assert hold(Twice.of(fine, fine, "told how"), torch.tensor(3 + 4.1j)).outcome == "wrong"


# Several draws of the noise of a tensor that one run calls wrong.


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
    twice = Twice.of(exact, noisy(exact, 0.01, 2), "in bfloat16")
    mine = noisy(exact, error, 3).bfloat16()
    found = hold(twice, mine)
    assert (found.outcome, found.error is None) == ("wrong", False)
    again = hold(with_draws(twice, drawn(exact, sizes)), mine)
    assert again.outcome == outcome, again
    assert ("the noisiest of 8 draws" in again.reason) == (len(sizes) == DRAWS)


def test_a_zeroed_row_is_wrong_though_the_noise_of_a_massive_one_differs() -> None:
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    exact[0] *= 50
    twice = Twice.of(exact, exact.bfloat16(), "in bfloat16")
    mine = exact.bfloat16()
    mine[9] = 0
    found = hold(twice, mine)
    assert (found.outcome, found.error is None) == ("wrong", False)
    draws = []
    for number, size in enumerate(SIZES):
        draws.append(exact.clone())
        draws[-1][0] = noisy(exact, size, number)[0]
    again = hold(with_draws(twice, draws), mine)
    assert again.outcome == "wrong"
    assert "rows are wrong; row [9]" in again.why


@pytest.mark.parametrize(("times", "outcome"), [(1.0, "right"), (1 / 6, "wrong")])
def test_a_typical_row_has_the_noise_of_the_noisiest_draw(times: float, outcome: str) -> None:
    """Beside a massive row typical ones are off by 5 %, the run by 1 %, draws by 1 to 6 % or a sixth."""
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    massive = torch.ones(64, 1)
    massive[0] = 1000.0
    twice = Twice.of(
        massive * exact, massive * noisy(exact, 0.02, 2).where(massive > 1, noisy(exact, 0.01, 2)), ""
    )
    mine = (massive * noisy(exact, 0.02, 3).where(massive > 1, noisy(exact, 0.05, 3))).bfloat16()
    found = hold(twice, mine)
    assert "a typical row is" in found.why, found
    draws = [massive * draw for draw in drawn(exact, [times * size for size in SIZES])]
    assert hold(with_draws(twice, draws), mine).outcome == outcome


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
    found = hold(Twice.of(exact, exact.bfloat16(), "in bfloat16"), mine)
    assert (found.outcome, found.error is None) == ("wrong", False)
    twice = Twice.of(exact, exact.bfloat16(), "in bfloat16")
    draws = [exact + 0.01 * one * unit] * DRAWS
    assert hold(with_draws(twice, draws), mine).outcome == outcome


def test_a_rounded_computation_is_stored_as_mine_where_that_is_coarser() -> None:
    exact = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(stored_as(exact, exact.bfloat16()), exact.bfloat16())
    assert stored_as(exact.bfloat16(), exact).dtype == torch.bfloat16
    assert stored_as(exact, torch.zeros(4, dtype=torch.int8)) is exact


# rows: of how many independent roundings is a bias the mean?


ROWS, CHANNELS, BIAS_DRAWS = 48, 32, 300


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
    drawn = [make(draw) for _ in range(BIAS_DRAWS)]
    biases, squares = zip(*map(bias_of_rounding, drawn))
    measured = float(torch.tensor(biases).std())
    counted = sum(roundings(one.bfloat16()) for one in drawn) / BIAS_DRAWS
    assert count / 4 <= counted <= 1.25 * count
    expected = math.sqrt(sum(squares) / BIAS_DRAWS / counted)
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
