"""What a run does not prove is said first: partial, the same twice, empty, zero, not finite."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from acc_pytest.judging.tolerance import CAP
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import LAST_OUTPUT, Plan
from acc_pytest.reporting.row import Row, RowSide
from acc_pytest.reporting.summary import Tally, shortfalls, summary_lines

SIDE = RowSide(name="op", min=-1.0, max=1.0)
ROW = Row("id", "pass", "s", 0, step=0, level="op", golden=SIDE, mine=SIDE, counts={"elements": 6})
ZERO = RowSide(min=0.0, max=0.0)


def plan(mapped: int = 10, mine: str = "m", kind: str = "torch") -> Plan:
    return Plan("g", mine, kind, "torch", "d", (), (), (), 10, mapped, 10, 10)


def tallied(*rows: Row) -> Tally:
    tally = Tally()
    for row in random.Random(3).sample(rows, len(rows)):
        tally.add(row)
    return tally


def said(made: Plan | None, *rows: Row) -> list[str]:
    return tallied(*rows).caveats.first(made)


def test_a_whole_comparison_of_numbers_has_no_caveat() -> None:
    assert said(plan(9), ROW) == []
    assert summary_lines(tallied(ROW), plan(9), 0.5)[0] == "verdicts: 1 pass"


def test_partial_and_the_same_directory_are_said_first() -> None:
    line = summary_lines(tallied(ROW), plan(4, mine="g"), 0.5)[0]
    assert line == "partial: 40 % of golden's tensors were compared; golden and mine are the same directory"
    assert said(plan(kind="manual", mine="g"), ROW) == []


def test_empty_results_and_zeros_are_counted_and_what_the_run_was_fed_is_not() -> None:
    empty, zero = replace(ROW, counts={"elements": 0}), replace(ROW, golden=ZERO, mine=ZERO)
    fed = [replace(row, fed="mask") for row in (empty, zero)]
    assert said(None, ROW, empty, zero, zero, *fed) == [
        "1 of 4 results are empty",
        "2 of 4 results are nothing but zeros",
    ]
    assert said(None, replace(zero, mine=SIDE)) == []


@pytest.mark.parametrize(
    ("counts", "level", "fed", "finite"),
    [
        ({"golden_nan": 1}, "op", "", False),
        ({"golden_nan": 1}, "op", "weight", False),
        ({"golden_nan": 1}, "op", "mask", True),
        ({"golden_nan": 1}, "op", "cache", True),
        ({"golden_inf": 1}, "op", "", True),
        ({"golden_inf": 6}, "op", "", False),
        ({"golden_inf": 1}, "layer", "", False),
        ({"golden_inf": 1, "golden_nan": 0}, "module", "buffer", True),
        ({"my_nan": 1}, "layer", "", True),
    ],
)
def test_a_golden_that_is_not_finite_fails_the_run(
    counts: dict[str, int], level: str, fed: str, finite: bool
) -> None:
    rows = [
        replace(ROW, number=n, golden=replace(SIDE, name=f"op{n}"), level=level, fed=fed) for n in range(9)
    ]
    bad = [replace(row, counts={"elements": 6, **counts}) for row in rows[4:]]
    found = shortfalls(tallied(*rows[:4], *bad), None, 0.5)
    sentence = "golden is not finite from op4 (step 0) on, so the run fails; dump one without NaN and Inf"
    assert found == ([] if finite else [sentence])
    assert said(None, *bad) == found


def test_a_module_may_be_handed_a_mask_with_infinite_places() -> None:
    row = replace(ROW, level="layer", counts={"elements": 6, "golden_inf": 3})
    handed = replace(row, golden=replace(SIDE, slot="input[1]"))
    assert said(None, handed) == []
    assert said(None, replace(row, golden=replace(SIDE, slot="output[0]"))) != []


def test_what_is_absent_is_said_where_its_test_has_failed() -> None:
    absent = Row("id", "incomplete", "incomplete mine: x", 3, strict=True)
    end = replace(absent, sentence=f"incomplete golden: {LAST_OUTPUT}: x")
    assert said(None, absent, absent, end) == [
        LAST_OUTPUT,
        "incomplete: a dump lacks what it states",
    ]
    assert said(None, replace(absent, strict=False), replace(end, strict=False)) == []


def test_pairs_at_the_cap_are_counted() -> None:
    check = Check("relative_euclidean_distance", 0.2, CAP, False, f"default: T = 1, capped at {CAP:g}", True)
    capped = replace(ROW, checks=(check, check))
    lines = [summary_lines(tallied(ROW, *[capped] * number), None, 0.5)[1:] for number in range(3)]
    assert lines == [
        [],
        ["1 pair was held against the cap of 0.25"],
        ["2 pairs were held against the cap of 0.25"],
    ]
