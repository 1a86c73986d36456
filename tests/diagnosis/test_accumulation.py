"""A pair beyond its bounds of which all operators are right on golden's own: rounding, and no failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acc_pytest.diagnosis.accumulation import Accumulation
from acc_pytest.diagnosis.pair_state import PairState
from acc_pytest.mapping.pair import Plan

from .plans import plan_of, row_of


@pytest.fixture
def plan() -> Plan:
    return replace(plan_of([[], [0], [1], [2]]), mine_kind="torch")


def state(number: int, replayed: str, *, failing: bool) -> PairState:
    return replace(PairState.of(row_of(number, 2.0 if failing else 0.5), number), replayed=replayed)


def explained(plan: Plan, replayed: str, failing: str = "...F") -> bool:
    """Whether the last pair is; `replayed` and `failing` have a letter for each pair."""
    words = {"r": "right", "w": "wrong", "?": ""}
    states: list[PairState] = [
        state(number, words[outcome], failing=letter == "F")
        for number, (outcome, letter) in enumerate(zip(replayed, failing))
    ]
    return Accumulation(plan, states.__getitem__).explains(states[-1])


def test_rounding_explains_a_failure_below_right_operators(plan: Plan) -> None:
    assert explained(plan, "rrrr")
    assert explained(plan, "rrrr", ".FFF")


@pytest.mark.parametrize("replayed", ["rwrr", "r?rr", "rrr?", "?rrr"])
def test_it_does_not_where_an_operator_above_is_wrong_or_not_known(plan: Plan, replayed: str) -> None:
    assert not explained(plan, replayed)


def test_what_the_run_was_fed_has_to_agree(plan: Plan) -> None:
    fed = replace(plan, pairs=(replace(plan.pairs[0], fed="token ids"), *plan.pairs[1:]))
    assert explained(fed, "?rrr")
    assert not explained(fed, "?rrr", "F..F")


def test_parameters_of_mine_are_no_evidence(plan: Plan) -> None:
    assert not explained(replace(plan, mine_kind="atb"), "rrrr")


def test_a_pair_above_that_does_not_run_is_not_known(plan: Plan) -> None:
    states = {3: state(3, "right", failing=True)}
    assert not Accumulation(plan, states.get).explains(states[3])
