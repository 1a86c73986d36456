"""Errors of rows and channels: by their definitions, whatever the blocks; they see what norms hide."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch

from acc_pytest.metrics import kernel
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import SliceErrors
from acc_pytest.metrics.pair_sums import MOST, SliceSums
from acc_pytest.tensors.source import TensorSource
from tests.metrics.slice_reference import slice_errors


def _measured(golden: torch.Tensor, mine: torch.Tensor) -> SliceErrors:
    return measure(TensorSource(golden), TensorSource(mine)).slices


def _normal(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _with_large_channels(*shape: int) -> torch.Tensor:
    golden = _normal(*shape)
    golden[..., :2] *= 1000
    return golden


def _assert_same(measured: SliceErrors, by_definition: SliceErrors) -> None:
    for field in dataclasses.fields(SliceErrors):
        ours, theirs = getattr(measured, field.name), getattr(by_definition, field.name)
        if isinstance(theirs, str):
            assert ours == theirs, field.name
        else:
            # Sums of float32 products are off by 1e-6; a bias is what is left of products that cancel.
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-8), field.name


SHAPES = [(8, 8), (48, 64), (3, 5, 100), (2, 4, 9, 33), (1000, 8), (9, 70_000)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("made", [_normal, _with_large_channels])
def test_they_are_those_of_their_definitions(
    shape: tuple[int, ...], dtype: torch.dtype, made: Callable[..., torch.Tensor]
) -> None:
    golden = made(*shape)
    mine = (golden * 1.01 + 0.01 * _normal(*shape, seed=4)).to(dtype)
    _assert_same(_measured(golden, mine), slice_errors(golden, mine))


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    golden, mine = _normal(40, 33), _normal(40, 33, seed=5)
    whole = _measured(golden, mine)
    for block in (7, 33, 100):
        monkeypatch.setattr(kernel, "BLOCK", block)
        _assert_same(_measured(golden, mine), whole)


def test_what_is_not_finite_is_left_out() -> None:
    golden, mine = _normal(20, 16), _normal(20, 16) * 1.01
    mine[3, 4], golden[7, 8], golden[9] = math.nan, math.inf, math.nan
    _assert_same(_measured(golden, mine), slice_errors(golden, mine))


@pytest.mark.parametrize("shape", [(8,), (7, 64), (64, 7), (0, 64), ()], ids=str)
def test_tensors_with_few_rows_or_channels_have_none(shape: tuple[int, ...]) -> None:
    assert _measured(_normal(*shape), _normal(*shape)) == SliceErrors()


def test_memory_is_bounded_by_rows_and_channels() -> None:
    assert SliceSums.possible((MOST, 8))
    assert not SliceSums.possible((MOST + 1, 8))
    assert not SliceSums.possible((8, MOST + 1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64], ids=str)
def test_integers_and_complex_numbers_have_none(dtype: torch.dtype) -> None:
    golden = torch.ones(16, 16).to(dtype)
    assert _measured(golden, golden) == SliceErrors()


@pytest.mark.parametrize("golden", [torch.zeros(16, 16), torch.full((16, 16), 1e300, dtype=torch.float64)])
def test_zeros_and_squares_beyond_float64_have_none(golden: torch.Tensor) -> None:
    assert _measured(golden, golden.clone()) == SliceErrors()


def test_a_row_of_zeros_is_measured_by_the_others() -> None:
    golden = _normal(16, 64)
    golden[5] = 0
    mine = golden.clone()
    mine[5] = 0.1
    slices = _measured(golden, mine)
    assert slices.worst_row == "[5, :]"
    assert slices.worst_row_error == pytest.approx(0.1, rel=0.3)


def test_a_zeroed_token_and_wrong_channels_show_beside_massive_ones() -> None:
    golden = _normal(24, 64)
    golden[0, :2] = 1000.0
    zeroed, others = golden.clone(), golden.clone()
    zeroed[7] = 0
    others[:, 2:] *= 1.3
    assert measure(TensorSource(golden), TensorSource(zeroed)).relative_euclidean_distance < 0.01  # type: ignore[operator]
    assert _measured(golden, zeroed).worst_row == "[7, :]"
    assert _measured(golden, zeroed).worst_row_error == pytest.approx(1.0, rel=0.2)
    assert _measured(golden, others).bulk_error == pytest.approx(0.3)


def test_a_scale_is_a_bias_and_noise_is_not() -> None:
    golden = _with_large_channels(48, 64)
    noisy = golden * (1 + 0.01 * _normal(48, 64, seed=9))
    noise, scaled = _measured(golden, noisy), _measured(golden, golden * 0.99)
    assert scaled.bias == pytest.approx(-0.01, rel=1e-4)
    assert noise.bias is not None
    assert abs(noise.bias) < 0.001
