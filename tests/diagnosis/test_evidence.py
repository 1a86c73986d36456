"""The rule of evidence: an error passes as rounding only as far as operators above were shown to make it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.diagnosis.evidence import PairEvidence, PairState, Standing, with_replay
from acc_pytest.diagnosis.inheritance import Inheritance
from acc_pytest.diagnosis.summary import Peers
from acc_pytest.judging.tolerance import CAP, SAFETY
from acc_pytest.mapping.pair import Plan
from acc_pytest.reference.recomputation import Recomputation
from acc_pytest.reporting.row import Row
from acc_pytest.tensors.ref import TensorRef

from .plans import plan_of, row_of

NOISE = 0.001
"""What rounding does to one operator of these tests."""
WORDS = {"r": "right", "w": "wrong", "?": ""}


class Answers:
    """What is computed again, by number; operators between pairs are right but for those that are named."""

    def __init__(
        self,
        own: Callable[[int], Recomputation],
        golden: Callable[[int], Recomputation],
        between: str = "right",
    ) -> None:
        self.of_pair, self.of_golden, self._between = own, golden, between

    def of_operator(self, number: int, path: str) -> Recomputation:
        return Recomputation(self._between)

    def unlike(self, number: int, path: str) -> str:
        return ""


def recomputed(letter: str, error: float = NOISE) -> Recomputation:
    return Recomputation(WORDS[letter], error, noise=NOISE) if letter == "r" else Recomputation(WORDS[letter])


def evidence(
    plan: Plan,
    errors: Sequence[float],
    own: str = "",
    golden: str = "",
    *,
    kind: str = "torch",
    between: str = "right",
    states: Mapping[int, PairState | None] | None = None,
) -> tuple[PairEvidence, list[PairState]]:
    """Of pairs with these errors; those of more than 0.05 are beyond their bounds."""
    own, golden = own or "r" * len(errors), golden or "r" * len(errors)
    made = [
        replace(
            PairState.of(row_of(number, 2.0 if error > 0.05 else 0.5, error=error), number),
            recomputed=recomputed(own[number]),
            near=error <= NOISE,
            needed=error if error > 0.05 else math.inf,
        )
        for number, error in enumerate(errors)
    ]
    answers = Answers(
        lambda number: recomputed(own[number]), lambda number: recomputed(golden[number]), between
    )
    judged = {**dict(enumerate(made)), **(states or {})}
    return PairEvidence(replace(plan, mine_kind=kind), judged.get, answers), made


def lift(plan: Plan, errors: Sequence[float], own: str = "", golden: str = "", **how: Any) -> float | None:
    """That of the last pair."""
    found, states = evidence(plan, errors, own, golden, **how)
    return found.lift(states[-1])


CHAIN = plan_of([[], [0], [1], [2]])
GROWING = (0.001, 0.03, 0.09, 0.12)
"""A right run of operators that amplify rounding: all of it follows from what came before."""


@pytest.mark.parametrize("kind", ["torch", "atb"])
def test_rounding_explains_what_right_operators_make_of_it(kind: str) -> None:
    assert lift(CHAIN, GROWING, kind=kind) == pytest.approx(2 * 0.12, rel=0.01)


def test_the_bound_never_goes_beyond_the_cap() -> None:
    assert lift(CHAIN, (0.001, 0.05, 0.1, 0.2)) == CAP
    assert lift(CHAIN, (0.001, 0.05, 0.1, 0.26)) is None


@pytest.mark.parametrize(
    ("errors", "own", "rounding"),
    [
        ((0.001, 0.05, 0.1, 0.26), "rrrr", 0.26),
        ((0.001, 0.05, 0.1, 0.26), "r?rr", 0.0),
        ((0.001, 0.03, 0.09, 0.12), "rrrr", 0.0),
        ((0.001, 0.03, 0.09, 0.12), "rwrr", 0.0),
    ],
)
def test_what_rounding_makes_beyond_the_cap_is_told(
    errors: tuple[float, ...], own: str, rounding: float
) -> None:
    found, states = evidence(CHAIN, errors, own)
    assert found.lift(states[-1]) == (None if errors[3] > CAP or own != "rrrr" else pytest.approx(0.24))
    assert found.rounding(3) == pytest.approx(rounding, rel=0.01)


@pytest.mark.parametrize("profiled", [False, True])
def test_the_root_advises_a_noise_profile_where_there_is_none(profiled: bool) -> None:
    _, states = evidence(CHAIN, (0.001, 0.05, 0.1, 0.26))
    states[-1] = replace(states[-1], profiled=profiled)
    answers = Answers(lambda _: recomputed("r"), lambda _: recomputed("r"))
    inheritance = Inheritance(replace(CHAIN, mine_kind="torch"), states.__getitem__, answers)
    text = inheritance.cause(states[-1]).text
    assert ("right rounding alone moves this by 26%" in text) != profiled
    assert ("more error came from above than rounding makes" in text) == profiled


@pytest.mark.parametrize(("factor", "most"), [(0.5, CAP), (1.5, 1.5 * CAP), (43.0, 2 * CAP)])
def test_the_factor_of_a_rule_raises_the_cap_to_half_of_golden(factor: float, most: float) -> None:
    row = row_of(3, 2.0, error=0.26)
    state = PairState.of(replace(row, context={**row.context, "factor": factor}), 3)
    assert state.cap == most
    state = replace(state, recomputed=recomputed("r"), needed=0.26)
    found, _ = evidence(CHAIN, (0.001, 0.05, 0.1, 0.26), states={3: state})
    assert found.lift(state) == (None if most == CAP else most)


def test_rounding_that_was_measured_is_all_that_is_excused() -> None:
    """An operator that is off by three times its rounding has made most of what follows."""
    pairs = [replace(recomputed("r"), error=0.003), recomputed("r"), recomputed("r")]
    states = {
        1: replace(PairState.of(row_of(1, 0.5, error=0.003), 1), recomputed=pairs[0]),
        2: replace(PairState.of(row_of(2, 2.0, error=0.09), 2), recomputed=pairs[1], needed=0.09),
    }
    found, _ = evidence(CHAIN, (0.0, 0.003, 0.09), states=states)
    failing = states[2]
    assert failing is not None
    assert found.lift(failing) is None
    assert found.standing(2) is Standing.DIFFERS
    right = replace(states[1], recomputed=recomputed("r"), error=0.0011)
    found, _ = evidence(CHAIN, (0.0, 0.0011, 0.09), states={**states, 1: right})
    assert found.lift(failing) is not None


@pytest.mark.parametrize(
    ("own", "golden"), [("rwrr", "rrrr"), ("rrwr", "rrrr"), ("rrrw", "rrrr"), ("rrrr", "rrwr")]
)
def test_a_wrong_operator_excuses_nothing_below_it(own: str, golden: str) -> None:
    assert lift(CHAIN, GROWING, own, golden) is None
    assert lift(CHAIN, GROWING, own, golden, kind="atb") is None


@pytest.mark.parametrize(("own", "golden"), [("rr?r", "rrrr"), ("rrrr", "rr?r")])
def test_what_was_not_computed_again_hands_on_no_more_than_its_inputs_have(own: str, golden: str) -> None:
    """Nothing says that it amplifies: twice its inputs' error passes, by the factor of T, and no more."""
    assert lift(CHAIN, (0.001, 0.03, 0.058, 0.06), own, golden) is not None
    assert lift(CHAIN, (0.001, 0.03, 0.09, 0.1), own, golden) is None


def test_what_is_not_compared_between_two_pairs_does_not_amplify_either() -> None:
    hidden = replace(CHAIN, between={3: ("2_Rope",)})
    assert lift(hidden, GROWING) is not None, "it is right itself"
    jumping = (0.001, 0.02, 0.04, 0.12)
    assert lift(hidden, jumping) is not None
    assert lift(hidden, jumping, between="") is None


def test_a_pair_above_that_does_not_run_excuses_nothing() -> None:
    assert lift(CHAIN, GROWING, states={1: None}) is None


def test_a_pair_that_was_not_compared_hands_on_the_error_above_it_and_no_more() -> None:
    left_out = replace(PairState.of(row_of(2, 0.5), 2), compared=False, error=None)
    assert lift(CHAIN, (0.001, 0.04, 0.0, 0.07), states={2: left_out}) is not None
    assert lift(CHAIN, (0.001, 0.03, 0.0, 0.12), states={2: left_out}) is None


def test_of_other_dumps_nothing_is_known() -> None:
    assert lift(CHAIN, GROWING, kind="ge") is None


def test_what_the_run_was_fed_has_to_agree() -> None:
    pairs = (replace(CHAIN.pairs[0], fed="token ids"), *CHAIN.pairs[1:])
    fed = replace(CHAIN, pairs=pairs)
    ids = replace(PairState.of(row_of(0, 0.5), 0), error=None, recomputed=recomputed("?"))
    errors = (0.0, 0.0015, 0.09, 0.12)
    assert lift(fed, errors, "?rrr", states={0: ids}) is not None
    assert lift(fed, errors, "?rrr", states={0: replace(ids, failing=True)}) is None


def test_no_error_comes_through_ids_that_agree() -> None:
    """The ids of a decode step were chosen by what is not known; a cache is a result as any other."""
    plan = plan_of([[], [0], [1], [0, 2]])
    for kind, lifted in (("token ids", True), ("cache", False)):
        pairs = (*plan.pairs[:2], replace(plan.pairs[2], fed=kind), plan.pairs[3])
        ids = replace(PairState.of(row_of(2, 0.5), 2), error=None, recomputed=recomputed("?"))
        found = lift(replace(plan, pairs=pairs), (0.001, 0.3, 0.0, 0.06), "rw?r", states={2: ids})
        assert (found is not None) is lifted, kind


def test_rounding_to_whole_steps_is_rounding() -> None:
    """A quantised tensor is off by its steps, however right its operator is."""
    state = replace(PairState.of(row_of(1, 2.0, error=0.06), 1), recomputed=recomputed("r"), needed=0.06)
    for quantised, lifted in ((0.0, False), (0.04, True)):
        states = {1: replace(state, quantised=quantised)}
        found, _ = evidence(CHAIN, (0.0, 0.06), states=states, kind="atb")
        assert (found.lift(states[1]) is not None) is lifted


def test_inputs_agree_only_if_each_was_compared_and_passed_under_its_own_bound() -> None:
    found, states = evidence(CHAIN, GROWING)
    assert found.inputs(1, [states[0]], ()).agree
    assert found.standing(2) is Standing.LIFTED
    lifted = found.state(2)
    assert lifted is not None
    assert not lifted.failing
    assert not found.inputs(3, [lifted], ()).agree
    hidden, states = evidence(replace(CHAIN, unseen={1: ("input[1]",)}, between={1: ("a/2_B",)}), GROWING)
    inputs = hidden.inputs(1, [states[0]], (2,))
    assert (inputs.agree, inputs.not_compared) == (False, ("input[1]", "a/2_B", "Op_2"))
    stated = {0: replace(states[0], stated=True)}
    found, _ = evidence(CHAIN, GROWING, states=stated)
    assert found.inputs(1, [stated[0]], ()).compared == (Standing.NOT_COMPARED,)


@pytest.fixture
def chosen() -> Plan:
    """The second pair is what a router chose."""
    refs = (TensorRef("chosen.pth"),)
    pair = CHAIN.pairs[1]
    golden, mine = replace(pair.golden, chosen_from=refs), replace(pair.mine, chosen_from=refs)
    return replace(CHAIN, pairs=(CHAIN.pairs[0], replace(pair, golden=golden, mine=mine), *CHAIN.pairs[2:]))


def test_another_choice_that_rounding_made_explains_other_shapes_and_is_a_tie(chosen: Plan) -> None:
    apart = replace(PairState.of(row_of(2, 0.5), 2), compared=False, shapes_differ=True, error=None)
    shapes = {number: replace(apart, number=number) for number in (2, 3)}
    for outcome, fails, lifted in (("r", True, 0.0), ("w", True, None), ("r", False, None)):
        choice = replace(
            PairState.of(row_of(1, 2.0 if fails else 0.0), 1), error=None, recomputed=recomputed(outcome)
        )
        found, _ = evidence(chosen, (0.0,) * 4, f"r{outcome}??", states={1: choice, **shapes})
        assert [found.lift(state) for state in shapes.values()] == [lifted] * 2, (outcome, fails)
    within = replace(PairState.of(row_of(1, 0.5), 1), error=0.1, failing=False, whole_numbers=True)
    for outcome, lifted in (("r", 0.0), ("?", None)):  # mine chose otherwise within the bound of its choices
        choice = replace(within, recomputed=recomputed(outcome))
        found, _ = evidence(chosen, (0.0,) * 4, f"r{outcome}??", states={1: choice, **shapes})
        assert found.lift(shapes[2]) == lifted, outcome


def test_whole_numbers_of_a_right_operator_whose_inputs_are_off_by_rounding_are_another_choice() -> None:
    for dtype, outcome, lifted in (("int64", "r", 0.0), ("int64", "w", None), ("bfloat16", "r", None)):
        row = row_of(1, 2.0)
        row = replace(row, golden=replace(row.golden, dtype=dtype), mine=replace(row.mine, dtype=dtype))
        numbers = replace(PairState.of(row, 1), error=9.0, needed=math.inf, recomputed=recomputed(outcome))
        found, _ = evidence(CHAIN, (0.0, 0.0), f"r{outcome}", states={1: numbers})
        assert found.lift(numbers) == lifted, (dtype, outcome)


def test_what_an_earlier_run_lifted_stands() -> None:
    found, states = evidence(CHAIN, GROWING, "????")
    assert found.lift(replace(states[3], accumulated=0.2)) == 0.2
    assert found.lift(replace(states[3], accumulated=math.inf)) == CAP, "whatever the file of rows says"
    assert found.lift(replace(states[3], accumulated=0.1)) is None, "its bounds ask for more now"


@pytest.mark.parametrize(("error", "near"), [(8 * 2**-8, True), (8.1 * 2**-8, False)])
def test_one_operator_in_bfloat16_is_off_by_8_u_at_most(error: float, near: bool) -> None:
    row = row_of(1, 0.5)
    sides = replace(row.golden, dtype="float32"), replace(row.mine, dtype="bfloat16")
    row = replace(row, golden=sides[0], mine=sides[1], metrics={"relative_euclidean_distance": error})
    assert PairState.of(row, 1).near is near
    assert not PairState.of(replace(row, verdict="fail"), 1).near


def test_nothing_is_computed_below_what_is_not_explained() -> None:
    asked: list[int] = []

    def own(number: int) -> Recomputation:
        asked.append(number)
        return recomputed("w" if number == 2 else "r")

    found, states = evidence(CHAIN, (0.001, 0.001, 0.3, 0.3), kind="atb")
    found = PairEvidence(replace(CHAIN, mine_kind="atb"), dict(enumerate(states)).get, Answers(own, own))
    assert found.lift(states[2]) is None
    assert found.lift(states[3]) is None
    assert asked == [2]


@pytest.mark.parametrize("seed", range(40))
def test_in_whatever_order_pairs_are_asked_for_all_above_has_to_be_right(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 40)
    parents = [sorted(rng.sample(range(number), min(number, rng.randint(0, 2)))) for number in range(count)]
    letters = "".join("r" if rng.random() < 0.85 else "w" for _ in range(count))
    expected: list[bool] = []
    for number, above in enumerate(parents):
        expected.append(letters[number] == "r" and all(expected[parent] for parent in above))
    error = 0.06 / SAFETY  # a right operator without inputs may be off by its own rounding, twice
    for _ in range(5):
        found, states = evidence(plan_of(parents), [error] * count, letters, kind="atb")
        states = [replace(state, failing=True, needed=0.0, near=False) for state in states]
        found = PairEvidence(
            replace(plan_of(parents), mine_kind="atb"),
            states.__getitem__,
            Answers(lambda number: recomputed(letters[number]), lambda _: recomputed("r")),
        )
        asked = rng.sample(range(count), count)
        assert {n: found.lift(states[n]) is not None for n in asked} == dict(enumerate(expected))


def test_an_operator_that_was_not_computed_again_rounds_no_more_than_its_own_bound_allows() -> None:
    """A profile may have measured less than a layer of its type can round: then no more of it is rounding."""
    state = replace(
        PairState.of(row_of(1, 2.0, error=0.022), 1),
        roundoff=2.0**-8,
        needed=0.022,
        recomputed=recomputed("?"),
    )
    for allowed, lifted in ((math.inf, True), (0.0107, False)):
        states = {1: replace(state, allowed=allowed)}
        found, _ = evidence(CHAIN, (0.001, 0.022), "r?", states=states)
        assert (found.lift(states[1]) is not None) is lifted


@pytest.mark.parametrize(
    ("again", "lifted"),
    [
        (Recomputation("right", 0.001, noise=0.02), True),
        (Recomputation("right", 0.001, noise=0.02, allowed=0.0), True),
        (Recomputation("right", 0.001, noise=0.001, allowed=0.16), False),
        (Recomputation("right", 0.001, allowed=0.16), True),
        (Recomputation("right", 0.001, allowed=0.008), False),
        (Recomputation("", allowed=0.16), False),
    ],
)
def test_an_operator_that_was_computed_again_rounds_as_measured_or_as_an_eighth_of_its_bound(
    again: Recomputation, lifted: bool
) -> None:
    state = replace(PairState.of(row_of(1, 2.0, error=0.03), 1), needed=0.03, recomputed=again)
    found, _ = evidence(CHAIN, (0.0, 0.03), states={1: state})
    assert (found.lift(state) is not None) is lifted


def test_without_lifts_nothing_passes_as_rounding() -> None:
    _, states = evidence(CHAIN, GROWING)
    answers = Answers(lambda _: recomputed("r"), lambda _: recomputed("r"))
    found = PairEvidence(replace(CHAIN, mine_kind="torch"), states.__getitem__, answers, lifts=False)
    assert found.lift(states[3]) is None
    assert found.standing(2) is Standing.DIFFERS


# What stands out among the same operator in other layers and steps, although every bound holds.


LAYERS = 6
U = 2.0**-8


@pytest.fixture
def plan() -> Plan:
    """The first product of each layer's MLP, in a prefill and a decode step."""
    bare = plan_of([()] * 2 * LAYERS, steps=[0] * LAYERS + [1] * LAYERS)
    pairs = []
    for number, pair in enumerate(bare.pairs):
        name = f"root.layers.{number % LAYERS}.mlp.fc1"
        sides = replace(pair.golden, node=name), replace(pair.mine, node=name, op_type="Linear")
        pairs.append(replace(pair, golden=sides[0], mine=sides[1]))
    return replace(bare, pairs=tuple(pairs))


def told(plan: Plan, rows: list[Row]) -> tuple[str, ...]:
    peers = Peers()
    for row in reversed(rows):
        peers.add(row)
    return peers.lines(plan)


def rows_of(levels: list[float]) -> list[Row]:
    return [row_of(number, level, number // LAYERS) for number, level in enumerate(levels)]


def test_a_pair_that_is_far_beyond_its_peers_is_told_and_no_other(plan: Plan) -> None:
    usual = [0.10, 0.11, 0.12, 0.11, 0.10, 0.12]
    (line,) = told(plan, rows_of([*usual, 0.10, 0.11, 0.9, 0.11, 0.10, 0.12]))
    assert line.startswith("outlier: Op_8 step 1: its share of its bounds is 8.2 times that of its 5 peers,")
    assert told(plan, rows_of([*usual, 0.10, 0.11, 0.25, 0.11, 0.10, 0.12])) == ()


def test_decode_steps_are_no_peers_of_the_prefill(plan: Plan) -> None:
    assert told(plan, rows_of([0.01] * LAYERS + [0.2] * LAYERS)) == ()


def test_peers_that_differ_much_hide_what_differs_as_much(plan: Plan) -> None:
    assert told(plan, rows_of([0.05, 0.1, 0.2, 0.3, 0.4, 0.65] * 2)) == ()


def test_too_few_peers_say_nothing(plan: Plan) -> None:
    assert told(plan, rows_of([0.1, 0.1, 0.9])) == ()


def test_where_a_pair_fails_its_roots_say_more(plan: Plan) -> None:
    assert told(plan, rows_of([0.1, 0.1, 0.1, 0.9, 0.1, 2.0])) == ()


def replayed(levels: list[float], biases: list[float], known: float = 0.0) -> list[Row]:
    """Rows with what replay measured: errors as shares of what is allowed, biases in u."""
    return [
        with_replay(
            replace(row, mine=replace(row.mine, dtype="bfloat16")),
            Recomputation(
                "right", 0.01 * level, allowed=0.01, bias=bias * U, bias_allowed=U, bias_noise=known * U,
                bias_deviation=0.02 * U,
            ),
        )
        for row, level, bias in zip(rows_of([0.5] * len(levels)), levels, biases)
    ]  # fmt: skip


def test_what_replay_measured_counts_where_there_is_any(plan: Plan) -> None:
    (line,) = told(plan, replayed([0.2, 0.2, 0.8, 0.2, 0.2, 0.2], [0.0] * 6))
    assert line.startswith("outlier: Op_2 step 0: its error on its own inputs is 4 times that of its 5 peers")


def test_a_bias_that_all_layers_share_is_told_once(plan: Plan) -> None:
    """0.12 u each is within u/4. Of twelve the mean is known to 0.006 u; u/16 and 4 of these are 0.086 u."""
    (line,) = told(plan, replayed([0.2] * 12, [0.12] * 12))
    assert (
        line
        == "bias: all 12 of root.layers.*.mlp.fc1 are 0.00047 too large together, rounding may do 0.00033"
    )
    assert told(plan, replayed([0.2] * 12, [0.12, -0.12] * 6)) == ()
    assert told(plan, replayed([0.2] * 12, [0.12] * 12, known=0.06)) == ()


@pytest.mark.parametrize(("own", "error", "lifted"), [("r", NOISE, True), ("w", 0.12, False)])
def test_a_source_that_is_no_parent_counts_with_its_fault(own: str, error: float, lifted: bool) -> None:
    """Values show what a tensor was computed from, also where the flow of modules does not."""
    fork = plan_of([[], [], [1]])
    errors = error, NOISE, 0.06
    _, states = evidence(fork, errors)
    total = replace(states[2], recomputed=replace(recomputed("r"), sources="0 1"))
    rule, _ = evidence(fork, errors, f"{own}rr", states={2: total})
    rule_without, _ = evidence(fork, errors, f"{own}rr", states={0: None, 2: total})
    assert (rule.lift(total) is not None) == lifted
    assert rule_without.lift(total) is None
