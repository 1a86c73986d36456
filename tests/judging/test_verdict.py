"""The verdict and its sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from acc_pytest.errors import SettingsError
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
from acc_pytest.judging.threshold import JudgeContext, Threshold
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import Check, judge, largest_excess
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import NonFinite
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.source import TensorSource

from .plain import build

DISTANCE = Threshold("relative_euclidean_distance", 0.0039, False, "r")
COSINE = Threshold("cosine_similarity", 0.9999, True, "r")
COUNT = Threshold("new_nonfinite", 0.0, False, "r")


def sentence(*thresholds: Threshold, **fields: object) -> str:
    return judge(build(**fields), thresholds).sentence


def test_a_failure_says_how_many_times_the_allowed() -> None:
    found = judge(build(relative_euclidean_distance=0.18), [DISTANCE])
    assert found.verdict == "fail"
    assert found.sentence == "relative_euclidean_distance 0.18 is 46 times the allowed 0.0039"


@pytest.mark.parametrize(("value", "times"), [(0.0078, "2.0"), (0.00391, "1.003"), (0.39, "100")])
def test_the_factor_is_printed_as_finely_as_it_needs(value: float, times: str) -> None:
    assert f"is {times} times the allowed" in sentence(DISTANCE, relative_euclidean_distance=value)


def test_a_value_on_the_bound_passes() -> None:
    assert judge(build(relative_euclidean_distance=0.0039), [DISTANCE]).verdict == "pass"


def test_nan_and_undefined_metrics_cannot_pass() -> None:
    assert "is NaN, so its bound" in sentence(DISTANCE, relative_euclidean_distance=math.nan)
    assert "is not defined for these tensors" in sentence(DISTANCE, relative_euclidean_distance=None)
    assert judge(build(cosine_similarity=math.nan), [COSINE]).verdict == "fail"


def test_a_custom_metric_that_returned_text_is_undefined() -> None:
    bound = Threshold("mine", 1.0, False, "r")
    assert "mine is not defined" in sentence(bound, custom={"mine": ("crashed", "why")})


def test_a_floor_is_reported_as_a_floor() -> None:
    assert sentence(COSINE, cosine_similarity=0.5) == "cosine_similarity 0.5 is below the required 0.9999"


def test_above_a_bound_of_zero_there_is_no_factor() -> None:
    zero = Threshold("max_absolute_error", 0.0, False, "r")
    assert sentence(zero, max_absolute_error=0.5) == "max_absolute_error 0.5 is above the allowed 0"


def test_new_nonfinite_values_lead_the_sentence_and_the_rest_follows() -> None:
    fields = {"nonfinite": NonFinite(new=2, changed=1), "cosine_similarity": 0.1}
    text = sentence(DISTANCE, COSINE, COUNT, relative_euclidean_distance=9.0, **fields)
    assert text.startswith("3 of 8 elements are NaN or Inf in mine")
    assert text.endswith("; also beyond its bound: relative_euclidean_distance, cosine_similarity")
    assert "2 may be" in sentence(Threshold("new_nonfinite", 2.0, False, "r"), **fields)


def test_failing_bounds_are_told_counts_first_then_undefined_ones_then_by_excess() -> None:
    thresholds = [
        *(Threshold(name, 0.0, False, "r") for name in ("new_nonfinite", "lost_nonfinite")),
        Threshold("max_absolute_error", 1.0, False, "r"),
        Threshold("mean_absolute_error", 1.0, False, "r"),
        DISTANCE,
        COSINE,
    ]
    text = sentence(
        *thresholds,
        nonfinite=NonFinite(new=2, lost=5),
        max_absolute_error=2.0,
        mean_absolute_error=math.nan,
        relative_euclidean_distance=0.39,
        cosine_similarity=0.9,
    )
    # the angle's error is sqrt(0.1 / 0.0001), 32 times the allowed; the distance's is 100 times
    assert text == (
        "5 of 8 elements are finite in mine where golden is NaN or Inf, none may be; also beyond its bound: "
        "new_nonfinite, mean_absolute_error, relative_euclidean_distance, cosine_similarity, "
        "max_absolute_error"
    )


def test_a_pass_names_the_closest_bound() -> None:
    text = sentence(DISTANCE, COSINE, relative_euclidean_distance=0.00195, cosine_similarity=1.0)
    assert text == "all 2 bounds hold; closest is relative_euclidean_distance at 50 % of the allowed 0.0039"
    assert sentence(COUNT) == "the bound holds"


@pytest.mark.parametrize(
    ("threshold", "measured", "bound", "excess"),
    [
        (DISTANCE, 0.0078, "<= 0.0039", 2.0),
        (COSINE, 0.9996, ">= 0.9999", 2.0),
        (COSINE, 1.5, ">= 0.9999", 0.0),
        (COUNT, 3.0, "<= 0", math.inf),
        (COUNT, 0.0, "<= 0", 0.0),
        (DISTANCE, -1.0, "<= 0.0039", 0.0),
        (DISTANCE, None, "<= 0.0039", math.inf),
        (DISTANCE, math.nan, "<= 0.0039", math.inf),
        (Threshold("a", math.inf, False, "r"), 3.0, "off", 0.0),
    ],
)
def test_a_check_says_its_bound_and_how_many_times_the_allowed_error_was_measured(
    threshold: Threshold, measured: float | None, bound: str, excess: float
) -> None:
    check = Check.of(threshold, measured)
    assert (check.bound, check.excess) == (bound, pytest.approx(excess))
    assert check.passed is (excess <= 1)


def test_a_strict_bound_may_not_be_reached() -> None:
    for at_least in (True, False):
        strict = Threshold("a", 1.0, at_least, "r", strict=True)
        assert [strict.allows(value) for value in (0.5, 1.0, 1.5)] == [not at_least, False, at_least]


def test_every_check_is_kept_passing_or_not() -> None:
    found = judge(build(relative_euclidean_distance=0.0, cosine_similarity=0.1), [DISTANCE, COSINE])
    assert [(c.metric, c.measured, c.passed) for c in found.checks] == [
        ("relative_euclidean_distance", 0.0, True),
        ("cosine_similarity", 0.1, False),
    ]


def test_judging_by_nothing_is_refused() -> None:
    off = Threshold("cosine_similarity", -math.inf, True, "switched off")
    for nothing in ([], [off]):
        with pytest.raises(SettingsError, match="nothing would be judged"):
            judge(build(), nothing)


def test_a_floor_of_one_that_is_reached_passes() -> None:
    assert (
        sentence(Threshold("cosine_similarity", 1.0, True, "r"), cosine_similarity=1.0) == "the bound holds"
    )


def test_the_closest_bound_is_that_of_the_checks_that_are_asked_about() -> None:
    near, far = Check("a", 0.5, 1.0, False, "r", True), Check("b", 2.0, 1.0, False, "r", False)
    off = Check("c", math.nan, math.inf, False, "r", True)
    first, second = (near, off), (near, far)
    for _ in range(2):
        assert largest_excess(first) == (0.5, near)
        assert largest_excess(second) == (2.0, far)
        assert largest_excess((off,)) == (0.0, None)
        assert largest_excess(()) == (0.0, None)
    undefined = Check("d", None, 1.0, False, "r", False)
    assert largest_excess((near, undefined, far)) == (math.inf, undefined)


# What judging saw, as scalars and back: the same verdict without the tensors.


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_a_measurement_survives_as_scalars(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    golden = torch.arange(15, dtype=dtype)[: torch.Size(shape).numel()].reshape(shape)
    mine = golden + (golden == 3)
    measurement = measure(TensorSource(golden), TensorSource(mine))
    scalars = statistics_scalars(measurement)
    assert all(value is None or type(value) in (bool, int, float, str) for value in scalars.values())
    again = measurement_of(scalars, {"snr": (7.0, "db")})
    assert (again.worst, again.custom) == (None, {"snr": (7.0, "db")})
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
