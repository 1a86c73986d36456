"""Bounds without data: what the rules allow for a standard tensor, as text that can be kept and compared."""

from __future__ import annotations

import math

import pytest

from acc_pytest.judging.replay import (
    NO_SAMPLE,
    NominalBound,
    context_scalars,
    nominal_bounds,
    stated_scalars,
    statistics_scalars,
)
from acc_pytest.judging.rules import rule_from_table
from acc_pytest.judging.standards import STANDARDS
from acc_pytest.judging.statistics import measure_statistics
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.metrics.measurement import SliceErrors
from acc_pytest.tensors.header import Statistics

from .plain import build

STATISTICS = statistics_scalars(build(golden_rms=3.0, golden_max_abs=50.0, numel=64, compared=64))
PLACE = JudgeContext(depth=3, length=4096, mine_op_type="Linear")
CONTEXT = context_scalars(PLACE)
T = 8 * (2.0**-11 + 64 * 2.0**-24) * 2
"""8 * (u + sqrt(K) * a) * sqrt(1 + depth), of a tensor that is no sample."""


def parsed(text: str) -> NominalBound:
    return NominalBound.parse(text)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("<= 0.005 default", NominalBound(0.005, False, "default")),
        (">= 0.99 set by x.toml (why)", NominalBound(0.99, True, "set by x.toml (why)")),
        ("off by me", NominalBound(math.inf, False, "by me")),
    ],
)
def test_a_bound_reads_as_it_was_written(text: str, bound: NominalBound) -> None:
    assert parsed(text) == bound
    assert str(bound) == text


def test_off_needs_no_rule() -> None:
    assert parsed("off") == NominalBound(math.inf, False, "")


@pytest.mark.parametrize("text", ["< 0.1 x", "offside", "0.1", ""])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parsed(text)
    assert str(caught.value) == f"a bound must look like '<= 0.005 default', got {text!r}"


@pytest.mark.parametrize(
    ("before", "now", "times"),
    [
        ("<= 0.01 a", "<= 0.02 b", 2.0),
        ("<= 0.01 a", "<= 0.01 b", 1.0),
        ("<= 0.0 a", "<= 0.0 a", 1.0),
        ("<= 0.0 a", "<= 1.0 a", math.inf),
        ("<= 1.0 a", "<= 0.0 a", 0.0),
        ("<= 0.01 a", "off a", math.inf),
        ("off a", "<= 0.01 a", 0.0),
        ("off a", "off a", 1.0),
        (">= 0.99 a", ">= 0.96 a", 2.0),
        (">= 1.0 a", ">= 1.0 a", 1.0),
        (">= 1.0 a", ">= 0.5 a", math.inf),
        (">= 30.0 a", ">= 20.0 a", math.inf),
        (">= 20.0 a", ">= 30.0 a", 0.0),
        (">= 30.0 a", ">= 30.0 a", 1.0),
        (">= 0.9 a", "<= 0.9 a", math.inf),
    ],
)
def test_how_many_times_more_is_allowed(before: str, now: str, times: float) -> None:
    assert parsed(now).looser_than(parsed(before)) == pytest.approx(times)


def test_nominal_bounds_do_not_depend_on_the_data_but_on_dtype_depth_and_rules() -> None:
    bounds = nominal_bounds(CONTEXT, STATISTICS, ())
    assert bounds == {
        "cosine_similarity": f">= {1 - T * T / 2 - 1e-12!r} default",
        "max_absolute_error": f"<= {T!r} default",
        "relative_euclidean_distance": f"<= {T!r} default",
        "new_nonfinite": "<= 0.0 default",
        "lost_nonfinite": "<= 0.0 default",
    }
    other = statistics_scalars(build(golden_rms=0.0, golden_max_abs=0.0, numel=9999, compared=9000))
    assert nominal_bounds(CONTEXT, other, ()) == bounds
    assert nominal_bounds(CONTEXT, {**STATISTICS, "mine_dtype": "bfloat16"}, ()) != bounds


@pytest.mark.parametrize("peak", [0.0, 100.0])
def test_bounds_on_statistics_are_those_of_a_tensor_of_rms_one(peak: float) -> None:
    golden = Statistics(peak, -peak, 0.5 * peak, 3 * peak)
    stated = measure_statistics(golden, golden, numel=7, golden_dtype="float16", mine_dtype="float16")
    bounds = {
        name: parsed(text) for name, text in nominal_bounds(CONTEXT, stated_scalars(stated), ()).items()
    }
    assert {name: bound.bound for name, bound in bounds.items()} == {
        "max_stat_absolute_error": pytest.approx(8 * T + 1e-6),
        "min_stat_absolute_error": pytest.approx(8 * T + 1e-6),
        "mean_stat_absolute_error": pytest.approx(T + 1e-6),
        "l2norm_stat_relative_error": pytest.approx(T + 1e-6 / 2**20),
    }
    assert {bound.rule for bound in bounds.values()} == {"default"}
    twice = rule_from_table({"factor": 2, "match": {"mine_dtype": "float16"}}, "f.toml")
    scaled = parsed(nominal_bounds(CONTEXT, stated_scalars(stated), [twice])["mean_stat_absolute_error"])
    assert (scaled.bound, scaled.rule) == (pytest.approx(2 * T + 1e-6), "default, factor 2 from f.toml")


@pytest.mark.parametrize("total", [0.0, 3.0, 4e5])
def test_bounds_on_a_sum_of_absolute_values_do_not_depend_on_the_sum(total: float) -> None:
    golden = Statistics(None, None, None, None, l1norm=total)
    mine = Statistics(None, None, None, None, l1norm=total + 1)
    stated = measure_statistics(golden, mine, numel=7, golden_dtype="float16", mine_dtype="float16")
    bounds = {
        name: parsed(text).bound for name, text in nominal_bounds(CONTEXT, stated_scalars(stated), ()).items()
    }
    normal = math.sqrt(math.pi / 2)
    expected = {"l1norm_stat_relative_error": pytest.approx(T * normal + 1e-6 * normal / NO_SAMPLE)}
    assert bounds == expected


def test_rows_and_channels_are_bounded_where_they_were_measured() -> None:
    """Without a bound of the data: by T, without scatter, and one rounding of the bias."""
    sliced = build(shape=(64, 64), numel=4096, slices=SliceErrors(bias=0.3, bias_deviation=0.1))
    bounds = {
        name: parsed(text).bound
        for name, text in nominal_bounds(CONTEXT, statistics_scalars(sliced), ()).items()
    }
    scatter = math.exp(3.72 / 2**10)
    assert bounds["typical_row_error"] == bounds["bulk_error"] == pytest.approx(2 * T)
    assert bounds["worst_row_error"] == bounds["worst_channel_error"] == pytest.approx(4 * T * scatter)
    assert bounds["bias"] == pytest.approx(2.0**-11 + 64 * 2.0**-24)


def test_bounds_of_a_noise_run_are_those_of_one_that_is_off_by_a_hundredth() -> None:
    noisy = JudgeContext(
        depth=3,
        noise_error=0.2,
        noise_max_absolute_error=9.0,
        noise_mismatches=5,
        noise_new_nonfinite=6,
        noise_lost_nonfinite=7,
        noise_dtype="float16",
    )
    standard = STANDARDS["three-way"]
    texts = nominal_bounds(context_scalars(noisy), STATISTICS, (), standard)
    bounds = {name: parsed(text).bound for name, text in texts.items()}
    assert bounds["relative_euclidean_distance"] == pytest.approx(3 * 0.01, rel=1e-4)
    assert bounds["max_absolute_error"] == pytest.approx(5 * 0.01, rel=1e-4)
    assert (bounds["new_nonfinite"], bounds["lost_nonfinite"]) == (0.0, 0.0)
    whole = statistics_scalars(build(golden_dtype="int64", mine_dtype="int64", golden_rms=None))
    assert nominal_bounds(context_scalars(noisy), whole, (), standard) == {"mismatches": "<= 0.0 three-way"}


def test_nominal_bounds_name_the_rule_they_come_from() -> None:
    factor = rule_from_table({"factor": 2}, "f.toml")
    bound = rule_from_table(
        {"relative_euclidean_distance": 0.1, "kl_divergence": 3, "cosine_similarity": False}, "b.toml"
    )
    scaled = nominal_bounds(CONTEXT, STATISTICS, [factor])
    assert scaled["relative_euclidean_distance"] == f"<= {2 * T!r} default, factor 2 from f.toml"
    bounds = nominal_bounds(CONTEXT, STATISTICS, [bound])
    assert bounds["relative_euclidean_distance"] == "<= 0.1 set by b.toml"
    assert bounds["kl_divergence"] == "<= 3.0 set by b.toml"
    assert bounds["max_absolute_error"] == "<= 0.1 default, T = 0.1 set by b.toml"
    assert bounds["cosine_similarity"] == "off switched off by b.toml"


def test_what_cannot_be_judged_has_no_nominal_bounds() -> None:
    assert nominal_bounds(CONTEXT, {}, ()) == {}
    blind = rule_from_table({"relative_euclidean_distance": False, "max_absolute_error": False}, "b.toml")
    assert nominal_bounds(CONTEXT, STATISTICS, [blind]) == {}
