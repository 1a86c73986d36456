"""What judging saw, as scalars and back: the same verdict without the tensors."""

from __future__ import annotations

import pytest
import torch

from acc_pytest.judging.replay import context_of, context_scalars, measurement_of, statistics_scalars
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import judge
from acc_pytest.metrics.kernel import measure
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
