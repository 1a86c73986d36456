"""Values, errors and weights so small that float32 has few digits of them, or none of their squares.

Both kernels take such numbers as 0 where they are nothing beside the rest. What they measure has to be right
to 1e-6 of float64 all the same.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.metrics.measurement import ElementTolerance, SliceErrors
from tests.each_case import check_each
from tests.metrics.metric_reference import measured

from .kernels import by_isa, each_isa, measured_by
from .test_native_block import FLOATS, differences

SHAPE = (24, 300)
OF_SLICES = {field.name for field in fields(SliceErrors)}
"""Of rows and channels that are 1e-34 of the largest value float32 has no squares."""
each_kernel = pytest.mark.parametrize("isa", ["python", "baseline", "avx2", "avx512", "aarch64"])


def kernel_of(isa: str) -> Any:
    """The kernel that `pair_blocks.chosen` is to give."""
    return None if isa == "python" else by_isa(isa)


def kinds() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Pairs whose sums meet subnormal numbers; the first of each row is 1 where nothing else is ordinary."""
    torch.manual_seed(11)
    g, noise, other = (torch.randn(SHAPE, dtype=torch.float64) for _ in range(3))
    first = torch.zeros(SHAPE, dtype=torch.bool)
    first[:, 0] = True

    def beside_one(scale: float, size: float) -> tuple[torch.Tensor, torch.Tensor]:
        golden = torch.where(first, 1.0, scale * g)
        return golden, golden * (1 + size * noise)

    half = torch.where(other > 0, g - 1e4, g)
    logits, peaked = torch.softmax(20 * g, -1), 300 * g
    scattered = torch.sign(g) * torch.exp2(-140 * torch.rand(SHAPE, dtype=torch.float64))
    return {
        "values of 1e-20": beside_one(1e-20, 1e-2),
        "values of 1e-30": beside_one(1e-30, 1e-2),
        "subnormal values": beside_one(1e-39, 1e-1),
        "values where subnormal ones begin": beside_one(2e-38, 1e-1),
        "half masked": (half, half + 1e-3 * noise),
        "peaked": (peaked, peaked + 1e-2 * noise),
        "peaked, large errors": (peaked, peaked + 3 * noise),
        "peaked, unrelated": (peaked, 300 * noise),
        "one far above": (torch.where(first, 1500.0, g), torch.where(first, 1500.0, g) + 1e-3 * noise),
        "probabilities": (logits, torch.softmax(20 * g + 0.02 * noise, -1)),
        "all sizes": (scattered, scattered * (1 + 1e-2 * noise)),
        "all below near zero": (1e-8 * scattered, 1e-8 * scattered * (1 + 1e-2 * noise)),
        "gradients of 1e-10": (1e-10 * g, 1e-10 * (g + 1e-4 * noise)),
        "gradients of 1e-20": (1e-20 * g, 1e-20 * (g + 1e-2 * noise)),
        "all subnormal": (1e-40 * g, 1e-40 * (g + noise)),
        "errors in what is tiny alone": (
            torch.where(first, 1.0, 1e-20 * g),
            torch.where(first, 1.0, 1e-20 * other),
        ),
    }


@each_kernel
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_metric_is_that_of_float64(
    isa: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = kernel_of(isa)

    def check(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        golden, mine = (side.to(dtype) for side in pair)
        found = measured_by(chosen, monkeypatch, golden, mine)
        wrong = differences(found, measured(golden, mine, double=True))
        if golden.double().abs().median() < 1e-34:
            wrong = {name: values for name, values in wrong.items() if name not in OF_SLICES}
        assert wrong == {}

    check_each(kinds().items(), check)


@each_kernel
def test_any_sizes_of_values_and_errors(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exponents of most that bfloat16 has below 1, in golden and in the errors."""
    chosen = kernel_of(isa)

    def check(seed: int) -> None:
        rng = np.random.default_rng(seed)
        low = rng.uniform(-33, -2)
        golden = rng.standard_normal(SHAPE) * 10.0 ** rng.uniform(low, 0, SHAPE)
        mine = golden * (1 + 10.0 ** rng.uniform(-4, 0) * rng.standard_normal(SHAPE))
        if seed % 3 == 0:
            mine += rng.standard_normal(SHAPE) * 10.0 ** rng.uniform(low, -2, SHAPE)
        if seed % 4 == 0:
            golden, mine = golden * (tiny := 10.0 ** rng.uniform(-20, 0)), mine * tiny
        dtype = (torch.float32, torch.bfloat16)[seed % 2]
        pair = torch.from_numpy(golden).to(dtype), torch.from_numpy(mine).to(dtype)
        found = measured_by(chosen, monkeypatch, *pair)
        assert differences(found, measured(*pair, double=True)) == {}

    check_each(((f"seed {seed}", seed) for seed in range(120)), check)


@each_kernel
@pytest.mark.parametrize("rtol", [0.0, 1e-2])
def test_a_tolerance_of_nothing_counts_subnormal_errors(
    isa: str, rtol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = torch.ones(SHAPE)
    golden[1:5], golden[5:9] = 1e-39, 3e-38
    mine = golden.clone()
    mine[0, :7] += 1.0
    mine[2, :11] = 1.5e-39
    mine[6, :13] = 3.1e-38
    tolerance = ElementTolerance(rtol=rtol, atol=0.0)
    monkeypatch.setattr("acc_pytest.metrics.kernel.chosen", lambda: kernel_of(isa))
    assert measured(golden, mine, tolerance=tolerance).beyond_tolerance == 7 + 11 + 13


@each_isa
def test_few_tiny_values_leave_the_kernel_no_excuse(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes all but what is tiny throughout."""
    taken: dict[str, bool] = {}
    for name, (golden, mine) in kinds().items():

        def noting(request: int, result: int, name: str = name) -> int:
            taken[name] = bool(by_isa(isa)(request, result))
            return int(taken[name])

        measured_by(noting, monkeypatch, golden.float(), mine.float())
    assert {name for name, was in taken.items() if not was} == {"all subnormal"}


@each_kernel
@pytest.mark.parametrize("before", [False, True])
def test_the_processor_treats_subnormal_numbers_as_before(
    isa: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, (golden, mine) = kernel_of(isa), kinds()["half masked"]
    if not torch.set_flush_denormal(before):
        pytest.skip("torch does not know how to flush on this processor")
    try:
        measured_by(chosen, monkeypatch, golden.float(), mine.float())
        assert (np.float32(1e-40) * np.float32(1) == 0) == before
    finally:
        torch.set_flush_denormal(False)


@each_kernel
def test_a_hundred_below_the_largest_value_may_be_no_step_of_float32(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies further below has no weight; the largest itself has."""
    torch.manual_seed(3)
    golden = torch.randn(SHAPE)
    golden[:, ::7] = 1e10
    for mine in (golden * 3, -golden, torch.randn(SHAPE)):
        found = measured_by(kernel_of(isa), monkeypatch, golden, mine)
        assert differences(found, measured(golden, mine, double=True)) == {}
