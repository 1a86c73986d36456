"""The baseline: what counts as significantly worse, the file, shards, mistakes in it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from acc_pytest.errors import AccError, FormatError
from acc_pytest.gate.baseline import (
    Accepted,
    Baseline,
    BaselineGate,
    Change,
    allowed,
    error_of,
    improved,
    loosened,
    nominal_bounds_in,
    read_baseline,
    read_baselines,
    roundoff,
    tightened,
    with_nominal_bounds,
    write_baseline,
)
from acc_pytest.gate.gate import key_of
from acc_pytest.judging.replay import NominalBound, context_scalars, statistics_scalars
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.row import Row, RowSide
from tests.judging.plain import build

from .rows import row

FP16 = ("float32", "float16")


def accepted(error: float, elements: int = 10_000, dtypes: tuple[str, str] = FP16) -> Accepted:
    return Accepted("relative_euclidean_distance", error, elements, dtypes)


@pytest.mark.parametrize("elements", [1, 16, 256, 4096])
def test_two_samples_of_one_error_are_no_alarm_more_than_once_in_ten_thousand(elements: int) -> None:
    """Drawn noise of one size, rounding aside: 3.72 sigmas are 1 of 10,000, and the floor 2 leaves fewer."""
    draws = 20_000
    random = numpy.random.default_rng(elements)
    norms = numpy.sqrt(random.chisquare(elements, size=(draws, 2)) / elements)
    double = ("float64", "float64")
    alarms = sum(
        improved(accepted(other, elements, double), accepted(one, elements, double))
        for one, other in norms.tolist()
    )
    # The logarithm of a chi of few degrees is not normal: of one element the quotient of two is Cauchy, and
    # exceeds exp(3.72) in 2/pi * atan(exp(-3.72)) = 1.5 % of the draws.
    allowed_share = 2 / math.pi * math.atan(math.exp(-3.72)) if elements == 1 else 1e-4
    assert alarms <= draws * allowed_share + 4 * math.sqrt(draws * allowed_share)


@pytest.mark.parametrize(
    ("before", "now", "is_worse"),
    [
        (1e-9, 2e-9, False),
        (0.0, 4e-4, False),  # one rounding of float16 is 2^-11 = 4.9e-4
        (0.0, 6e-4, True),
        (0.01, 0.02, False),
        (0.01, 0.0206, True),
        (0.01, 0.0, False),
    ],
)
def test_an_error_may_double_and_round_once_more(before: float, now: float, is_worse: bool) -> None:
    assert improved(accepted(now), accepted(before)) is is_worse


def test_few_elements_scatter_more() -> None:
    assert not improved(accepted(0.06, 4), accepted(0.01, 4))
    assert allowed(accepted(0.01, 4), accepted(0.0, 4)) == pytest.approx(0.01 * math.exp(3.72 / 2) + 2**-11)


@pytest.mark.parametrize(
    ("before", "now", "is_worse"),
    [(0, 6, False), (0, 7, True), (100, 200, False), (100, 201, True), (4, 21, False), (4, 22, True)],
)
def test_counts_scatter_by_their_root(before: int, now: int, is_worse: bool) -> None:
    exact = ("int64", "int64")
    one, other = (Accepted("mismatches", float(count), 1000, exact) for count in (before, now))
    assert improved(other, one) is is_worse


def test_integers_are_not_rounded_once_more() -> None:
    assert roundoff(Accepted("mismatches", 0.0, 1, ("int64", "int64"))) == 0.0


def test_improved_is_worse_the_other_way_round() -> None:
    assert improved(accepted(0.0206), accepted(0.01))
    assert not improved(accepted(0.02), accepted(0.01))


def gate(**entries: Accepted) -> BaselineGate:
    pairs = {key_of(row()): entry for entry in entries.values()}
    return BaselineGate(Baseline("b.json", {}, pairs))


def test_a_pair_within_its_thresholds_fails_when_it_is_worse_than_accepted() -> None:
    judged = gate(one=accepted(0.002)).apply(row(0.01))
    assert (judged.verdict, judged.red) == ("fail", True)
    assert judged.sentence == judged.reason
    assert judged.sentence.startswith(
        "relative_euclidean_distance 0.01 is 5 times the accepted 0.002 of b.json"
    )
    (check,) = judged.checks
    assert (check.metric, check.passed) == ("baseline.relative_euclidean_distance", False)
    assert check.allowed == pytest.approx(2 * 0.002 + 2**-11)


def test_a_pair_that_is_not_worse_says_what_was_allowed() -> None:
    judged = gate(one=accepted(0.01)).apply(row(0.011))
    assert judged.verdict == "pass"
    assert judged.thresholds == "baseline.relative_euclidean_distance <= 0.0204883"


def test_a_failure_stays_the_failure_it_was() -> None:
    judged = gate(one=accepted(0.002)).apply(row(0.01, verdict="fail", sentence="bad", reasons=("bad",)))
    assert (judged.verdict, judged.sentence, len(judged.reasons)) == ("fail", "bad", 2)


def test_an_accepted_error_of_another_dtype_says_nothing() -> None:
    judged = gate(one=accepted(0.002)).apply(row(0.01, dtype="torch.bfloat16"))
    assert judged.verdict == "pass"
    assert judged.notes == (
        "baseline: not compared, the accepted error is relative_euclidean_distance of float32 and float16",
    )


@pytest.mark.parametrize(
    "without",
    [
        row(None),
        row(math.nan),
        row(math.inf),
        Row("id", "incomparable", "no"),
        Row("id", "pass", "", metrics={"l2norm_stat_relative_error": 0.0}),
    ],
)
def test_what_has_no_error_is_left_alone(without: Row) -> None:
    assert error_of(without) is None
    assert gate(one=accepted(0.002)).apply(without) is without


def test_the_elements_of_an_error_are_those_that_were_compared() -> None:
    def elements(**fields: Any) -> int:
        found = error_of(row(0.5, **fields))
        assert found is not None
        return found.elements

    assert elements(elements=7) == 7
    assert elements(elements=7, statistics={"compared": 5}) == 5
    assert elements(counts={}) == elements(statistics={"compared": "many"}) == elements(elements=0) == 1


@pytest.mark.parametrize(
    ("before", "now", "verdict", "said"),
    [
        (3, 9, "pass", "baseline: 3 accepted; twice that, or what the scatter of counts allows"),
        (
            0,
            9,
            "fail",
            "mismatches 9 is above the accepted 0 of b.json; up to 6.92 would be no significant change",
        ),
    ],
)
def test_counts_say_what_was_accepted_and_allowed(before: int, now: int, verdict: str, said: str) -> None:
    judged = gate(one=Accepted("mismatches", float(before), 10_000, FP16)).apply(row(0.5, mismatches=now))
    assert judged.verdict == verdict
    assert said in (judged.checks[0].reason, judged.sentence)


def test_a_bound_says_what_it_is_made_of() -> None:
    judged = gate(one=accepted(0.01, 16)).apply(row(0.011, elements=64))
    # exp(3.72 * sqrt(1/32 + 1/128)) = 2.087; one rounding of float16 is 2^-11.
    assert judged.checks[0].reason == (
        "baseline: 2.09 times the accepted 0.01 (scatter of 16 elements, at least 2) "
        "plus one rounding 0.00049"
    )


def test_integers_are_known_by_their_mismatches() -> None:
    assert error_of(row(0.5, mismatches=3)) == Accepted("mismatches", 3, 10_000, FP16)


@pytest.mark.parametrize(
    ("test_id", "key"),
    [
        ("a.py::test_x", "a.py::test_x"),
        ("a.py::test_x@group", "a.py::test_x"),
        ("a.py::test_x[u@v]", "a.py::test_x[u@v]"),
        ("a.py::test_x[u@v]@group", "a.py::test_x[u@v]"),
        ("at@home/a.py::test_x", "at@home/a.py::test_x"),
    ],
)
def test_the_key_leaves_out_what_xdist_appends(test_id: str, key: str) -> None:
    assert key_of(replace(row(test_id=test_id), mine=RowSide())) == key
    assert key_of(row(test_id=test_id)) == f"{key} output[0]"


PAIRS = {"b::y output[0]": accepted(0.00123456789), "a::x": Accepted("mismatches", 3, 5, ("int64", "int64"))}


def test_a_file_has_one_sorted_entry_a_line_and_reads_back(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "b.json")
    write_baseline(Baseline(path, {"machine": "aarch64"}, PAIRS))
    lines = Path(path).read_text().splitlines()
    assert lines[4:8] == [
        '  "pairs": {',
        '    "a::x": {"dtypes": "int64 int64", "elements": 5, "mismatches": 3},',
        '    "b::y output[0]": {"dtypes": "float32 float16", "elements": 10000, '
        '"relative_euclidean_distance": 0.0012346}',
        "  }",
    ]
    read = read_baseline(path)
    assert (read.path, read.origin) == (path, {"machine": "aarch64"})
    assert read.pairs == {**PAIRS, "b::y output[0]": accepted(0.0012346)}


def test_shards_are_put_together_and_must_not_contradict(tmp_path: Path) -> None:
    one, other = str(tmp_path / "1.json"), str(tmp_path / "2.json")
    write_baseline(Baseline(one, {"torch": "2.7"}, PAIRS, LEVELS))
    write_baseline(Baseline(other, {"torch": "2.8"}, {"a::x": PAIRS["a::x"], "c": accepted(0.0)}, LEVELS))
    both = read_baselines([one, other])
    assert set(both.pairs) == {*PAIRS, "c"}
    assert (both.path, both.origin) == (f"{one}, {other}", {"torch": "2.7"})
    assert both.bounds == LEVELS
    write_baseline(Baseline(other, {}, {"a::x": accepted(0.5)}))
    with pytest.raises(AccError, match=r"2.json: accepts another error for 'a::x'"):
        read_baselines([one, other])
    write_baseline(Baseline(other, bounds={"d::a x": {"a": parsed("<= 0.2 r")}}))
    with pytest.raises(AccError, match=r"2.json: holds other thresholds for 'd::a x'"):
        read_baselines([one, other])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not an acc-pytest baseline file"),
        ('{"format": "acc-pytest baseline", "version": 7}', "has version 7"),
        ('{"format": "acc-pytest baseline", "version": 1, "made": 3}', "made must be an object, got 3"),
        (
            '{"format": "acc-pytest baseline", "version": 1, "made": {}, "pairs": []}',
            "pairs must be an object",
        ),
        ('{"a": NaN}', "the number NaN is not allowed"),
        ('{"a": 1, "a": 2}', "'a' is there twice"),
        ("\n{,}", "2: is not JSON"),
        ("[" * 100_000, "is not JSON: its brackets are nested too deeply"),
        ('{"a": ' + "9" * 401 + "}", "is not JSON: a whole number of 401 digits"),
    ],
)
def test_a_file_that_is_no_baseline_is_one_error_naming_it(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(content)
    with pytest.raises(FormatError) as error:
        read_baseline(str(path))
    assert str(error.value).startswith(str(path))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("3", "must be an object"),
        ('{"dtypes": "a b", "elements": 1}', "must have dtypes, elements, and either"),
        ('{"dtypes": "a b", "elements": 1, "mismatches": -1}', "mismatches must be a number >= 0, got -1"),
        ('{"dtypes": "a b", "elements": 1, "mismatches": true}', "mismatches must be a number >= 0"),
        (
            '{"dtypes": "a b", "elements": 1, "relative_euclidean_distance": 1e400}',
            "must be a number >= 0, got inf",
        ),
        ('{"dtypes": "a b", "elements": 0, "mismatches": 1}', "elements must be a whole number"),
        ('{"dtypes": "ab", "elements": 1, "mismatches": 1}', "dtypes must be two names"),
        ('{"dtypes": 3, "elements": 1, "mismatches": 1}', "dtypes must be two names"),
        ('{"dtypes": "a b", "elements": true, "mismatches": 1}', "elements must be a whole number"),
    ],
)
def test_an_entry_that_is_wrong_is_named(tmp_path: Path, entry: str, said: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(
        f'{{"format": "acc-pytest baseline", "version": 1, "made": {{}}, "pairs": {{"k": {entry}}}}}'
    )
    with pytest.raises(FormatError, match=rf"pairs\.k.*{said}"):
        read_baseline(str(path))


# Thresholds: which change loosens one, bounds without data, the file and mistakes in it.


STATISTICS = statistics_scalars(build(golden_rms=3.0, golden_max_abs=50.0, numel=64, compared=64))
CONTEXT = context_scalars(JudgeContext(depth=3, length=4096, mine_op_type="Linear"))


def parsed(text: str) -> NominalBound:
    return NominalBound.parse(text)


def test_a_metric_that_is_gone_is_loosened_and_one_that_is_new_tightens() -> None:
    before, now = {"a": parsed("<= 0.1 x"), "b": parsed("off x")}, {"c": parsed("<= 0.1 x")}
    (found,) = loosened("key", before, now)
    assert (found.metric, found.now, str(found)) == ("a", None, "key: a <= 0.1 x -> not bounded")
    assert tightened(before, now) == 1


@pytest.mark.parametrize(
    ("now", "loosens", "tightens"),
    [
        (1.0, 0, 0),
        (1.0 + 1e-9, 0, 0),
        (1.0 + 3e-9, 1, 0),
        (1.0 - 1e-9, 0, 0),
        (1.0 - 3e-9, 0, 1),
    ],
)
def test_what_floating_point_makes_of_a_bound_is_no_change(now: float, loosens: int, tightens: int) -> None:
    before, after = {"a": parsed("<= 1.0 x")}, {"a": parsed(f"<= {now!r} x")}
    assert (len(loosened("key", before, after)), tightened(before, after)) == (loosens, tightens)


def test_every_threshold_of_a_comparison_is_held_against_its_own() -> None:
    before = {name: parsed("<= 0.1 x") for name in "abc"} | {"off": parsed("off x")}
    now = {"a": parsed("<= 0.2 x"), "c": parsed("<= 0.4 y")}
    changes = loosened("key", before, now)
    assert [(change.metric, change.times) for change in changes] == [("a", 2.0), ("b", math.inf), ("c", 4.0)]


def test_a_row_that_was_not_judged_has_no_nominal_bounds() -> None:
    assert with_nominal_bounds(row(), ()).levels == {}
    assert nominal_bounds_in(replace(row(), levels={"a": "nonsense"})) == {}
    assert with_nominal_bounds(row(statistics=STATISTICS, context=CONTEXT), ()).levels


def test_bounds_of_a_second_run_are_not_held() -> None:
    checks = (Check("rmse", 0.1, 0.2, False, "", True), Check("baseline.x", 0.1, 0.2, False, "", True))
    for standard in ("ascend", "msit", "open"):
        gated = gate().apply(row(case={"standard": standard}, checks=checks))
        assert gated.levels == {"rmse": f"<= 0.2 {standard}"}
    assert gate().apply(row(case={"standard": "three-way"}, checks=checks)).levels == {}


LEVELS = {f"d::{name} x": {"a": parsed("<= 0.1 r")} for name in "ab"} | {"d::c": {"a": parsed("off r")}}
HISTORY = (Change("2026-01-02", "ann", "first"), Change("2026-02-03", "bob", "new kernel"))


def test_thresholds_are_in_the_lines_of_their_pairs_and_read_back(tmp_path: Path) -> None:
    path = str(tmp_path / "b.json")
    write_baseline(Baseline(path, {}, {"d::a x": accepted(0.5)}, LEVELS, HISTORY))
    read = read_baseline(path)
    assert (read.pairs, read.history, read.bounds) == ({"d::a x": accepted(0.5)}, HISTORY, LEVELS)
    lines = Path(path).read_text().splitlines()
    assert '    {"date": "2026-01-02", "reason": "first", "user": "ann"},' in lines
    # The first 12 digits of the SHA-256 of {"a": "<= 0.1 r"}, as JSON with sorted keys.
    assert '    "d::b x": {"bounds": "057c6d5c2240"},' in lines
    (entry,) = [line for line in lines if line.startswith('    "d::a x"')]
    assert entry.startswith('    "d::a x": {"bounds": "057c6d5c2240", "dtypes": "float32 float16", ')
    assert len([line for line in lines if "<= 0.1 r" in line]) == 1


def test_thirty_thousand_pairs_take_less_than_eight_megabytes(tmp_path: Path) -> None:
    levels = {f"m{number}": parsed("<= 0.0123456789012345 default") for number in range(5)}
    name = "msit_dump::step17::layers.79::LinearOperation_{}_0_0_1_0[input[0]] output[0]"
    keys = [name.format(number) for number in range(30_000)]
    pairs = dict.fromkeys(keys, accepted(0.0123456789))
    write_baseline(Baseline(str(tmp_path / "b"), {}, pairs, dict.fromkeys(keys, levels)))
    assert (tmp_path / "b").stat().st_size < 8e6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"format": "acc-pytest lock"},
            "is a threshold lock of an earlier acc-pytest; a baseline holds thresholds now: write one with "
            "--acc-baseline FILE --acc-update-baseline",
        ),
        ({"bounds": 3}, "bounds must be an object"),
        ({"pairs": {"a": {"bounds": "b"}}}, "pairs.a refers to bounds 'b', which the file does not have"),
        ({"pairs": {"a": {"bounds": 3}}}, "pairs.a.bounds must be a string, got 3"),
        ({"pairs": {"a": 3}}, "pairs.a must be an object, got 3"),
        ({"history": {}}, "history must be a list"),
        ({"history": [{"date": ""}]}, "history lacks reason"),
        ({"bounds": {"0": {"a": "<= 9.0 r"}}}, "bounds 0 were edited"),
    ],
)
def test_a_mistake_in_thresholds_is_one_error_naming_the_file(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    path = tmp_path / "b.json"
    write_baseline(Baseline(str(path), {}, {}, LEVELS, HISTORY))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FormatError) as error:
        read_baseline(str(path))
    assert str(error.value).startswith(f"{path}: {said}")
