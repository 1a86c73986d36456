"""The verdict and its sentence."""

from __future__ import annotations

import math

import pytest

from acc_pytest.errors import SettingsError
from acc_pytest.judging.threshold import Threshold
from acc_pytest.judging.verdict import judge

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
    from acc_pytest.metrics.measurement import NonFinite

    fields = {"nonfinite": NonFinite(new=2, changed=1), "cosine_similarity": 0.1}
    text = sentence(DISTANCE, COSINE, COUNT, relative_euclidean_distance=9.0, **fields)
    assert text.startswith("3 of 8 elements are NaN or Inf in mine")
    assert text.endswith("; also beyond its bound: relative_euclidean_distance, cosine_similarity")
    assert "2 may be" in sentence(Threshold("new_nonfinite", 2.0, False, "r"), **fields)


def test_a_pass_names_the_closest_bound() -> None:
    text = sentence(DISTANCE, COSINE, relative_euclidean_distance=0.00195, cosine_similarity=1.0)
    assert text == "all 2 bounds hold; closest is relative_euclidean_distance at 50 % of the allowed 0.0039"
    assert sentence(COUNT) == "the bound holds"


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
