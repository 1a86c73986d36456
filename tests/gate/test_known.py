"""Known differences: which failing pair an entry accepts, and why it accepts another one no more."""

from __future__ import annotations

import datetime
import math
import sys
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.gate.known import KnownGate, entry_of, measured
from acc_pytest.judging.rules import Known, known_from_table
from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.row import Row, RowSide

from .rows import row

TODAY = datetime.datetime.now(datetime.timezone.utc).date()
RELATIVE = "relative_euclidean_distance"
FAILING = row(
    0.5, verdict="fail", sentence="error is 0.5", reasons=("it is NaN", "error is 0.5"), notes=("a",)
)


def entry(name: str, days: int = 0, /, match: dict[str, Any] | None = None, at_most: float = 1.0) -> Known:
    """An entry for `m` that holds for so many more days, up to a relative error of `at_most`."""
    table = {
        "match": {"name": "m"} | (match or {}),
        "reason": "other kernel",
        "owner": "ann",
        "expires": TODAY + datetime.timedelta(days=days),
        "at_most": {RELATIVE: at_most},
    }
    return known_from_table(table, name, TODAY)


def test_an_accepted_failure_says_by_whom_and_keeps_its_other_reasons() -> None:
    known = KnownGate([entry("k.toml 1")]).apply(FAILING)
    sentence = f"known: other kernel (ann, until {TODAY}); error is 0.5"
    assert (known.verdict, known.sentence) == ("known", sentence)
    assert (known.reasons, known.notes) == (("it is NaN", sentence), ("a",))


@pytest.mark.parametrize("verdict", ["pass", "tie", "inherited", "incomparable", "unmapped"])
def test_only_failures_are_accepted(verdict: str) -> None:
    given = row(0.5, verdict=verdict)
    assert KnownGate([entry("k")]).apply(given) is given


def test_an_entry_about_another_pair_or_of_yesterday_accepts_nothing() -> None:
    other = entry("k", match={"name": "x"})
    assert KnownGate([other]).apply(FAILING) is FAILING
    assert KnownGate([entry("k", -1)]).apply(FAILING) is FAILING
    assert KnownGate([other, entry("k")]).apply(FAILING).verdict == "known"


@pytest.mark.parametrize(
    ("match", "accepted"),
    [
        ({"dtype": "float16"}, True),
        ({"mine_dtype": "float32"}, False),
        ({"layer": "layers.0"}, True),
        ({"op_type": "Linear"}, True),
        ({"op_type": "LinearOperation"}, True),
        ({"level": "op"}, True),
        ({"policy": "role"}, True),
        ({"step": 3}, True),
        ({"step": 0}, False),
        ({"name": "dump"}, False),
        *(({"name": name}, True) for name in ("g", "golden.node", "m", "mine_node")),
    ],
)
def test_what_a_row_is_matched_by(match: dict[str, Any], accepted: bool) -> None:
    given = row(0.5, verdict="fail", dtype="torch.float16;torch.float16", level="op", policy="role", step=3)
    golden, mine = replace(given.golden, node="golden.node"), replace(given.mine, node="mine_node")
    given = replace(given, golden=golden, mine=mine)
    assert (KnownGate([entry("k", match=match)]).apply(given).verdict == "known") is accepted


def test_a_row_outside_of_layers_is_of_the_model() -> None:
    given = row(0.5, verdict="fail", layer="")
    assert KnownGate([entry("k", match={"layer": "model"})]).apply(given).verdict == "known"


@pytest.mark.parametrize(
    ("error", "bound", "said"),
    [
        (0.5, 0.5, ""),
        (0.5, 0.4, f"{RELATIVE} 0.5 is more than the accepted 0.4"),
        (math.nan, 0.4, f"{RELATIVE} has no value, and at most 0.4 of it is accepted"),
        (None, 0.4, f"{RELATIVE} has no value, and at most 0.4 of it is accepted"),
    ],
)
def test_beyond_its_bound_an_entry_accepts_nothing_and_says_so(
    error: float | None, bound: float, said: str
) -> None:
    given = row(error, verdict="fail", notes=("a",))
    judged = KnownGate([entry("k.toml 1", at_most=bound)]).apply(given)
    assert judged.verdict == ("fail" if said else "known")
    assert judged.notes == (("a", f"known: not accepted by k.toml 1: {said}") if said else ("a",))


def test_the_first_entry_that_accepts_counts() -> None:
    entries = [entry("first", at_most=0.1), entry("second", at_most=1.0)]
    assert KnownGate(entries).apply(FAILING).verdict == "known"


def test_a_metric_is_looked_up_wherever_a_row_has_it() -> None:
    check = Check("rmse", 0.1, 0.2, False, "", True)
    given = row(
        0.5,
        checks=(check, Check("snr", None, 0.2, False, "", False)),
        counts={"mismatches": 3, "none": None},
        custom={"psnr": 40.0, "text": "no"},
        statistics={"compared": 7, "rmse": 9.0},
    )
    values = {
        name: measured(given, name) for name in ("rmse", "snr", RELATIVE, "mismatches", "psnr", "compared")
    }
    assert values == {
        "rmse": 0.1, "snr": None, RELATIVE: 0.5, "mismatches": 3.0, "psnr": 40.0, "compared": 7.0,
    }  # fmt: skip
    assert [measured(given, name) for name in ("none", "text", "absent")] == [None] * 3


# The entry that is offered for a failing row accepts that row, and not its neighbours.


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
