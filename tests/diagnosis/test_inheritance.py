"""Roots and inherited failures: who fails because of whom, whatever runs, in whatever order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.diagnosis.evidence import PairState
from acc_pytest.diagnosis.inheritance import JUMP, RATE, Inheritance
from acc_pytest.diagnosis.recomputation import Recomputation
from acc_pytest.mapping.pair import Gap, Plan
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
) -> dict[int, Cause]:
    """The causes in a chain whose pairs were computed again; pair 0 may be what was fed."""
    plan = plan_of(CHAIN)
    pairs = (replace(plan.pairs[0], fed=fed), *plan.pairs[1:])
    plan = replace(plan, pairs=pairs, golden_kind=golden, gaps={n: Gap(name) for n, name in gaps.items()})
    states = {
        number: replace(
            PairState.of(row_of(number, 5), number),
            recomputed=Recomputation(outcome),
            failing=outcome != "right",
        )
        for number, outcome in failing.items()
    }
    known = {number: outcome for number, outcome in failing.items() if outcome}
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
