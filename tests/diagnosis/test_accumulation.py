"""A pair beyond its bounds of which all operators are right on golden's own: rounding, and no failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acc_pytest.diagnosis.accumulation import Accumulation
from acc_pytest.diagnosis.pair_state import PairState
from acc_pytest.diagnosis.recomputation import Recomputation
from acc_pytest.mapping.pair import Plan

from .plans import plan_of, row_of


@pytest.fixture
def plan() -> Plan:
    return replace(plan_of([[], [0], [1], [2]]), mine_kind="torch")


def state(number: int, replayed: str, *, failing: bool) -> PairState:
    return replace(PairState.of(row_of(number, 2.0 if failing else 0.5), number), replayed=replayed)


def explained(plan: Plan, replayed: str, failing: str = "...F", golden: str = "rrrr", near: str = "") -> bool:
    """Whether the last pair is; `replayed`, `failing` and `golden` (its own operators) are a letter a pair.

    `near` are the numbers of those whose error is no more than that of one operator.
    """
    words = {"r": "right", "w": "wrong", "?": ""}
    states: list[PairState] = [
        state(number, words[outcome], failing=letter == "F")
        for number, (outcome, letter) in enumerate(zip(replayed, failing))
    ]
    for number in map(int, near):
        states[number] = replace(states[number], near=True)

    def of_golden(number: int) -> Recomputation:
        return Recomputation(words[golden[number]])

    return Accumulation(plan, states.__getitem__, of_golden).explains(states[-1])


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


def test_an_error_does_not_come_through_ids_that_agree(plan: Plan) -> None:
    """The ids of a decode step were chosen by what is not known; a cache is a result as any other."""
    for kind, explains in (("token ids", True), ("cache", False)):
        fed = replace(plan, pairs=(*plan.pairs[:2], replace(plan.pairs[2], fed=kind), plan.pairs[3]))
        assert explained(fed, "r??r") is explains, kind


def test_parameters_of_mine_are_no_evidence(plan: Plan) -> None:
    assert not explained(replace(plan, mine_kind="atb"), "rrrr")


def test_a_pair_above_that_does_not_run_is_not_known(plan: Plan) -> None:
    states = {3: state(3, "right", failing=True)}
    assert not Accumulation(plan, states.get, lambda _: Recomputation("right")).explains(states[3])


def test_it_does_not_where_golden_computes_something_else_than_is_known_of_it(plan: Plan) -> None:
    assert not explained(plan, "rrrr", golden="rwrr")
    assert not explained(plan, "rrrr", golden="r?rr")


def test_an_operator_that_could_not_be_computed_may_be_off_by_what_one_operator_rounds(plan: Plan) -> None:
    assert explained(plan, "r?rr", near="1", golden="r?rr")
    assert not explained(plan, "rwrr", near="1")


def test_what_an_earlier_run_found_stands(plan: Plan) -> None:
    last = replace(state(3, "right", failing=True), accumulated=True)
    assert Accumulation(plan, {3: last}.get, lambda _: Recomputation()).explains(last)


@pytest.mark.parametrize(("error", "near"), [(8 * 2**-8, True), (8.1 * 2**-8, False)])
def test_one_operator_in_bfloat16_is_off_by_8_u_at_most(error: float, near: bool) -> None:
    row = row_of(1, 0.5)
    sides = replace(row.golden, dtype="float32"), replace(row.mine, dtype="bfloat16")
    row = replace(row, golden=sides[0], mine=sides[1], metrics={"relative_euclidean_distance": error})
    assert PairState.of(row, 1).near is near
    assert not PairState.of(replace(row, verdict="fail"), 1).near
