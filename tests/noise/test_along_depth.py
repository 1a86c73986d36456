"""Levels of errors along depth: what layers before show, robustly, and what it makes of bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.judging.derive import derived
from acc_pytest.judging.threshold import JudgeContext, RowLevel, Threshold
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import Measurement
from acc_pytest.noise.along_depth import LAYERS, AlongDepth, level_at
from acc_pytest.tensors.source import TensorSource

DEPTHS = range(LAYERS)


def test_the_level_is_that_of_a_random_walk_where_errors_do_not_grow() -> None:
    assert level_at(15, DEPTHS, [0.01] * 8) == pytest.approx(0.01 * math.sqrt(16 / 4.4), rel=0.03)


def test_the_level_follows_errors_that_grow_faster() -> None:
    errors = [0.001 * 2**depth for depth in DEPTHS]
    assert level_at(8, DEPTHS, errors) == pytest.approx(0.256)


def test_errors_that_scatter_have_a_level_that_covers_it() -> None:
    errors = [0.003, 0.0039, 0.0028, 0.0107, 0.006, 0.0103, 0.0038, 0.0057]
    level = level_at(17, range(9, 17), errors)
    assert level is not None
    assert 4 * level > 0.0417


@pytest.mark.parametrize("wrong", [(0,), (5,), (7,), (0, 1), (3, 6), (6, 7)])
def test_wrong_layers_hardly_move_it(wrong: tuple[int, ...]) -> None:
    right = [0.01 * math.sqrt(1 + depth) for depth in DEPTHS]
    errors = [100 * error if depth in wrong else error for depth, error in zip(DEPTHS, right)]
    level = level_at(8, DEPTHS, errors)
    assert level is not None
    assert 0.029 < level < (0.06 if len(wrong) == 1 else 0.12)


@pytest.mark.parametrize("errors", [[], [0.01] * 7 + [None], [0.0] + [0.01] * 7])
def test_there_is_no_level_of_layers_that_show_nothing(errors: list[float | None]) -> None:
    assert level_at(8, DEPTHS, errors) is None


def along_depth(biases: Sequence[float]) -> AlongDepth:
    """Layers with a projection each, of these biases; then a layer that was not measured, and a head."""
    nodes = [f"model.layers.{layer}{name}" for layer in range(LAYERS + 1) for name in (".o_proj", "")]
    pairs: list[Any] = [
        SimpleNamespace(
            step=0, rank=0, graph=None, fed="", depth=number // 2, layer=layer, level=level,
            golden=SimpleNamespace(node=node, slot="output[0]"),
        )
        for number, node in enumerate([*nodes, "lm_head"])
        for layer, level in [("model" if node == "lm_head" else f"layers.{number // 2}",
                              "layer" if node[-1].isdigit() else "operator")]
    ]  # fmt: skip
    depth = AlongDepth(pairs)
    for number in range(2 * LAYERS):
        depth.note(number, RowLevel(0.01, 0.02, 16, biases[number // 2] if number % 2 == 0 else 0.0))
    depth.note(2 * LAYERS + 1, RowLevel(0.01, 0.02, 16, 0.0))
    return depth


def test_a_bias_may_be_as_far_off_as_those_of_the_same_tensor_scatter() -> None:
    biases = [0.001, -0.002, 0.003, 0.0, -0.001, 0.002, -0.003, 0.001]
    depth = along_depth(biases)
    stream = depth.stream(2 * LAYERS)
    assert stream is not None
    assert stream.bias is None
    peers = depth.beside_peers(2 * LAYERS, stream)
    assert peers is not None
    assert peers.bias == pytest.approx(7.06 * math.sqrt(1 + 1 / 8) * float(np.std(biases, ddof=1)))
    none = along_depth([0.02] * LAYERS)  # of a fault in all layers nothing scatters
    assert (again := none.beside_peers(2 * LAYERS, stream)) is not None
    assert again.bias == pytest.approx(0.0)


def test_outside_of_layers_a_single_row_is_held_against_nothing() -> None:
    depth = along_depth([0.0] * LAYERS)
    inside, head = depth.stream(2 * LAYERS), depth.stream(2 * LAYERS + 2)
    assert inside is not None
    assert head is not None
    assert inside.last == pytest.approx(0.02 * math.sqrt(9 / 4.5), rel=0.05)
    assert head.last is None
    assert head.typical is not None


@pytest.fixture
def measured() -> Measurement:
    """16 tokens of 64 channels in bfloat16, 5 % off."""
    draw = torch.Generator().manual_seed(3)
    golden, noise = (torch.randn(16, 64, generator=draw) for _ in range(2))
    return measure(*map(TensorSource, (golden, (golden + 0.05 * noise).bfloat16())))


def bounds(context: JudgeContext, measurement: Measurement, factor: float = 1.0) -> dict[str, Threshold]:
    return {each.metric: each for each in derived(context, measurement, factor)}


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


def test_biases_that_scatter_raise_the_bound_of_the_bias(measured: Measurement) -> None:
    plain = bounds(LEVELS, measured)["bias"]
    assert bounds(replace(LEVELS, level_bias=plain.bound / 2), measured)["bias"] == plain
    raised = bounds(replace(LEVELS, level_bias=0.05), measured)["bias"]
    assert raised.bound == 0.05
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
    assert bounds(context, measurement) == bounds(DEEP, measurement)
    decode = bounds(replace(context, step=1), measurement)["relative_euclidean_distance"]
    assert decode.bound == pytest.approx(0.08 * math.exp(3.72 / 16))
