"""A failed comparison in one line."""

from __future__ import annotations

from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.failure_text import briefly, further_reasons, in_numbers
from acc_pytest.reporting.row import Row


def failed(*checks: tuple[str, float | None, float, bool], sentence: str = "s") -> Row:
    made = tuple(
        Check(name, measured, allowed, least, "why", False) for name, measured, allowed, least in checks
    )
    return Row("id", "fail", sentence, checks=made, counts={"elements": 54})


def test_the_relative_distance_comes_before_what_is_further_beyond_its_bound() -> None:
    row = failed(
        ("cosine_similarity", 0.1, 0.999, True), ("relative_euclidean_distance", 0.21, 0.0071, False)
    )
    assert briefly(row) == (
        "relative L2 0.21, allowed 0.0071 (30 times)",
        "relative L2 0.21, allowed 0.0071",
        "L2 0.21 > 0.0071",
        "0.21 > 0.0071",
        "0.21>0.0071",
    )


def test_counts_come_before_everything() -> None:
    row = failed(("relative_euclidean_distance", 0.21, 0.0071, False), ("new_nonfinite", 3.0, 0.0, False))
    assert in_numbers(row) == "3 of 54 elements NaN or Inf in mine only, allowed 0"
    assert briefly(row)[-1] == "3 new NaN/Inf"


def test_as_many_digits_as_tell_both_numbers_apart() -> None:
    row = failed(("relative_euclidean_distance", 0.0071004, 0.0071, False))
    assert briefly(row)[-1] == "0.0071004>0.0071"


def test_what_is_best_at_one_is_rounded_by_its_distance_from_one() -> None:
    row = failed(("cosine_similarity", 0.5248, 0.999975, True))
    assert in_numbers(row) == "cosine 0.525, required 0.9999750"
    assert briefly(row)[-3:-1] == ("cosine 0.52 < 0.999975", "0.52 < 0.999975")


def test_a_metric_without_a_value_is_undefined() -> None:
    assert in_numbers(failed(("snr", None, 40.0, True))) == "snr undefined, required 40"


def test_without_a_broken_bound_it_is_the_sentence() -> None:
    row = Row("id", "incomparable", "/d/m.bin: is cut")
    assert (in_numbers(row), briefly(row)) == (row.sentence, (row.sentence,))
    assert list(further_reasons(row)) == []


def test_what_the_sentence_says_beyond_the_numbers_is_kept() -> None:
    row = failed(
        ("max_scaled_error", 1.8, 0.1, False),
        sentence="known: on purpose; max_scaled_error 1.8 is 18 times the allowed 0.1; 2 of 4 are beyond it; "
        "also beyond its bound: cosine_similarity",
    )
    assert list(further_reasons(row)) == ["known: on purpose; 2 of 4 are beyond it"]
