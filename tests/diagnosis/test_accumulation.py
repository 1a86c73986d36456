"""A pair beyond its bounds of which all operators are right on golden's own: rounding, and no failure."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.diagnosis.accumulation import Accumulation
from acc_pytest.diagnosis.pair_state import PairState
from acc_pytest.diagnosis.recomputation import Recomputation
from acc_pytest.diagnosis.relative_errors import RelativeErrors
from acc_pytest.mapping.pair import Plan
from acc_pytest.tensors.ref import TensorRef

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

    return Accumulation(plan, states.__getitem__, of_golden, unknown).explains(states[-1])


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


def test_of_other_dumps_nothing_is_known(plan: Plan) -> None:
    assert not explained(replace(plan, mine_kind="ge"), "rrrr")


def explained_of_atb(plan: Plan, own: str, golden: str, errors: Sequence[float], number: int = 3) -> bool:
    """Whether a pair of ATB is; `own` and `golden` are what is computed of it, `errors` what is measured.

    Rows say nothing of operators: what passes was computed in vain, what fails was not.
    """
    words = {"r": "right", "w": "wrong", "?": ""}
    states = [with_error(number, error) for number, error in enumerate(errors)]
    found = Accumulation(
        replace(plan, mine_kind="atb"),
        states.__getitem__,
        lambda number: Recomputation(words[golden[number]]),
        lambda number: Recomputation(words[own[number]]),
    )
    return found.explains(states[number])


def test_operators_of_atb_have_to_make_golden_of_its_inputs_too(plan: Plan) -> None:
    """A parameter of mine that golden does not have makes what mine dumped, and not what golden did."""
    errors = (0.001, 0.01, 0.04, 0.06)
    assert explained_of_atb(plan, "rrrr", "rrrr", errors)
    for number in range(4):
        wrong = "".join("w" if each == number else "r" for each in range(4))
        assert not explained_of_atb(plan, "rrrr", wrong, errors), wrong
        assert not explained_of_atb(plan, wrong, "rrrr", errors), wrong


@pytest.mark.parametrize(("error", "explains"), [(0.19, True), (0.21, False)])
def test_what_golden_has_no_inputs_of_is_explained_by_its_own(
    plan: Plan, error: float, explains: bool
) -> None:
    errors = (0.001, 0.049, error, 0.3)
    assert explained_of_atb(plan, "rr?r", "rr?r", errors) is explains
    assert explained_of_atb(plan, "rrrr", "rr?r", errors, number=2) is explains


def test_nothing_is_computed_below_what_is_not_explained(plan: Plan) -> None:
    states = [with_error(number, 0.001 if number < 2 else 0.3) for number in range(4)]
    asked: list[int] = []

    def own(number: int) -> Recomputation:
        asked.append(number)
        return Recomputation("wrong" if number == 2 else "right")

    found = Accumulation(replace(plan, mine_kind="atb"), states.__getitem__, right, own)
    assert not found.explains(states[2])
    assert not found.explains(states[3])
    assert asked == [2]


def test_a_pair_above_that_does_not_run_is_not_known(plan: Plan) -> None:
    states = {3: state(3, "right", failing=True)}
    assert not Accumulation(plan, states.get, right, right).explains(states[3])


def test_it_does_not_where_golden_computes_something_else_than_is_known_of_it(plan: Plan) -> None:
    assert not explained(plan, "rrrr", golden="rwrr")
    assert not explained(plan, "rrrr", golden="r?rr")


def test_an_operator_that_could_not_be_computed_may_be_off_by_what_one_operator_rounds(plan: Plan) -> None:
    assert explained(plan, "r?rr", near="1", golden="r?rr")
    assert not explained(plan, "rwrr", near="1")


def with_error(number: int, error: float, replayed: str = "", **how: Any) -> PairState:
    return replace(
        state(number, replayed, failing=error > 0.05), relative=RelativeErrors(array("f", [error] * 7)), **how
    )


@pytest.mark.parametrize(("error", "explains"), [(0.19, True), (0.21, False)])
def test_what_could_not_be_computed_may_be_as_far_off_as_its_inputs_explain(
    plan: Plan, error: float, explains: bool
) -> None:
    """Four times, of a pair that passes as of one that fails; and what is below it is explained as well."""
    above = [with_error(0, 0.001, "right"), with_error(1, 0.049, "right")]
    own = with_error(2, error)
    found = Accumulation(plan, [*above, own, with_error(3, 0.3, "right")].__getitem__, right, right)
    assert found.explains(own) is explains
    assert found.explains(with_error(3, 0.3, "right")) is explains


def right(_: int) -> Recomputation:
    return Recomputation("right")


def unknown(_: int) -> Recomputation:
    return Recomputation()


@pytest.fixture
def chosen(plan: Plan) -> Plan:
    """The second pair is what a router chose."""
    refs = (TensorRef("chosen.pth"),)
    pair = plan.pairs[1]
    golden, mine = replace(pair.golden, chosen_from=refs), replace(pair.mine, chosen_from=refs)
    return replace(plan, pairs=(plan.pairs[0], replace(pair, golden=golden, mine=mine), *plan.pairs[2:]))


def test_another_choice_makes_other_shapes(chosen: Plan) -> None:
    """The rows of an expert are as many as tokens chose it: a choice that rounding made explains that."""
    other = replace(state(2, "", failing=False), compared=False, shapes_differ=True)
    for outcome, fails, explains in (("right", True, True), ("wrong", True, False), ("right", False, False)):
        choice = state(1, outcome, failing=fails)
        states = [state(0, "right", failing=False), choice if fails else replace(choice, level=0.0), other]
        assert Accumulation(chosen, states.__getitem__, right, right).explains(other) is explains, (
            outcome,
            fails,
        )


def test_below_another_choice_a_typical_row_tells(chosen: Plan) -> None:
    """The rows of some tokens are those of other experts."""
    for typical, explains in ((0.001, True), (0.5, False)):
        errors = RelativeErrors(array("f", [0.5, typical, *[0.5] * 5]), frozenset({0, 1}))
        own = replace(with_error(2, 0.5), relative=errors)
        states = [with_error(0, 0.001, "right"), with_error(1, 0.06, "right"), own]
        states[1] = replace(states[1], relative=RelativeErrors(array("f", [0.001] * 7)))
        assert Accumulation(chosen, states.__getitem__, right, right).explains(own) is explains


def test_what_comes_wholly_after_a_tie_passes_and_needs_no_explanation(plan: Plan) -> None:
    states = [state(number, "right", failing=number == 3) for number in range(4)]
    states[2] = state(2, "", failing=False)
    assert not Accumulation(plan, states.__getitem__, right, right).explains(states[3])
    states[2] = replace(states[2], after_tie=True)
    assert Accumulation(plan, states.__getitem__, right, right).explains(states[3])


def test_what_an_earlier_run_found_stands(plan: Plan) -> None:
    last = replace(state(3, "right", failing=True), accumulated=True)
    assert Accumulation(plan, {3: last}.get, unknown, unknown).explains(last)


@pytest.mark.parametrize(("error", "near"), [(8 * 2**-8, True), (8.1 * 2**-8, False)])
def test_one_operator_in_bfloat16_is_off_by_8_u_at_most(error: float, near: bool) -> None:
    row = row_of(1, 0.5)
    sides = replace(row.golden, dtype="float32"), replace(row.mine, dtype="bfloat16")
    row = replace(row, golden=sides[0], mine=sides[1], metrics={"relative_euclidean_distance": error})
    assert PairState.of(row, 1).near is near
    assert not PairState.of(replace(row, verdict="fail"), 1).near


def test_other_rows_below_a_tie_do_not_hide_what_is_above_a_failure(chosen: Plan) -> None:
    """A choice that differs and passes explains rows of a pair that passes; one that fails was judged without
    them."""
    rows = RelativeErrors(array("f", [0.2, 0.002, 1.0, *[0.2] * 4]), frozenset())
    for fails in (False, True):
        states = [
            with_error(0, 0.001, "right"), with_error(1, 0.001, "right"), state(2, "", failing=fails),
            with_error(3, 0.06, "right"),
        ]  # fmt: skip
        beyond = frozenset({2}) if fails else frozenset()
        states[2] = replace(states[2], relative=replace(rows, beyond=beyond))
        assert Accumulation(chosen, states.__getitem__, right, right).explains(states[3]) is not fails


@pytest.mark.parametrize("seed", range(40))
def test_in_whatever_order_pairs_are_asked_for_all_above_has_to_be_right(seed: int) -> None:
    """Of operators of ATB, all beyond their bounds."""
    rng = random.Random(seed)
    count = rng.randint(1, 40)
    parents = [sorted(rng.sample(range(number), min(number, rng.randint(0, 2)))) for number in range(count)]
    right = [rng.random() < 0.85 for _ in range(count)]
    plan = replace(plan_of(parents), mine_kind="atb")
    states = [state(number, "", failing=True) for number in range(count)]

    def outcome(number: int) -> Recomputation:
        return Recomputation("right" if right[number] else "wrong")

    expected: list[bool] = []
    for number, above in enumerate(parents):
        expected.append(right[number] and all(expected[one] for one in above))
    for _ in range(5):
        asked = rng.sample(range(count), count)
        accumulation = Accumulation(plan, states.__getitem__, outcome, outcome)
        found = {number: accumulation.explains(states[number]) for number in asked}
        assert found == dict(enumerate(expected))
