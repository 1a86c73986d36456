"""Known differences: which failing pair an entry accepts, and why it accepts another one no more."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest

from acc_pytest.gate.known import KnownGate, measured
from acc_pytest.judging.rules import Known, known_from_table
from acc_pytest.judging.verdict import Check

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
    ],
)
def test_what_a_row_is_matched_by(match: dict[str, Any], accepted: bool) -> None:
    given = row(0.5, verdict="fail", dtype="torch.float16;torch.float16", level="op", policy="role", step=3)
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
