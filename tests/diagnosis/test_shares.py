"""How much of the final error each root explains: numbers worked out by hand, and what must always hold."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given

from acc_pytest.diagnosis.evidence import PairState
from acc_pytest.diagnosis.summary import shares
from acc_pytest.reporting.row import Cause

from .plans import inheritance_of
from .test_inheritance import DrawnRun, runs


def state(number: int, error: float | None, level: float = 2.0) -> PairState:
    return PairState(number, True, level > 1, level, error, f"Op_{number}")


def root(number: int, local_error: float | None = None) -> Cause:
    return Cause(
        "root", "dataflow", (), number, local="wrong" if local_error else "", local_error=local_error
    )


def inherited(*parents: int) -> Cause:
    return Cause("inherited", "dataflow", parents, parents[0])


def test_one_root_on_the_only_way_explains_all_but_what_came_in() -> None:
    parents = ((), (0,), (1,))
    states = {0: state(0, 0.01, 0.1), 1: state(1, 0.05), 2: state(2, 0.07)}
    found = shares(2, 0, parents, states, {1: root(1), 2: inherited(1)})
    assert found == {1: pytest.approx(1 - (0.01 / 0.05) ** 2)}


def test_two_branches_share_by_their_squares() -> None:
    parents = ((), (), (0, 1))
    states = {0: state(0, 0.3), 1: state(1, 0.4), 2: state(2, 0.5)}
    found = shares(2, 0, parents, states, {0: root(0), 1: root(1), 2: inherited(0, 1)})
    assert found == {0: pytest.approx(9 / 25), 1: pytest.approx(16 / 25)}


def test_a_second_root_keeps_its_local_error_and_hands_on_the_rest() -> None:
    parents = ((), (0,), (1,))
    states = {number: state(number, error) for number, error in enumerate((0.3, 0.5, 0.5))}
    second = replace(root(1, 0.4), parents=(0,))
    found = shares(2, 0, parents, states, {0: root(0), 1: second, 2: inherited(1)})
    assert found == {1: pytest.approx(16 / 25), 0: pytest.approx(9 / 25)}


def test_a_final_output_that_passes_has_nothing_to_explain() -> None:
    states = {0: state(0, 0.3), 1: state(1, 0.001, 0.5)}
    assert shares(1, 0, ((), (0,)), states, {0: root(0)}) == {}


def test_the_error_reaches_its_root_through_a_pair_that_passes() -> None:
    parents = ((), (0,), (1,))
    states = {0: state(0, 0.4), 1: state(1, 0.5, 0.9), 2: state(2, 0.5)}
    found = shares(2, 0, parents, states, {0: root(0), 2: inherited(0)})
    assert found == {0: pytest.approx(1.0)}


def test_an_error_that_came_by_way_of_a_pair_without_a_result_is_that_of_the_pairs_behind_it() -> None:
    parents = ((), (), (0, 1), (2,))
    states = {0: state(0, 0.3), 1: state(1, 0.4), 3: state(3, 0.5)}
    found = shares(3, 0, parents, states, {0: root(0), 1: root(1), 3: inherited(0, 1)})
    assert found == {0: pytest.approx(9 / 25), 1: pytest.approx(16 / 25)}


def test_a_nan_explains_everything() -> None:
    parents = ((), (), (0, 1))
    nan = math.inf
    states = {0: state(0, 0.0002, nan), 1: state(1, 0.3), 2: state(2, 0.0002, nan)}
    found = shares(2, 0, parents, states, {0: root(0), 1: root(1), 2: inherited(0, 1)})
    assert found == {0: 1.0}


def test_a_root_without_an_error_keeps_all_where_nothing_is_above_it_and_else_nothing() -> None:
    """It fails by another metric; what is above it has an error that the pair itself does not."""
    states = {0: state(0, 0.01, 0.1), 1: state(1, 0.0)}
    assert shares(1, 0, ((), (0,)), states, {1: root(1)}) == {1: 0.0}
    assert shares(1, 0, ((), ()), states, {1: root(1)}) == {1: 1.0}
    nothing = {0: state(0, 0.0, 0.1), 1: state(1, 0.0)}
    assert shares(1, 0, ((), (0,)), nothing, {1: root(1)}) == {1: 0.0}


def test_what_came_of_an_earlier_step_has_no_part_in_this_one() -> None:
    states = {0: state(0, 0.3), 1: state(1, 0.4), 2: state(2, 0.5)}
    causes = {0: root(0), 1: root(1), 2: inherited(0, 1)}
    assert shares(2, 1, ((), (), (0, 1)), states, causes) == {1: pytest.approx(1.0)}
    assert shares(2, 1, ((), (), (0,)), states, {**causes, 2: inherited(0)}) == {}
    assert shares(2, 0, ((), (), (0, 1)), states, causes)[0] == pytest.approx(9 / 25)


def test_levels_take_the_place_of_errors_that_have_no_value() -> None:
    """Statistics have no relative error; 3 and 4 times what is allowed are 9 and 16 parts."""
    parents = ((), (), (0, 1))
    states = {0: state(0, None, 3.0), 1: state(1, 0.9, 4.0), 2: state(2, 0.9, 5.0)}
    found = shares(2, 0, parents, states, {0: root(0), 1: root(1), 2: inherited(0, 1)})
    assert found == {0: pytest.approx(9 / 25), 1: pytest.approx(16 / 25)}
    states[0] = state(0, math.nan, 3.0)
    assert shares(2, 0, parents, states, {0: root(0), 1: root(1), 2: inherited(0, 1)}) == {0: 1.0}


def test_a_root_with_a_nan_keeps_all_but_where_a_nan_came_in() -> None:
    parents = ((), (0,))
    nan = state(1, 0.1, math.inf)
    assert shares(1, 0, parents, {0: state(0, 0.1), 1: nan}, {1: root(1)}) == {1: 1.0}
    both = {0: state(0, 0.1, math.inf), 1: nan}
    assert shares(1, 0, parents, both, {0: root(0), 1: root(1)}) == {0: 1.0, 1: 0.0}


def test_a_root_adds_nothing_where_more_came_in_than_went_out_and_no_more_than_all() -> None:
    states = {0: state(0, 0.8), 1: state(1, 0.4)}
    assert shares(1, 0, ((), (0,)), states, {0: root(0), 1: root(1)}) == {1: 0.0, 0: 1.0}
    second = replace(root(1, 0.9), parents=(0,))
    assert shares(1, 0, ((), (0,)), states, {0: root(0), 1: second})[1] == 1.0


def test_the_local_error_counts_only_of_a_second_mistake() -> None:
    states = {0: state(0, 0.3, 0.9), 1: state(1, 0.5)}
    assert shares(1, 0, ((), (0,)), states, {1: root(1, 0.1)}) == {1: pytest.approx(16 / 25)}


def test_pairs_without_a_result_get_equal_parts() -> None:
    """Both ways up are unseen: behind one is a root, behind the other one that adds a quarter."""
    parents = ((), (), (0,), (1,), (2, 3))
    states = {0: state(0, 0.3), 1: state(1, 0.4), 4: state(4, 0.5)}
    found = shares(4, 0, parents, states, {0: root(0), 1: root(1), 4: inherited(2, 3)})
    assert found == {0: pytest.approx(0.5), 1: pytest.approx(0.5)}
    states[2] = PairState(2, False, False, 0.0, None, "incomparable")
    assert shares(4, 0, parents, states, {0: root(0), 1: root(1), 4: inherited(2, 3)}) == found


def test_a_final_output_without_a_known_way_up_explains_nothing() -> None:
    states = {0: state(0, 0.3), 1: state(1, 0.5)}
    assert shares(1, 0, ((),), states, {0: root(0), 1: inherited(0)}) == {0: pytest.approx(1.0)}
    later = {0: root(0), 1: inherited(0, 2)}
    assert shares(1, 0, (), {**states, 2: state(2, 0.3)}, later) == {0: pytest.approx(1.0)}, "2 is no parent"


@given(runs())
def test_shares_are_parts_of_one_whole(run: DrawnRun) -> None:
    plan, levels, known = run
    inheritance, states, _ = inheritance_of(plan, levels, known)
    causes = {n: inheritance.cause(one) for n, one in states.items() if one.failing}
    for final in states:
        found = shares(final, 0, plan.parents, states, causes)
        assert all(0 <= share <= 1 for share in found.values())
        assert sum(found.values()) <= 1 + 1e-9
        assert set(found) <= {n for n, cause in causes.items() if cause.kind == "root"}
