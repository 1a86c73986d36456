"""The entry that is offered for a failing row accepts that row, and not its neighbours."""

from __future__ import annotations

import datetime
import math
import sys
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.gate.baseline import entry_of
from acc_pytest.gate.known import KnownGate
from acc_pytest.judging.rules import Known, known_from_table
from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.row import Row, RowSide

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TODAY = datetime.datetime.now(datetime.timezone.utc).date()
ROW = Row(
    "d::step1::layers.1::Norm_3",
    "fail",
    "error is 5",
    layer="layers.1",
    step=1,
    mine=RowSide(node="3_layer/1_Norm", name="Norm_3"),
    metrics={"relative_euclidean_distance": 0.856},
)


def known_of(row: Row) -> Known:
    """The entry that is offered for a row, as it is read from a config file."""
    (table,) = tomllib.loads("\n".join(entry_of(row, TODAY)))["known"]
    return known_from_table(table, "pasted", TODAY)


def gate(row: Row) -> KnownGate:
    return KnownGate([known_of(row)])


@pytest.mark.parametrize("error", [0.0, 1e-30, 0.0104999, 0.856, 0.96, 1.0, 20.0, 123456.0])
@pytest.mark.parametrize("name", ["3_layer/1_Norm", 'a "b" [0]*?', "\u6f02\u79fb\\x", "n\x7f\n"])
def test_the_pasted_entry_accepts_the_row(name: str, error: float) -> None:
    row = replace(ROW, mine=RowSide(node=name), metrics={"relative_euclidean_distance": error})
    assert gate(row).apply(row).verdict == "known"
    worse = replace(row, metrics={"relative_euclidean_distance": error * 1.2 + 1e-33})
    assert gate(row).apply(worse).verdict == "fail"


@pytest.mark.parametrize(
    "other",
    [
        replace(ROW, step=2),
        replace(ROW, layer="layers.2"),
        replace(ROW, mine=RowSide(node="3_layer/2_Norm", name="Norm_4")),
    ],
)
def test_another_operator_layer_or_step_stays_red(other: Row) -> None:
    assert gate(ROW).apply(other).verdict == "fail"


def test_a_row_without_a_relative_error_is_accepted_by_the_metric_that_it_fails_by() -> None:
    checks = (
        Check("cosine_similarity", 0.5, 0.9, True, "", False),
        Check("mismatches", 3.0, 10.0, False, "", True),
        Check("baseline.mismatches", 12.0, 10.0, False, "", False),
        Check("new_nonfinite", 40.0, 0.0, False, "", False),
    )
    row = replace(ROW, metrics={"relative_euclidean_distance": math.nan}, checks=checks)
    assert list(entry_of(row, TODAY))[-1] == "at_most.new_nonfinite = 42"
    assert gate(row).apply(row).verdict == "known"


def test_an_entry_is_lines_to_paste_that_hold_for_a_quarter() -> None:
    assert list(entry_of(ROW, datetime.date(2026, 11, 22))) == [
        "[[known]]",
        'match.name = "Norm_3"',
        'match.layer = "layers.1"',
        "match.step = 1",
        'reason = "WHY IT IS RIGHT"',
        'owner = "WHOSE IT IS"',
        "expires = 2027-02-20",
        "at_most.relative_euclidean_distance = 0.90",
    ]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"step": ""}, None),
        ({"step": 2.5}, None),
        ({"step": "warm"}, 'match.step = "warm"'),
        ({"layer": ""}, None),
        ({"metrics": {}}, None),
        ({"metrics": {"relative_euclidean_distance": 3}}, "at_most.relative_euclidean_distance = 3.2"),
        ({"metrics": {"relative_euclidean_distance": 2e-7}}, "at_most.relative_euclidean_distance = 2.1e-07"),
        ({"metrics": {"relative_euclidean_distance": 20.0}}, "at_most.relative_euclidean_distance = 21"),
        ({"mine": RowSide(node="a[0]*")}, 'match.name = "a[[]0][*]"'),
        ({"mine": RowSide(), "golden": RowSide(name="g")}, 'match.name = "g"'),
        ({"mine": RowSide()}, 'match.name = "d::step1::layers.1::Norm_3"'),
        ({"mine": RowSide(name="\x7f\ud800", node="n")}, 'match.name = "\\u007f?"'),
    ],
)
def test_what_tells_a_row_from_others_is_written_where_it_has_it(
    change: dict[str, Any], line: str | None
) -> None:
    before, after = (list(entry_of(row, TODAY)) for row in (ROW, replace(ROW, **change)))
    [gone] = [each for each in before if each not in after]
    assert [each for each in after if each not in before] == ([line] if line else [])
    assert gone.partition(" =")[0] == (line or gone).partition(" =")[0]
