"""The verdict and its sentence."""

from __future__ import annotations

import math

import pytest

from acc_pytest.errors import SettingsError
from acc_pytest.judging.threshold import Threshold
from acc_pytest.judging.verdict import Check, judge, largest_excess
from acc_pytest.metrics.measurement import NonFinite

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
