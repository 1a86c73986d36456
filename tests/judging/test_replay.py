"""What judging saw, as scalars and back: the same verdict without the tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acc_pytest.judging.replay import (
    context_of,
    context_scalars,
    is_stated,
    measurement_of,
    replicas_of,
    stated_of,
    stated_scalars,
    statistics_scalars,
    with_replicas,
)
from acc_pytest.judging.statistics import measure_statistics
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import judge
from acc_pytest.metrics.kernel import measure
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.source import TensorSource


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_a_measurement_survives_as_scalars(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    golden = torch.arange(15, dtype=dtype)[: torch.Size(shape).numel()].reshape(shape)
    mine = golden + (golden == 3)
    measurement = measure(TensorSource(golden), TensorSource(mine))
    scalars = statistics_scalars(measurement)
    assert all(value is None or type(value) in (bool, int, float, str) for value in scalars.values())
    again = measurement_of(scalars)
    for name in ("shape", "numel", "moments", "nonfinite", "relative_euclidean_distance", "mismatches"):
        assert getattr(again, name) == getattr(measurement, name)
    context = JudgeContext(id="x", depth=3, length=5)
    assert judge(again, thresholds_for(context, again)) == judge(
        measurement, thresholds_for(context, measurement)
    )


def test_a_context_survives_as_scalars_and_says_only_what_is_not_neutral() -> None:
    context = JudgeContext(id="x", layer="layers.3", depth=3, step="warmup")
    assert context_scalars(context) == {"id": "x", "layer": "layers.3", "depth": 3, "step": "warmup"}
    assert context_of(context_scalars(context)) == context


def test_statistics_survive_as_scalars() -> None:
    golden, mine = Statistics(2.0, None, 0.5, 4.0), Statistics(3.0, -1.0, 0.5, 4.0)
    stated = measure_statistics(golden, mine, numel=9, golden_dtype="float16", mine_dtype="float32")
    scalars = stated_scalars(stated)
    assert scalars == {
        "numel": 9,
        "golden_dtype": "float16",
        "mine_dtype": "float32",
        "stated.max": 2.0,
        "stated.min": None,
        "stated.mean": 0.5,
        "stated.l2norm": 4.0,
        "max_stat_absolute_error": 1.0,
        "max_stat_relative_error": 0.5,
        **dict.fromkeys(("mean_stat_absolute_error", "mean_stat_relative_error"), 0.0),
        **dict.fromkeys(("l2norm_stat_absolute_error", "l2norm_stat_relative_error"), 0.0),
    }
    assert stated_of(scalars) == stated
    assert is_stated(scalars)
    assert not is_stated({"numel": 9})


def test_replicas_survive_beside_each_other() -> None:
    replicas: list[dict[str, Any]] = [
        {"numel": 1, "moments.golden": 1.0},
        {"numel": 2, "moments.golden": 2.0},
        {"numel": 3},
    ]
    scalars = with_replicas(replicas[0], replicas[1:])
    assert scalars == {
        "numel": 1,
        "moments.golden": 1.0,
        "replica1.numel": 2,
        "replica1.moments.golden": 2.0,
        "replica2.numel": 3,
    }
    assert replicas_of(scalars) == replicas
