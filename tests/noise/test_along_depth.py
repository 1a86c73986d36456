"""Levels of errors along depth: what layers before show, robustly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from acc_pytest.judging.threshold import RowLevel
from acc_pytest.noise.along_depth import LAYERS, AlongDepth, level_at

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
