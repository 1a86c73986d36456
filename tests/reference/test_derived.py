"""Whether a tensor is what one operator makes of its inputs, at the edges of what rounding allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import OperatorError
from acc_pytest.ge_operators import Unrounded
from acc_pytest.reference.projected import ProjectedLinear, WeightError, judged_by_projection
from acc_pytest.reference.recomputation import LOOKING, Recomputation
from acc_pytest.reference.twice import SIZE, Twice, check_size, hold, judged, moved
from acc_pytest.tensors.projection import projection
from acc_pytest.tensors.ref import TensorRef

T = torch.tensor
EXACT = torch.linspace(1.0, 2.0, 64, dtype=torch.float64)
FACTOR = 8.0
"""The factor of T: 8 times what roundings of one layer leave (docs/bounds.md)."""


def agrees(expected: Unrounded, mine: torch.Tensor) -> Recomputation:
    return hold(Twice(expected), mine)


def outcome(expected: Unrounded, mine: torch.Tensor) -> str:
    return agrees(expected, mine).outcome


# ---- moved ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exact", "mine", "said"),
    [
        (T([1.0, math.nan]), T([1.0, math.nan]), "right"),
        (T([1.0, math.nan]), T([1.0, 2.0]), "wrong"),
        (T([1, 2]), T([1, 2]), "right"),
        (T([1, 2]), T([1, 3]), "wrong"),
        (T([1.0, 2.0]), T([1, 2]), ""),
        (T([True, False]), T([True, True]), "wrong"),
    ],
)
def test_what_is_only_moved_has_the_very_values(exact: torch.Tensor, mine: torch.Tensor, said: str) -> None:
    assert moved(exact, mine).outcome == said


def test_what_is_moved_wrongly_says_how_much_of_it() -> None:
    found = moved(T([3.0, 4.0, 0.0]), T([3.0, 4.0, 5.0]))
    assert found.error == pytest.approx(1.0)
    assert found.why == "1 of 3 elements are not those it moves"
    assert moved(T([1.0]), T([1.0])).error == 0.0
    assert "torch.int64 where the operator writes torch.float32" in moved(T([1.0]), T([1])).why


@pytest.mark.parametrize(
    ("exact", "mine", "said"),
    [
        (EXACT, EXACT, "right"),  # float64 holds itself: nothing is rounded
        (EXACT, EXACT * (1 + 1e-15), "wrong"),
        (EXACT, EXACT.float(), "right"),  # float32 does not hold it: rounded, and judged so
        (EXACT, EXACT.float() * 1.25, "wrong"),
        (T([math.nan, 1.0], dtype=torch.float64), T([math.nan, 1.0]), "right"),
        (T([math.nan, 1.0], dtype=torch.float64), T([math.nan, 1.0 + 2**-23]), "wrong"),
        (T([1, 2]), T([1.0, 2.0]), "right"),
        (T([1, 2]), T([1.0, 2.0 + 2**-22]), "wrong"),
    ],
)
def test_what_an_operator_moves_is_exact_where_its_type_can_hold_it(
    exact: torch.Tensor, mine: torch.Tensor, said: str
) -> None:
    assert outcome(Unrounded(exact, moved=True), mine) == said


def test_whole_numbers_are_exact_without_being_moved_and_types_are_cast() -> None:
    assert outcome(Unrounded(T([1, 2])), T([1, 2], dtype=torch.int32)) == "right"
    assert outcome(Unrounded(T([1, 2])), T([1, 3], dtype=torch.int32)) == "wrong"


def test_an_image_is_compared_where_only_that_is_determined() -> None:
    expected = Unrounded(T([1, 2, 3]), image=lambda values: values.sort().values)
    assert outcome(expected, T([3, 1, 2])) == "right"
    assert outcome(expected, T([3, 3, 2])) == "wrong"


def test_another_size_is_no_result_and_another_shape_of_it_is() -> None:
    assert agrees(Unrounded(EXACT), EXACT[:-1]).why == SIZE
    assert outcome(Unrounded(EXACT), EXACT.reshape(8, 8)) == "right"


def test_of_several_results_that_are_allowed_any_is_right() -> None:
    expected = Unrounded(EXACT, others=(EXACT * 2, EXACT * 3))
    for factor, said in ((1, "right"), (2, "right"), (3, "right"), (4, "wrong")):
        assert outcome(expected, EXACT.float() * factor) == said
    assert agrees(expected, EXACT.float() * 4).error == pytest.approx(3.0), "told of the first"


# ---- rounded ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off", "said"), [(0.0, "right"), (1.0, "right"), (-1.0, "right"), (1.5, "wrong"), (-2.0, "wrong")]
)
def test_what_is_quantised_may_be_off_by_one_step(off: float, said: str) -> None:
    exact = T([10.0, 20.0 - off])
    assert judged(exact, T([10, 20], dtype=torch.int8), 1).outcome == said


def test_what_is_quantised_is_cut_at_the_limits_of_its_type() -> None:
    exact = T([1000.0, -1000.0])
    assert judged(exact, T([127, -128], dtype=torch.int8), 1).outcome == "right"
    assert judged(exact, T([125, -128], dtype=torch.int8), 1).outcome == "wrong"
    assert judged(T([]), T([], dtype=torch.int8), 1).outcome == "right"


def test_truth_values_of_numbers_are_whether_they_are_zero() -> None:
    assert judged(T([0.0, 0.5]), T([False, True]), 1).outcome == "right"
    assert judged(T([0.0, 0.5]), T([True, True]), 1).outcome == "wrong"


def test_what_is_too_large_for_the_type_of_mine_is_infinite_there() -> None:
    exact = T([1e6, -1e6, 1.0], dtype=torch.float64)
    assert judged(exact, exact.half(), 1).outcome == "right"
    found = judged(T([1.0, 2.0]).double(), T([1.0, math.inf]), 1)
    assert (found.outcome, found.error, found.why) == ("wrong", None, "1 of 2 elements are NaN or infinite")


def test_longer_sums_may_be_further_off() -> None:
    """sqrt(K) * 2^-24 of a sum of a million terms is a thousand times that of one term."""
    mine = (EXACT * (1 + 2e-4)).float()
    assert judged(EXACT, mine, 1).outcome == "wrong"
    assert judged(EXACT, mine, 1 << 20).outcome == "right"


def cancelling(error: float, terms: int = 1, sizes: float = 1.0) -> str:
    """The verdict on 64 sums that should be 1e-6 and are off by `error`, of addends of size `sizes`."""
    exact = torch.full((64,), 1e-6, dtype=torch.float64)
    magnitude = (lambda: T([sizes])) if sizes else None
    return outcome(Unrounded(exact, terms, magnitude), (exact + error).float())


def test_where_addends_cancel_the_error_is_relative_to_their_sizes() -> None:
    """One rounding of float32 is 2^-24 = 6e-8 of addends of size 1; the factor of T allows 8 of them."""
    assert cancelling(4 * 2**-24) == "right"
    assert cancelling(4 * 2**-24, sizes=0.0) == "wrong", "nothing is known of the addends"
    assert cancelling(16 * 2**-24) == "wrong"
    assert cancelling(16 * 2**-24, terms=9) == "right", "sums of 9 terms are off by 3 times as much"
    assert cancelling(30 * 2**-24, terms=9) == "wrong"
    assert cancelling(16 * 2**-24, sizes=3.0) == "right"
    assert cancelling(-4 * 2**-24) == "right"


def masked(off: float, singly: bool) -> str:
    """The verdict on a sum with a mask of -10,000 in which an element of 1 is off by a part."""
    exact = T([-1e4] * 7 + [1.0], dtype=torch.float64)
    mine = exact.clone()
    mine[7] += off
    return outcome(Unrounded(exact, singly=singly), mine.float())


def test_beside_the_values_of_a_mask_every_element_is_looked_at() -> None:
    """The norm of 26,000 allows 0.01 of one element; singly it is 8 times two roundings of 2^-24."""
    assert masked(1e-3, singly=False) == "right"
    assert masked(1e-3, singly=True) == "wrong"
    assert masked(FACTOR * 2**-24, singly=True) == "right"
    assert masked(3 * FACTOR * 2**-24, singly=True) == "wrong"
    found = agrees(Unrounded(T([-1e4, 1.0]).double(), singly=True), T([-1e4, 1.001]))
    assert found.why == "1 of 2 elements are not those of the operator"


def test_the_bound_of_one_operator_has_no_room_for_layers_before_it() -> None:
    """T of one operator in float16 is 8 * 2^-11 = 0.0039."""
    for off, said in ((0.003, "right"), (0.005, "wrong")):
        assert judged(EXACT, (EXACT * (1 + off)).half(), 1).outcome == said


# ---- size -------------------------------------------------------------------------------------------


def test_an_operator_is_computed_again_up_to_so_many_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    class Header:
        def __init__(self, numel: int) -> None:
            self.numel = numel

    monkeypatch.setattr(TensorRef, "header", lambda ref: Header(int(ref.path)))
    half = LOOKING.limit // 2
    assert check_size([TensorRef(str(half)), TensorRef("3")]) == half
    assert check_size([TensorRef(str(half))] * 2) == half
    assert check_size([]) == 0
    with pytest.raises(
        OperatorError, match=f"it has {2 * half + 1} elements, and of more than {2 * half} none"
    ):
        check_size([TensorRef(str(half)), TensorRef(str(half)), TensorRef("1")])


# ---- complex ----------------------------------------------------------------------------------------

TURN = torch.polar(torch.linspace(1.0, 2.0, 32, dtype=torch.float64), torch.arange(32.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("expected", "mine", "said"),
    [
        (Unrounded(TURN), TURN.to(torch.complex64), "right"),
        (Unrounded(TURN, singly=True), (TURN * (1 + 2**-24)).to(torch.complex64), "right"),
        (Unrounded(TURN), (TURN * 1.001).to(torch.complex64), "wrong"),
        (Unrounded(TURN), TURN.conj().to(torch.complex64), "wrong"),
        (
            Unrounded(T([1 + 1j, complex(math.nan, 0)]), moved=True),
            T([1 + 1j, complex(math.nan, 0)]),
            "right",
        ),
        (Unrounded(T([1 + 1j, 2j]), moved=True), T([1 + 1j, 2.001j]), "wrong"),
        (Unrounded(T([1 + 1j]), others=(T([2j]),)), T([2j]), "right"),
    ],
    ids=["rounded", "another rounding", "scaled", "conjugated", "moved", "moved wrongly", "one of two"],
)
def test_parts_of_complex_numbers_are_rounded_each(
    expected: Unrounded, mine: torch.Tensor, said: str
) -> None:
    assert outcome(expected, mine) == said


def test_complex_addends_that_cancel_leave_what_their_sizes_leave() -> None:
    left = T([1e4 + 1j, 2e4 + 2j], dtype=torch.complex128)
    made = left - left.real.to(torch.complex128)
    near = (made + 3e-4).to(torch.complex64)  # half a last place of 1e4
    assert outcome(Unrounded(made, 2), near) == "wrong"
    assert outcome(Unrounded(made, 2, magnitude=lambda: 2 * left), near) == "right"


# Linear layers judged by projections of golden's weights.


ROWS, FEATURES, OUTPUTS = 24, 96, 160
Spoil = Callable[[torch.Tensor], torch.Tensor]


class Layer:
    """A linear layer with weights that bfloat16 holds, stored as golden's dump has it."""

    def __init__(self, directory: Path) -> None:
        draw = torch.Generator().manual_seed(5)
        self.weight = (0.1 * torch.randn(OUTPUTS, FEATURES, generator=draw)).bfloat16().double()
        self.bias = torch.randn(OUTPUTS, generator=draw).bfloat16().double()
        self.given = torch.randn(2, ROWS // 2, FEATURES, generator=draw).bfloat16().double()
        self._file = str(directory / "model_outline.pt")
        torch.save({"weight": projection(self.weight), "bias": self.bias}, self._file)

    def judged(
        self,
        mine: torch.Tensor,
        *,
        same: bool = True,
        outputs: int = OUTPUTS,
        most: int = 1 << 24,
        codes: WeightError | None = None,
    ) -> Recomputation:
        weight, bias = TensorRef(self._file, "weight"), TensorRef(self._file, "bias")
        given = self.given.to(mine.dtype)
        return judged_by_projection(
            ProjectedLinear(weight.open, bias.open, outputs, codes or (WeightError(0.0) if same else None)),
            given,
            mine,
            most,
        )

    @property
    def right(self) -> torch.Tensor:
        return self.given @ self.weight.T + self.bias


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    return Layer(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_right_layer_is_right_in_every_type(layer: Layer, dtype: torch.dtype) -> None:
    found = layer.judged(layer.right.to(dtype))
    assert found.outcome == "right"
    assert found.error is not None
    assert found.noise is not None
    if (
        dtype != torch.float32
    ):  # its noise is of the order of the projection's own, which is stored in float32
        assert 0.5 < found.error / found.noise < 1.5


def test_codes_are_off_by_their_steps_where_weights_are_small_too(layer: Layer) -> None:
    """A row of large values that small weights read: the steps are those of all weights of an output."""
    weight = layer.weight.clone()
    weight[:, 0] *= 1e-3
    torch.save({"weight": projection(weight), "bias": layer.bias}, layer._file)
    layer.given[0, 0] = 0.0
    layer.given[0, 0, 0] = 4096.0
    steps = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / steps).round() * steps
    error = float((codes - weight).norm() / weight.norm())
    mine = (layer.given @ codes.T + layer.bias).bfloat16()
    assert layer.judged(mine, codes=WeightError(error, is_even=True)).outcome == "right"
    assert layer.judged(mine, codes=WeightError(error)).outcome == "wrong"
    assert layer.judged(1.05 * mine, codes=WeightError(error, is_even=True)).outcome == "wrong"


def test_the_sum_of_two_rounded_halves_is_right(layer: Layer) -> None:
    half = FEATURES // 2
    first = (layer.given[..., :half] @ layer.weight[:, :half].T).bfloat16()
    second = (layer.given[..., half:] @ layer.weight[:, half:].T + layer.bias).bfloat16()
    assert layer.judged(first + second).outcome == "right"


def test_halves_that_cancel_may_be_off_by_their_own_rounding(layer: Layer) -> None:
    """The second half is the first one with the other sign, but for a hundredth."""
    half = FEATURES // 2
    weight = layer.weight[:, :half]
    given = layer.given[..., :half]
    whole = torch.cat([weight, weight], 1)
    both = torch.cat([given, -(given * 0.99).bfloat16().double()], -1)
    torch.save({"weight": projection(whole), "bias": torch.zeros(OUTPUTS)}, layer._file)
    layer.given = both
    first, second = (part @ weight.T for part in (both[..., :half], both[..., half:]))
    assert layer.judged(first.bfloat16() + second.bfloat16()).outcome == "right"
    alone = (first + second).bfloat16()
    assert layer.judged(alone).outcome == "right"


WRONG: dict[str, Spoil] = {
    "1 % too large": lambda y: y * 1.01,
    "1 % in all directions": lambda y: y + 0.01 * y.pow(2).mean().sqrt() * torch.ones_like(y).bernoulli(),
    "a channel off": lambda y: y + torch.nn.functional.one_hot(torch.tensor(7), OUTPUTS) * 0.5,
    "zeros": torch.zeros_like,
}


@pytest.mark.parametrize("spoil", WRONG.values(), ids=WRONG)
def test_faults_of_a_few_roundings_are_seen(layer: Layer, spoil: Spoil) -> None:
    found = layer.judged(spoil(layer.right).bfloat16())
    assert found.outcome == "wrong"
    assert "times its rounding" in found.detail


def test_a_zeroed_row_beside_a_massive_one_is_named(layer: Layer) -> None:
    """The first row is 1,000 times as large as the others, which hides them in the norm of all."""
    layer.given[0, 0] *= 1000
    mine = layer.right.bfloat16()
    assert layer.judged(mine).outcome == "right"
    mine[1, 3] = 0
    found = layer.judged(mine)
    assert found.outcome == "wrong"
    assert found.error is not None
    assert found.allowed is not None
    assert found.error < found.allowed
    assert "1 of 24 rows are wrong; row [1, 3]" in found.detail


def test_one_percent_beside_a_massive_row_is_seen(layer: Layer) -> None:
    """The norm of all is that of one row: 32 numbers, whose scatter allows 0.7 %. Of half a percent the other
    rows tell."""
    layer.given[0, 0] *= 1000
    found = layer.judged((layer.right * 1.01).bfloat16())
    assert found.outcome == "wrong"
    assert found.error is not None
    assert found.allowed is not None
    assert found.error > found.allowed
    assert layer.judged((layer.right * 1.005).bfloat16()).outcome == "wrong"


def test_of_one_row_mine_may_have_twice_the_rounding_and_the_scatter_of_32_numbers(layer: Layer) -> None:
    """8 numbers a row allowed 3.7 times that; projections of so few columns are still read."""
    layer.given = layer.given.reshape(-1, FEATURES)[:1]
    found = layer.judged(layer.right.bfloat16())
    assert found.outcome == "right"
    assert found.allowed is not None
    assert found.noise is not None
    assert found.allowed / found.noise == pytest.approx(2 * math.exp(3.72 / math.sqrt(32)), rel=0.3)


def test_a_bias_of_two_thousandths_is_seen(layer: Layer) -> None:
    """400 rows of 8 numbers: 4 standard errors of their median are 0.0004, u/4 is 0.001. Its error is 1.6
    times the noise."""
    draw = torch.Generator().manual_seed(6)
    layer.given = torch.randn(400, FEATURES, generator=draw).bfloat16().double()
    assert layer.judged(layer.right.bfloat16()).outcome == "right"
    found = layer.judged((layer.right * 1.002).bfloat16())
    assert found.outcome == "wrong"
    assert "too large" in found.detail


def test_of_a_large_layer_a_sample_of_the_rows_is_judged(layer: Layer) -> None:
    """A third of the elements is allowed, so that every third row is looked at. The first becomes massive."""
    most = ROWS * (FEATURES + OUTPUTS) // 3
    assert layer.judged((layer.right * 1.02).bfloat16(), most=most).outcome == "wrong"
    layer.given[0, 0] *= 1000
    mine = layer.right.bfloat16()
    found = layer.judged(mine, most=most)
    assert found.outcome == "right"
    assert found.reason.endswith("(by a projection of golden's weight), one row in 3")
    mine[1, 4] = 0
    assert layer.judged(mine, most=most).outcome == "right"
    mine[1, 3] = 0
    assert "row [1, 3]" in layer.judged(mine, most=most).detail


def test_weights_of_mine_that_were_rounded_count_as_noise(layer: Layer) -> None:
    """They round like results do: the noise is larger by sqrt(2), but for what the bias has of the size."""
    mine = layer.right.bfloat16()
    same, rounded = layer.judged(mine), layer.judged(mine, same=False)
    assert same.noise is not None
    assert rounded.noise is not None
    assert 1.1 < rounded.noise / same.noise < 1.42


def test_nothing_is_said_of_other_sizes_or_of_what_is_not_finite(layer: Layer) -> None:
    assert not layer.judged(layer.right.bfloat16(), outputs=OUTPUTS + 1).outcome
    assert not layer.judged(layer.right[..., 1:].bfloat16()).outcome
    assert not layer.judged(layer.right[:1].bfloat16()).outcome
    broken = layer.right.bfloat16()
    broken[0, 0, 0] = torch.nan
    with pytest.raises(OperatorError, match="not finite"):
        layer.judged(broken)
