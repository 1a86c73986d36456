"""The verdict of a run in one sentence: what breaks first, or that nothing does, or that it is not known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Plan
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.summary import run_verdict, times
from acc_pytest.reporting.view import Diagnosis, Root, Run

from .html.made import inherited, made_row, result_of

PLAN = Plan("/g", "/m", "torch", "atb", "dump", (), (), (), 1, 1, 1, 1)
PAIRS = Run(plan=PLAN)


def root_of(row: Row, **fields: Any) -> Root:
    assert row.number is not None
    given: dict[str, Any] = {
        "inherited": 0,
        "amplification": None,
        "share": None,
        "basis": "",
        "sentence": "",
    }
    return Root(row.number, fields.pop("name", row.name), row.test_id, row, **(given | fields))


def said(rows: list[Row], roots: list[Root], run: Run = PAIRS, complete: bool = True, **fields: Any) -> str:
    diagnosis = Diagnosis(tuple(roots), 0, "") if roots else None
    own = sum(row.red and row.verdict not in ("inherited", "unmapped") for row in rows)
    return run_verdict(run, result_of(rows, diagnosis=diagnosis, **fields), complete, own).text


FAILING = made_row(2, share=151, layer=3)


def test_a_run_breaks_at_its_first_root() -> None:
    other = made_row(7, share=3)
    assert (
        said([FAILING], [root_of(FAILING)])
        == "Breaks at RopeOperation, layers.3, prefill: 151 times its bound"
    )
    assert said([FAILING, other], [root_of(FAILING), root_of(other)]).endswith("its bound; and 1 more")


def test_what_was_fed_is_said_in_its_own_words() -> None:
    row = replace(FAILING, fed="token ids")
    found = said([row], [root_of(row, fed="token ids differ at step 1: golden 5, mine 203")])
    assert found == "The run was fed something else: token ids differ at step 1: golden 5, mine 203"
    row = replace(FAILING, fed="weight")
    found = said([row], [root_of(row, fed="weight norm differs")])
    assert found == "The models differ: weight norm differs"


def test_a_root_named_after_another_operator_is_called_so() -> None:
    assert said([FAILING], [root_of(FAILING, name="NormLinear_2")]).startswith(
        "Breaks at NormLinear_2, layers.3"
    )


def test_a_later_step_is_a_decode_and_a_graph_stays_a_step() -> None:
    later = replace(FAILING, step=2)
    assert ", decode 2: " in said([later], [root_of(later)])
    graph = replace(FAILING, step=2, graph="graph_1")
    assert ", graph_1, step 2: " in said([graph], [root_of(graph)])


def test_a_known_root_is_no_break_of_a_green_run() -> None:
    known = replace(FAILING, verdict="known")
    result = result_of([made_row(0), known], diagnosis=Diagnosis((root_of(known),), 0, ""))
    found = run_verdict(PAIRS, result)
    assert (found.tone, found.text) == ("good", "No difference beyond its bound: 2 pairs")
    assert found.lead == "1 of them differ in a way that is known and accepted."


def test_no_number_of_times_is_said_in_the_words_of_the_row() -> None:
    check = Check("new_nonfinite", 3.0, 0.0, False, "", False)
    row = replace(FAILING, checks=(check,), sentence="3 elements are NaN only in mine")
    assert row.excess == math.inf
    assert said([row], [root_of(row)]).endswith("prefill: 3 elements are NaN only in mine")


def test_nothing_compared_is_said() -> None:
    assert said([], [], exit_status=5) == "Nothing was compared"
    skipped = made_row(1, verdict="incomparable", skipped=True, checks=())
    assert said([skipped], [], exit_status=5) == "Nothing was compared: none of 1 pairs could be"


def test_a_green_comparison_in_a_red_run_says_why_it_is_red() -> None:
    rows = [made_row(0)]
    problem = run_verdict(PAIRS, result_of(rows, exit_status=1, problems=("the baseline is stale",)))
    assert (problem.tone, problem.lead) == ("bad", "the baseline is stale")
    assert problem.text == "No difference beyond its bound: 1 pairs, but the run fails"
    pairs: Any = (None,)
    plan = replace(PLAN, pairs=pairs, golden_total=10, golden_mapped=2, mine_total=0)
    floor = run_verdict(Run(plan=plan, floor=0.5), result_of(rows, exit_status=1))
    assert floor.lead == "only 20.0% of the nodes could be mapped, the floor is 50.0%"
    other = run_verdict(PAIRS, result_of(rows, exit_status=1))
    assert other.lead == "pytest ended with exit status 1."


def test_a_run_that_was_stopped_is_incomplete() -> None:
    nine: Any = (None,) * 9
    plan = replace(PLAN, pairs=nine)
    assert said([made_row(0)], [], Run(plan=plan), complete=False, exit_status=2) == (
        "Incomplete: 1 of 9 pairs were compared, none fails"
    )
    broken = said([FAILING], [root_of(FAILING)], complete=False)
    assert broken.startswith("Incomplete, and already broken: breaks at RopeOperation")


def test_without_roots_the_worst_is_named() -> None:
    checks = [
        replace(made_row(n, share=share), layer="", step="") for n, share in ((0, 4), (1, 40), (2, 0.1))
    ]
    checks.append(replace(checks[1], checks=made_row(1, share=3).checks))
    found = run_verdict(Run("opcheck"), result_of(checks), True, 3)
    assert found.text == "2 of 3 tests fail"
    assert found.lead == "3 of 4 outputs fail, the worst: RmsNormOperation_0_1, output[0]: 40 times its bound"
    assert said(checks[:1], [], Run()) == "Fails at LinearOperation: 4 times its bound"


def test_unmapped_nodes_that_must_not_be_are_no_failed_comparison() -> None:
    row = made_row(1, verdict="unmapped", strict=True, checks=(), sentence="no such node")
    assert said([row], []) == "Fails at RmsNormOperation_0_1: no such node"


def test_strictly_inherited_failures_count_as_inherited() -> None:
    rows = [FAILING, inherited(made_row(5, share=9, strict=True), FAILING)]
    lead = run_verdict(PAIRS, result_of(rows, diagnosis=Diagnosis((root_of(FAILING),), 1, "")), True, 1).lead
    assert lead == "1 of 2 pairs fails on its own; 1 more inherits from what fails."


@pytest.mark.parametrize(
    ("excess", "words"),
    [(1.3, "1.3"), (12.4, "12"), (99.6, "100"), (151.4, "151"), (2.3e7, "2e7"), (4e30, "4e30")],
)
def test_a_number_of_times_has_no_digits_that_mean_nothing(excess: float, words: str) -> None:
    assert times(excess) == words
