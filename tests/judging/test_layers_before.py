"""Bounds that follow from a level of the layers before, and from a T that somebody states."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from acc_pytest.judging.derive import by_tolerance, derived, least_tolerance
from acc_pytest.judging.threshold import JudgeContext, RowLevel, Threshold
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import Measurement, SliceErrors
from acc_pytest.tensors.source import TensorSource

from .plain import build


@pytest.fixture
def measured() -> Measurement:
    """16 tokens of 64 channels in bfloat16, 5 % off."""
    draw = torch.Generator().manual_seed(3)
    golden, noise = (torch.randn(16, 64, generator=draw) for _ in range(2))
    return measure(*map(TensorSource, (golden, (golden + 0.05 * noise).bfloat16())))


def bounds(context: JudgeContext, measurement: Measurement, factor: float = 1.0) -> dict[str, Threshold]:
    return {each.metric: each for each in derived(context, measurement, factor)}


@pytest.mark.parametrize(
    ("shape", "slices", "level"),
    [
        ((2, 8, 64), {"typical_row_error": 0.1, "last_row_error": 0.2, "bias": -0.3}, (0.1, 0.2, 16, -0.3)),
        ((1, 1, 64), {}, (None, 0.5, 1, None)),  # the last row of a single one is the whole
        ((2, 64), {}, (None, None, 2, None)),
    ],
)
def test_a_level_is_read_off_a_measurement(
    shape: tuple[int, ...], slices: dict[str, float], level: tuple[float | None, ...]
) -> None:
    measurement = build(shape=shape, relative_euclidean_distance=0.5, slices=SliceErrors(**slices))  # type: ignore[arg-type]
    assert RowLevel.of(measurement) == level


DEEP = JudgeContext(depth=20, length=64)
LEVELS = replace(DEEP, level_typical_row=0.01, level_last_row=0.02, level_rows=16)


def test_rows_may_be_off_by_four_times_what_the_layers_before_show(measured: Measurement) -> None:
    without, made = bounds(DEEP, measured), bounds(LEVELS, measured)
    assert "last_row_error" not in without
    assert made["typical_row_error"].bound == pytest.approx(0.04 * math.exp(3.72 / 32))
    assert made["last_row_error"].bound == pytest.approx(0.08 * math.exp(3.72 / 8))
    assert "4 times the 0.01 that the layers before show here" in made["typical_row_error"].reason
    rest = made.keys() - {"typical_row_error", "last_row_error"}
    assert all(made[metric] == without[metric] for metric in rest)


def test_a_factor_of_a_rule_stretches_them(measured: Measurement) -> None:
    assert bounds(LEVELS, measured, 2.0)["typical_row_error"].bound == pytest.approx(0.0898, rel=1e-3)


def test_they_never_loosen_a_bound(measured: Measurement) -> None:
    loud = replace(LEVELS, level_typical_row=0.3, level_last_row=0.3)
    assert bounds(loud, measured) == bounds(DEEP, measured)


def test_the_last_row_may_have_twice_t(measured: Measurement) -> None:
    made = bounds(replace(LEVELS, level_last_row=0.04), measured)
    assert made["last_row_error"].bound == pytest.approx(0.16 * math.exp(3.72 / 8))
    assert 1 < made["last_row_error"].bound / made["relative_euclidean_distance"].bound < 2


def test_biases_that_scatter_raise_the_bound_of_the_bias(measured: Measurement) -> None:
    plain = bounds(LEVELS, measured)["bias"]
    assert bounds(replace(LEVELS, level_bias=plain.bound / 2), measured)["bias"] == plain
    raised = bounds(replace(LEVELS, level_bias=0.05), measured)["bias"]
    assert raised.bound == 0.05
    assert bounds(replace(LEVELS, level_bias=0.05), measured, 1.5)["bias"].bound == pytest.approx(0.075)
    most = bounds(replace(LEVELS, level_bias=1.0), measured)
    assert most["bias"].bound == most["relative_euclidean_distance"].bound
    assert raised.reason.startswith("0.05 that biases of the layers before scatter by, more than")


def test_they_are_never_below_one_rounding(measured: Measurement) -> None:
    quiet = bounds(replace(LEVELS, level_typical_row=1e-6), measured)["typical_row_error"]
    assert quiet.bound == pytest.approx(4 * 2**-8 * math.exp(3.72 / 32), rel=1e-3)
    assert quiet.reason.startswith("4 roundings, more than")


def test_rows_that_are_no_tokens_are_not_held_against_them(measured: Measurement) -> None:
    assert bounds(replace(LEVELS, level_rows=4), measured) == bounds(DEEP, measured)


def test_the_token_of_a_decode_step_is_a_last_row() -> None:
    golden = torch.randn(1, 256, generator=torch.Generator().manual_seed(4))
    measurement = measure(*map(TensorSource, (golden, (golden * 1.001).bfloat16())))
    context = replace(LEVELS, level_typical_row=None, level_rows=1)
    for step in (0, "warmup"):
        assert bounds(replace(context, step=step), measurement) == bounds(DEEP, measurement)
    decode = bounds(replace(context, step=1), measurement)["relative_euclidean_distance"]
    assert decode.bound == pytest.approx(0.08 * math.exp(3.72 / 16))


# T stated: what a measurement needs, and the bounds that follow.

FEW, MANY = math.exp(3.72 / 4), math.exp(3.72 / 8)
"""The scatter of 16 and of 64 elements."""


@pytest.mark.parametrize(
    ("fields", "slices", "t"),
    [
        ({}, {}, 0.0),
        ({"relative_euclidean_distance": 0.03}, {}, 0.03),
        ({"cosine_similarity": 1 - 0.04**2 / 2 - 1e-12}, {}, 0.04),
        ({"max_absolute_error": 0.4}, {}, 0.4 / 8),
        ({"max_absolute_error": 0.4, "golden_max_abs": 100.0}, {}, 0.4 / 100),
        ({"max_absolute_error": 0.4}, {"neighbour_error": 0.4 / 16}, 0.0),
        ({"max_absolute_error": 0.4}, {"neighbour_error": 0.3 / 16}, 0.4 / 8),
        ({"max_absolute_error": 0.4, "golden_rms": 0.0, "golden_max_abs": 0.0}, {}, 0.0),
        ({"max_absolute_error": 0.4, "golden_rms": None, "golden_max_abs": None}, {}, 0.0),
        ({}, {"typical_row_error": 0.06}, 0.03),
        ({}, {"bulk_error": 0.08}, 0.04),
        ({}, {"worst_row_error": 0.4 * MANY}, 0.1),
        ({}, {"worst_row_error": 0.8 * MANY}, 0.4),
        ({}, {"worst_row_error": 0.4 * MANY, "row_error_p90": 0.4001 / 16}, 0.0),
        ({}, {"worst_channel_error": 0.4 * FEW}, 0.1),
        ({}, {"worst_channel_error": 0.4 * FEW, "channel_error_p90": 0.4001 / 16}, 0.0),
    ],
)
def test_the_least_t_is_where_the_bounds_just_hold(
    fields: dict[str, Any], slices: dict[str, Any], t: float
) -> None:
    measurement = build(shape=(16, 64), numel=1024, slices=SliceErrors(bias=0.0, **slices), **fields)
    assert least_tolerance(measurement) == pytest.approx(t, abs=1e-12)
    if t:
        for share, holds in ((1.001, True), (0.999, False)):
            made = by_tolerance(JudgeContext(), measurement, share * t, "stated")
            values = [(each, measurement.value(each.metric)) for each in made]
            assert all(each.allows(value) for each, value in values if value is not None) is holds


def test_an_error_in_one_element_is_held_against_the_whole() -> None:
    measurement = build(shape=(16, 64), numel=1024, max_absolute_error=0.4)
    assert least_tolerance(measurement, in_one_element=True) == pytest.approx(0.4 / 32)


@pytest.mark.parametrize(("t", "rounding"), [(0.04, 0.04 / 8), (1e-4, 2.0**-11)])
def test_a_stated_t_is_neither_sharpened_by_the_layers_before_nor_below_one_rounding(
    t: float, rounding: float
) -> None:
    slices = SliceErrors(bias=0.0, typical_row_error=0.0, last_row_error=0.0)
    measurement = build(shape=(16, 64), numel=1024, slices=slices)
    made = by_tolerance(LEVELS, measurement, t, "stated")
    assert made == by_tolerance(DEEP, measurement, t, "stated")
    by_metric = {each.metric: each for each in made}
    assert by_metric["relative_euclidean_distance"] == (
        "relative_euclidean_distance",
        t,
        False,
        "stated",
        False,
    )
    assert by_metric["bias"].bound == pytest.approx(rounding)
