"""Linear layers judged by projections of golden's weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from acc_pytest.diagnosis.projected import ProjectedLinear, judged_by_projection
from acc_pytest.diagnosis.recomputation import Recomputation
from acc_pytest.errors import OperatorError
from acc_pytest.tensors.projection import projection
from acc_pytest.tensors.ref import TensorRef

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
        self, mine: torch.Tensor, *, same: bool = True, outputs: int = OUTPUTS, most: int = 1 << 24
    ) -> Recomputation:
        weight, bias = TensorRef(self._file, "weight"), TensorRef(self._file, "bias")
        given = self.given.to(mine.dtype)
        return judged_by_projection(ProjectedLinear(weight, bias, outputs, same), given, mine, most)

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
