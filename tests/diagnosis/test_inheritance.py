"""Roots and inherited failures: who fails because of whom, whatever runs, in whatever order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.base.reason import Reason
from acc_pytest.base.vocabulary import EARLIER_CALLS
from acc_pytest.diagnosis import inheritance
from acc_pytest.diagnosis.evidence import PairState
from acc_pytest.diagnosis.inheritance import JUMP, RATE, Ancestors, Inheritance
from acc_pytest.diagnosis.summary import shares
from acc_pytest.mapping.pair import Gap, Plan
from acc_pytest.reference.recomputation import Recomputation
from acc_pytest.reporting.row import Cause

from .plans import Locals, inheritance_of, plan_of, row_of

DrawnRun = tuple[Plan, dict[int, float], dict[int, str]]
"""A plan, how far its pairs are beyond their bounds, and what computing them again says."""

CHAIN = ((), (0,), (1,), (2,))
"""Four operators, one after the other."""


def causes(
    parents: Sequence[Sequence[int]],
    levels: Mapping[int, float],
    known: Mapping[Any, str] | None = None,
    **more: Any,
) -> dict[int, Cause]:
    """The causes of all failing pairs, asked for in execution order."""
    inheritance, states, _ = inheritance_of(plan_of(parents, **more), levels, known)
    return {n: inheritance.cause(one) for n, one in states.items() if one.failing}


def test_only_the_first_of_a_chain_is_a_root_and_the_others_name_it() -> None:
    found = causes(CHAIN, {0: 0.1, 1: 5, 2: 6, 3: 7})
    assert {number: cause.kind for number, cause in found.items()} == {
        1: "root",
        2: "inherited",
        3: "inherited",
    }
    assert {(cause.root, cause.root_name) for cause in found.values()} == {(1, "Op_1")}
    assert found[1].parents == ()
    assert found[3].parents == (2,)
    assert found[3].text == "inherited from Op_1 at step 0 by way of Op_2"


def test_a_pair_that_does_not_run_or_has_no_result_is_walked_through() -> None:
    inheritance, states, _ = inheritance_of(plan_of(CHAIN), {0: 5, 3: 5})
    assert inheritance.cause(states[3]).parents == (0,)


def test_a_pair_alone_is_a_root_for_what_does_not_run_excuses_nobody() -> None:
    found = causes(CHAIN, {3: 5})
    assert found[3].kind == "root"
    assert "Op_2, Op_1, Op_0" in found[3].text


def test_parents_that_pass_make_a_root_and_the_jump_is_told() -> None:
    found = causes(CHAIN, {0: 0.2, 1: 5})
    assert (found[1].kind, found[1].amplification) == ("root", pytest.approx(25))


def test_a_second_mistake_below_the_first_is_a_root_when_its_operator_is_wrong() -> None:
    found = causes(CHAIN, {0: 2, 1: 2, 2: 2 * JUMP + 0.1, 3: 9}, {0: "wrong", 2: "wrong"})
    assert [found[n].kind for n in range(4)] == ["root", "inherited", "root", "inherited"]
    assert (found[2].basis, found[2].parents, found[3].root) == ("local", (1,), 2)


def test_an_operator_that_amplifies_and_is_right_inherits() -> None:
    found = causes(CHAIN, {0: 2, 1: 2 * JUMP + 0.1}, {0: "wrong", 1: "right"})
    assert (found[1].kind, found[1].local) == ("inherited", "right")


def test_operators_are_computed_again_only_where_that_can_decide_something() -> None:
    parents = CHAIN
    inheritance, states, locals_ = inheritance_of(plan_of(parents), {0: 2, 1: 3, 2: 4, 3: 5})
    for state in states.values():
        inheritance.cause(state)
    assert set(locals_.asked) == {0}


def test_an_error_that_accumulated_is_called_after_the_operator_above_that_is_wrong() -> None:
    found = causes(CHAIN, {0: 0.4, 1: 0.9, 2: 0.95, 3: 1.1}, {1: "wrong", 2: "right", 3: "right"})
    assert (found[3].kind, found[3].root, found[3].root_name) == ("root", 3, "Op_1")
    assert found[3].basis == "local"


def test_an_error_that_accumulated_from_right_operators_says_so() -> None:
    found = causes(CHAIN, {0: 0.4, 1: 0.9, 2: 0.95, 3: 1.1}, dict.fromkeys(range(4), "right"))
    assert (found[3].kind, found[3].root_name) == ("root", "Op_3")
    assert (
        "right on its own inputs, and its inputs agree: more error came from above than rounding makes"
        in found[3].text
    )


def test_nothing_accumulated_above_a_right_operator_whose_inputs_are_exact() -> None:
    found = causes(CHAIN, {0: 0, 1: 0, 2: 0, 3: 1.1}, dict.fromkeys(range(4), "right"))
    assert (found[3].kind, found[3].root_name) == ("root", "Op_3")
    assert found[3].text.endswith("other ones than golden's (weights, parameters, ids)")


def test_a_right_operator_behind_a_pair_that_passes_inherits_from_the_failing_one_behind_it() -> None:
    found = causes(CHAIN, {0: 5, 1: 0.9, 2: 1.1}, {0: "wrong", 2: "right"})
    assert (found[2].kind, found[2].parents, found[2].root) == ("inherited", (0,), 0)


def test_a_right_operator_whose_error_jumps_has_other_weights_or_parameters() -> None:
    found = causes(CHAIN, {0: 0.001, 1: 50}, {0: "right", 1: "right"})
    assert (found[1].kind, found[1].root_name) == ("root", "Op_1")
    assert "weights, parameters" in found[1].text


def test_a_jump_behind_values_that_hide_an_error_inherits_where_golden_confirms_the_operator() -> None:
    """A mask of -10,000 makes the bound of what is added to it so wide that the sum passes."""
    known = {0: "wrong", 1: "right", 2: "right", ("golden", 2): "right"}
    found = causes(CHAIN, {0: 9, 1: 0.001, 2: 9}, known)
    assert (found[2].kind, found[2].root_name, found[2].parents) == ("inherited", "Op_0", (0,))
    assert causes(CHAIN, {0: 9, 1: 0.001, 2: 9}, {**known, ("golden", 2): "wrong"})[2].kind == "root"


def test_a_wrong_operator_hidden_by_large_values_gives_the_root_its_name() -> None:
    known = {1: "wrong", 2: "right", ("golden", 2): "right"}
    found = causes(CHAIN, {0: 0.1, 1: 0.001, 2: 9}, known)
    assert (found[2].kind, found[2].root_name) == ("root", "Op_1")


def test_what_the_other_layers_do_not_have_is_told() -> None:
    unlike = {0: "right", 1: "right", ("unlike", "1_Op"): "its epsilon is 1, that of layer 3_L is 1e-05"}
    found = causes(CHAIN, {0: 0.001, 1: 50}, unlike)
    assert found[1].root_name == "Op_1"
    assert found[1].text.endswith("inputs, but its epsilon is 1, that of layer 3_L is 1e-05")


def test_what_the_other_layers_do_not_have_names_the_operator_above_or_between() -> None:
    unlike = "its activationType is 0, that of layer 3_L is 6"
    above = causes(
        CHAIN, {0: 0.1, 1: 0.7, 2: 1.5}, {0: "right", 1: "right", 2: "right", ("unlike", "1_Op"): unlike}
    )
    assert (above[2].root, above[2].root_name) == (2, "Op_1")
    assert f"Op_1 above it is within its thresholds, but {unlike}" in above[2].text
    paths = ("2_Layer/3_LinearOperation", "2_Layer/1_ActivationOperation")
    between = causes(CHAIN, {2: 0.01, 3: 5}, {3: "right", ("unlike", paths[1]): unlike}, between={3: paths})
    assert (between[3].root, between[3].root_name) == (3, "ActivationOperation_2_1")
    assert unlike in between[3].text
    unknown = causes(CHAIN, {0: 0.1, 1: 5}, {("unlike", "1_Op"): unlike})
    assert f"; {unlike} (not computed again" in unknown[1].text


def test_an_operator_that_is_not_compared_and_wrong_gives_the_root_its_name() -> None:
    hidden = "2_Layer/1_RopeOperation"
    found = causes(CHAIN, {2: 0.1, 3: 5}, {hidden: "wrong"}, between={3: (hidden,)})
    assert (found[3].root, found[3].root_name, found[3].basis) == (3, "RopeOperation_2_1", "local")


def test_an_operator_that_is_not_compared_and_cannot_be_computed_is_a_suspect() -> None:
    found = causes(CHAIN, {2: 0.1, 3: 5}, between={3: ("2_Layer/1_RopeOperation",)})
    assert "not compared: RopeOperation_2_1" in found[3].text


def test_a_pair_of_its_own_step_is_the_reason_before_one_of_an_earlier_step() -> None:
    parents = ((), (), (1, 0))
    found = causes(parents, {0: 5, 1: 5, 2: 5}, steps=(0, 1, 1))
    assert (found[2].root, found[2].parents) == (1, (1, 0))


def test_an_earlier_step_is_the_reason_where_its_own_has_none() -> None:
    found = causes(((), (), (1, 0)), {0: 5, 1: 0.1, 2: 5}, steps=(0, 1, 1))
    assert (found[2].kind, found[2].root) == ("inherited", 0)


def test_by_order_alone_a_tenfold_jump_is_a_root_of_its_own() -> None:
    order = frozenset(range(4))
    found = causes(CHAIN, {0: 2, 1: 2 * JUMP + 1, 2: 9 * RATE + 1, 3: 95}, by_order=order)
    assert [found[n].kind for n in range(4)] == ["root", "inherited", "root", "inherited"]
    assert {cause.basis for cause in found.values()} == {"order"}
    assert "rate of change" in found[2].text


@pytest.mark.parametrize(
    ("by_order", "times", "kind"),
    [(False, 4.0, "inherited"), (False, 4.001, "root"), (True, 10.0, "inherited"), (True, 10.001, "root")],
)
def test_an_error_may_grow_fourfold_and_tenfold_by_order(by_order: bool, times: float, kind: str) -> None:
    order = frozenset(range(4)) if by_order else frozenset[int]()
    found = causes(CHAIN, {0: 2, 1: 2 * times}, {} if by_order else {1: "wrong"}, by_order=order)
    assert (found[1].kind, found[1].amplification) == (kind, pytest.approx(times))


def far(distance: int, known: dict[object, str], level: float = 0.5) -> str:
    """What the last pair of a chain is called, given that all pairs above it pass or do not run."""
    parents = tuple((n - 1,) if n else () for n in range(distance + 2))
    levels = {n: level for n in range(len(parents) - 1) if level} | {len(parents) - 1: 1.1}
    return causes(parents, levels, known)[len(parents) - 1].root_name


@pytest.mark.parametrize("distance", [1, 11, 12, 13, 14])
def test_twelve_operators_above_are_looked_at(distance: int) -> None:
    """The operator at place 1, so far above the one that fails, is the one to blame."""
    last = f"Op_{distance + 1}"
    right: dict[object, str] = dict.fromkeys(range(distance + 2), "right")
    assert far(distance, {**right, 1: "wrong"}) == ("Op_1" if distance <= 12 else last)
    assert far(distance, {**right, ("unlike", "1_Op"): "its x"}) == ("Op_1" if distance <= 12 else last)
    assert far(distance, {1: "wrong"}, level=0.0) == ("Op_1" if distance <= 12 else last)
    unknown = {**right, 1: "wrong", distance: ""}
    assert far(distance, unknown) == (last if distance in (1, 14) else "Op_1"), (
        "what is unknown does not count"
    )


def replayed(
    failing: Mapping[int, str],
    gaps: Mapping[int, str] = MappingProxyType({}),
    fed: str = "",
    golden: str = "torch",
    earlier: Mapping[int, str] = MappingProxyType({}),
    reads: Mapping[int, str] = MappingProxyType({}),
) -> dict[int, Cause]:
    """The causes in a chain whose pairs were computed again, some by golden's code from what it `reads`; pair
    0 may be what was fed, and some follow from calls `earlier` than those that were dumped."""
    plan = plan_of(CHAIN)
    pairs = (replace(plan.pairs[0], fed=fed), *plan.pairs[1:])
    plan = replace(plan, pairs=pairs, golden_kind=golden, gaps={n: Gap(name) for n, name in gaps.items()})
    plan = replace(plan, unseen={n: (Reason(EARLIER_CALLS, name),) for n, name in earlier.items()})
    states = {
        number: replace(
            PairState.of(row_of(number, 5), number),
            recomputed=Recomputation(outcome),
            failing=outcome != "right",
        )
        for number, outcome in failing.items()
    }
    known: dict[Any, str] = {number: outcome for number, outcome in failing.items() if outcome}
    known |= {("reads", number): numbers for number, numbers in reads.items()}
    inheritance = Inheritance(plan, states.get, Locals(known))
    return {number: inheritance.cause(state) for number, state in states.items() if state.failing}


def test_what_replay_calls_wrong_is_a_root_whatever_its_inputs_are() -> None:
    found = replayed({0: "", 1: "wrong", 2: "", 3: "wrong"})
    assert {number: (cause.kind, cause.basis) for number, cause in found.items()} == {
        0: ("root", "dataflow"), 1: ("root", "local"), 2: ("inherited", "dataflow"), 3: ("root", "local"),
    }  # fmt: skip
    wrong = "the operator is wrong on its own inputs: relative L2 error 0.3"
    assert found[3].text == f"its inputs differ already, but {wrong}"
    assert (found[3].parents, found[3].local, found[3].local_error) == ((2,), "wrong", 0.3)
    assert found[3].amplification == 1.0
    first = replayed({0: "right", 1: "wrong"})[1]
    assert (first.text, first.parents) == (f"its inputs agree, and {wrong}", ())
    assert replayed({0: "right", 1: "wrong"}, golden="")[1].text == wrong


def test_what_goldens_code_calls_wrong_inherits_from_what_differs_before_it() -> None:
    """It may have taken more than one operator of mine: what differs above may be one of these."""
    assert replayed({0: "", 1: "wrong"}, reads={1: "0"})[1].kind == "inherited"
    assert replayed({0: "right", 1: "wrong"}, reads={1: "0"})[1].kind == "root"


def test_of_several_tensors_that_one_module_made_wrong_the_first_is_the_root() -> None:
    found = replayed({1: "wrong", 2: "wrong", 3: "wrong"}, gaps={2: "layer", 3: "layer"})
    assert [(cause.kind, cause.root, cause.root_name) for cause in found.values()] == [
        ("root", 1, "Op_1"), ("root", 2, "layer"), ("inherited", 2, "layer"),
    ]  # fmt: skip
    assert found[3].parents == (2,)
    assert found[3].basis == "dataflow"
    assert found[3].text == (
        "inherited from layer at step 0: the operator is wrong on its own inputs: relative L2 error 0.3"
    )


def test_what_a_lost_call_made_inherits_from_what_is_wrong_in_the_call_that_is_left() -> None:
    node = plan_of(CHAIN).pairs[2].mine.node
    failing = {0: "right", 1: "", 2: "wrong", 3: ""}
    found = replayed(failing, {1: "layer"}, earlier={1: node})
    assert [(cause.kind, cause.root) for cause in found.values()] == [
        ("inherited", 2), ("root", 2), ("inherited", 2),
    ]  # fmt: skip
    assert found[1].text == (
        "inherited from Op_2 at step 0: an earlier call of it, which the dump does not hold, ran before this"
    )
    share = dict.fromkeys(range(4), 0.5)
    states = {number: state(number, error) for number, error in share.items()}
    assert shares(3, 0, CHAIN, states, found) == {2: pytest.approx(1.0)}
    assert replayed(failing, {1: "layer"}, earlier={1: "another"})[1].kind == "root"
    assert replayed({**failing, 2: "right"}, {1: "layer"}, earlier={1: node})[1].kind == "root"


def test_other_weights_are_the_root_of_a_module_that_is_wrong_with_them() -> None:
    found = replayed({0: "", 1: "wrong"}, fed="weight")
    assert (found[1].kind, found[1].parents, found[1].root) == ("inherited", (0,), 0)
    assert replayed({0: "", 1: "wrong"}, fed="mask")[1].kind == "root"


def test_a_nan_is_inherited_like_any_other_error() -> None:
    found = causes(CHAIN, {0: 0.1, 1: float("inf"), 2: float("inf"), 3: 2})
    assert [found[n].kind for n in (1, 2, 3)] == ["root", "inherited", "inherited"]
    assert found[2].amplification is None


def test_a_chain_of_ten_thousand_needs_no_recursion() -> None:
    count = 10_000
    parents = tuple((n - 1,) if n else () for n in range(count))
    inheritance, states, _ = inheritance_of(plan_of(parents), dict.fromkeys(range(count), 2.0))
    assert inheritance.cause(states[count - 1]).root == 0


def test_a_hostile_name_is_short_in_what_is_said_and_escaped_by_who_shows_it() -> None:
    plan = plan_of(CHAIN)
    states = {n: replace(one, name="\x1b[2J" + "A" * 10_000) for n, one in states_of(plan).items()}
    inheritance = Inheritance(plan, states.get, Locals())
    text = inheritance.cause(states[3]).text
    assert len(text) < 300
    assert "\x1b[2JAAA" in text, "escaped here, it would be escaped twice"


def states_of(plan: Plan) -> dict[int, PairState]:
    return {n: PairState.of(row_of(n, 5.0), n) for n in range(len(plan.pairs))}


@st.composite
def runs(draw: st.DrawFn) -> DrawnRun:
    """A random graph, what runs of it, how far each is beyond its bound, and what computing again says."""
    count = draw(st.integers(1, 14))
    parents = [
        tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=4)))) if number else ()
        for number in range(count)
    ]
    running = draw(st.sets(st.integers(0, count - 1), min_size=1))
    level = st.sampled_from([0.0, 0.1, 0.9, 1.1, 3.0, 30.0, float("inf")])
    levels = {number: draw(level) for number in sorted(running)}
    known = {number: draw(st.sampled_from(["", "right", "wrong"])) for number in range(count)}
    order = frozenset(number for number in range(count) if draw(st.booleans()))
    return plan_of(parents, by_order=order), levels, known


@given(runs(), st.randoms(use_true_random=False))
def test_if_anything_fails_a_root_fails_and_every_inherited_pair_has_one(
    run: DrawnRun, random: Random
) -> None:
    plan, levels, known = run
    inheritance, states, _ = inheritance_of(plan, levels, known)
    failing = [one for one in states.values() if one.failing]
    random.shuffle(failing)
    found = {one.number: inheritance.cause(one) for one in failing}
    roots = {number for number, cause in found.items() if cause.kind == "root"}
    assert bool(roots) == bool(found)
    for number, cause in found.items():
        assert cause.root in roots
        assert cause.root_name == found[cause.root].root_name
        assert cause.root == number if cause.kind == "root" else cause.root < number
        assert set(cause.parents) <= set(found)


@given(runs(), st.randoms(use_true_random=False))
def test_causes_do_not_depend_on_the_order_in_which_tests_run(run: DrawnRun, random: Random) -> None:
    plan, levels, known = run

    def found(numbers: Iterable[int]) -> dict[int, Cause]:
        inheritance, states, _ = inheritance_of(plan, levels, known)
        return {n: inheritance.cause(states[n]) for n in numbers if states[n].failing}

    numbers = sorted(levels)
    expected = found(numbers)
    random.shuffle(numbers)
    assert found(numbers) == expected


# Walks upwards: the nearest pairs with a result, their own step first, and how far anybody looks.


def walker(
    parents: Sequence[Sequence[int]], compared: Mapping[int, bool], steps: Mapping[int, int] = {}
) -> Ancestors:
    """Pairs that run, by number, and whether they could be compared."""
    states = {n: PairState(n, known, False, 0.0, None, f"Op_{n}") for n, known in compared.items()}
    return Ancestors(parents, states.get, lambda number: steps.get(number, 0))


def found(walk: Ancestors, number: int) -> list[int]:
    return [state.number for state in walk.nearest(number)]


DIAMOND = ((), (0,), (0,), (1, 2))


def test_the_nearest_with_a_result_end_their_way_and_others_are_walked_through() -> None:
    assert found(walker(DIAMOND, {0: True, 1: True, 2: True}), 3) == [1, 2]
    half = walker(DIAMOND, {0: True, 1: True, 2: False})
    assert (found(half, 3), half.passed(3)) == ([1, 0], [2])
    nobody = walker(DIAMOND, {})
    assert (found(nobody, 3), nobody.passed(3)) == ([], [1, 2, 0]), "each is met once"
    assert found(walker(DIAMOND, {0: True}), 9) == [], "a pair that the lineage does not know"


def test_pairs_of_the_own_step_are_searched_before_those_of_earlier_ones() -> None:
    parents = ((), (0,), (0, 1))
    assert found(walker(parents, {0: True, 1: True}, {1: 1, 2: 1}), 2) == [1, 0]
    assert found(walker(parents, {0: True, 1: True}), 2) == [0, 1]


def test_a_walk_goes_on_where_it_need_not_stop() -> None:
    walk = walker(((), (0,), (1,), (2,)), dict.fromkeys(range(4), True))
    met = list(walk.walk(3, lambda state: state.number == 1))
    assert [(state.number, stopped) for state, stopped in met] == [(2, False), (1, True)]


def test_so_many_are_found_and_so_many_walked_through() -> None:
    many = inheritance.MOST_FOUND + 2
    wide = (*((),) * many, tuple(range(many)))
    assert len(found(walker(wide, dict.fromkeys(range(many), True)), many)) == inheritance.MOST_FOUND
    long = tuple((n - 1,) if n else () for n in range(inheritance.MOST_PASSED + 2))
    assert found(walker(long, {1: True}), inheritance.MOST_PASSED + 1) == [1]
    assert found(walker(long, {0: True}), inheritance.MOST_PASSED + 1) == []


# How much of the final error each root explains: numbers worked out by hand, and what must always hold.


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
