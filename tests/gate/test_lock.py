"""The lock: which change of a threshold loosens it, bounds without data, the file and mistakes in it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from acc_pytest.errors import FormatError
from acc_pytest.gate.lock import (
    Change,
    OperatorBounds,
    loosened,
    nominal_bounds_in,
    read_lock,
    tightened,
    with_nominal_bounds,
    write_lock,
)
from acc_pytest.judging.replay import NominalBound, context_scalars, statistics_scalars
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.judging.verdict import Check
from tests.judging.plain import build

from .rows import row

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


def test_bounds_of_a_second_run_are_not_locked() -> None:
    checks = (Check("rmse", 0.1, 0.2, False, "", True), Check("baseline.x", 0.1, 0.2, False, "", True))
    for standard in ("ascend", "msit", "open"):
        gated = OperatorBounds().apply(row(case={"standard": standard}, checks=checks))
        assert gated.levels == {"rmse": f"<= 0.2 {standard}"}
    assert OperatorBounds().apply(row(case={"standard": "three-way"}, checks=checks)).levels == {}


TESTS = {f"d::{name} x": {"a": parsed("<= 0.1 r")} for name in "ab"} | {"d::c": {"a": parsed("off r")}}
HISTORY = (Change("2026-01-02", "ann", "first"), Change("2026-02-03", "bob", "new kernel"))


def test_a_file_has_a_line_for_each_test_and_change_and_reads_back(tmp_path: Path) -> None:
    path = str(tmp_path / "lock.json")
    write_lock(path, HISTORY, TESTS)
    read = read_lock(path)
    assert (read.history, dict(read.tests)) == (HISTORY, TESTS)
    lines = Path(path).read_text().splitlines()
    assert lines[1:3] == ['  "format": "acc-pytest lock",', '  "version": 1,']
    assert '    {"date": "2026-01-02", "reason": "first", "user": "ann"},' in lines
    # The first 12 digits of the SHA-256 of {"a": "<= 0.1 r"}, as JSON with sorted keys.
    assert '    "d::a x": "057c6d5c2240",' in lines
    assert len([line for line in lines if "<= 0.1 r" in line]) == 1


def test_thirty_thousand_tests_take_less_than_four_megabytes(tmp_path: Path) -> None:
    levels = {f"m{number}": parsed("<= 0.0123456789012345 default") for number in range(5)}
    name = "msit_dump::step17::layers.79::LinearOperation_{}_0_0_1_0[input[0]] output[0]"
    write_lock(str(tmp_path / "l"), HISTORY, {name.format(number): levels for number in range(30_000)})
    assert (tmp_path / "l").stat().st_size < 4e6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "is not an acc-pytest lock file"),
        ({"bounds": 3}, "bounds must be an object"),
        ({"tests": {"a": "b"}}, "'a' refers to bounds 'b', which the file does not have"),
        ({"tests": {"a": 3}}, "tests must be an object of strings"),
        ({"history": {}}, "history must be a list"),
        ({"history": [{"date": ""}]}, "an entry of history must have date, user and reason"),
        ({"bounds": {"0": {"a": "<= 9.0 r"}}}, "bounds 0 were edited"),
    ],
)
def test_a_file_that_is_no_lock_is_one_error_naming_it(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    path = tmp_path / "lock.json"
    write_lock(str(path), HISTORY, TESTS)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FormatError) as error:
        read_lock(str(path))
    assert str(error.value).startswith(f"{path}: {said}")
