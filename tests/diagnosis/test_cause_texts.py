"""What a cause says: of what the run was fed, of a module's own code, of inputs that nobody compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from acc_pytest.comparison import compare_tensors
from acc_pytest.diagnosis.evidence import (
    ACCUMULATED,
    PairState,
    as_accumulated,
    as_replayed,
    judged_by_replay,
    level_of,
    may_accumulate,
    needed_tolerance,
    replay_of,
    stored_replay,
    with_replay,
)
from acc_pytest.diagnosis.inheritance import Inheritance
from acc_pytest.diagnosis.run import decide, with_cause
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.rules import rule_from_marker
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Gap, Operand, Plan
from acc_pytest.reference.recomputation import Recomputation
from acc_pytest.reporting.row import Cause, Row, RowSide
from acc_pytest.tensors.source import TensorSource

from .plans import Locals, inheritance_of, plan_of, row_of

CHAIN = ((), (0,), (1,), (2,))


def cause_in(
    plan: Plan, levels: Mapping[int, float], number: int, known: Mapping[object, str] | None = None
) -> Cause:
    inheritance, states, _ = inheritance_of(plan, levels, known)
    return inheritance.cause(states[number])


def cause(
    levels: Mapping[int, float], number: int, known: Mapping[object, str] | None = None, **plan: Any
) -> Cause:
    """The cause of a pair of the chain, whose plan has these fields too."""
    return cause_in(replace(plan_of(CHAIN), **plan), levels, number, known)


# ---- what the run was fed ---------------------------------------------------------------------------


def fed(kinds: Mapping[int, str], differ: tuple[int, ...]) -> Inheritance:
    """Pairs that all fail; some are what the run was fed, which has no parents, some `differ` in shape."""
    plan = plan_of(((), (), (1,), (2,)))
    pairs = tuple(replace(pair, fed=kinds.get(number, "")) for number, pair in enumerate(plan.pairs))
    return Inheritance(replace(plan, pairs=pairs), lambda n: state(n, n in kinds, n in differ), Locals())


def state(number: int, is_fed: bool = False, differs: bool = False) -> PairState:
    said = f"Op_{number} has 3 tokens, not 2" if is_fed else ""
    return PairState(number, True, True, 5.0, 0.1, f"Op_{number}", differs, said)


def test_other_shapes_follow_from_a_prompt_of_another_shape() -> None:
    for kind in ("token ids", "input"):
        prompts = fed({1: kind}, (1, 2))
        found = prompts.cause_of_shapes(state(2, differs=True))
        assert found is not None
        assert (found.kind, found.parents, found.root, found.root_name) == ("inherited", (1,), 1, "Op_1")
        assert found.text == "other shapes follow from what the run was fed: Op_1 has 3 tokens, not 2"
        assert (found.basis, prompts.cause_of_shapes(state(2))) == ("dataflow", None)
    later = prompts.cause(state(3))
    assert (later.kind, later.root, later.parents) == ("inherited", 1, (1,))
    assert later.text == "inherited from Op_1 at step 0"


@pytest.mark.parametrize(
    ("kinds", "differ"),
    [({1: "mask"}, (1, 2)), ({1: "input"}, (2,)), ({3: "input"}, (2, 3)), ({2: "input"}, (2,))],
)
def test_nothing_follows_from_a_mask_a_prompt_of_that_shape_or_a_later_one(
    kinds: dict[int, str], differ: tuple[int, ...]
) -> None:
    assert fed(kinds, differ).cause_of_shapes(state(2, differs=True)) is None


def test_what_the_run_was_fed_is_a_root_in_its_own_words() -> None:
    found = fed({0: "mask"}, ()).cause(state(0, is_fed=True))
    assert (found.kind, found.text) == ("root", "Op_0 has 3 tokens, not 2")


# ---- what its inputs are ----------------------------------------------------------------------------

NOT_COMPUTED = " (not computed again: no reference)"


@pytest.mark.parametrize(
    ("levels", "plan", "said"),
    [
        ({1: 0.1, 2: 5}, {}, "its inputs agree"),
        ({2: 5}, {"parents": ((),) * 4}, "nothing above it is compared"),
        ({2: 5}, {}, "nothing above it is compared (not compared: Op_1, Op_0)"),
        ({1: 0.1, 2: 5}, {"by_order": frozenset({2})}, "nothing that ran before it fails"),
        ({2: 5}, {"by_order": frozenset({2}), "parents": ()}, "it ran first"),
        (
            {1: 0.1, 2: 5},
            {"unseen": {2: ("input[1]", "input[2]")}},
            "all that was compared above it agrees (not compared: input[1], input[2])",
        ),
        (
            {1: 0.1, 2: 5},
            {"between": {2: ("1_A", "2_layer/3_B", "C", "4_D")}},
            "all that was compared above it agrees (not compared: A_1, B_2_3, C and 1 more)",
        ),
    ],
)
def test_of_a_root_that_cannot_be_computed_again_it_is_said_what_is_known_of_its_inputs(
    levels: dict[int, float], plan: dict[str, Any], said: str
) -> None:
    found = cause(levels, 2, **plan)
    assert (found.kind, found.root_name, found.text) == ("root", "Op_2", said + NOT_COMPUTED)


def test_of_inputs_that_pass_as_a_tie_it_is_said() -> None:
    inheritance, states, _ = inheritance_of(plan_of(CHAIN), {1: 0.1, 2: 5})
    states[1] = replace(states[1], excused=True)
    said = "all that was compared above it agrees, but for ties and accumulated rounding"
    assert inheritance.cause(states[2]).text == said + NOT_COMPUTED


@pytest.mark.parametrize(
    ("before", "unseen", "said"),
    [
        (0.1, (), "its inputs agree" + NOT_COMPUTED),
        (5.0, (), "inherited from Op_0 at step 0: its inputs agree, but what it had at step 0 did not"),
        (
            5.0,
            ("input[1]",),
            "inherited from Op_0 at step 0: all that was compared above it agrees (not compared: input[1]), "
            "but what it had at step 0 did not",
        ),
    ],
)
def test_what_an_operator_had_at_an_earlier_step_counts(
    before: float, unseen: tuple[str, ...], said: str
) -> None:
    plan = plan_of(((), (0,), (), (2,)), steps=(0, 0, 1, 1))
    pairs = list(plan.pairs)
    pairs[3] = replace(pairs[3], golden=pairs[1].golden, mine=pairs[1].mine)
    plan = replace(plan, pairs=tuple(pairs), unseen={3: unseen} if unseen else {})
    assert cause_in(plan, {0: before, 1: before, 2: 0.1, 3: 5}, 3).text == said


@pytest.mark.parametrize(
    ("unseen", "said"),
    [
        ({}, "its inputs agree"),
        ({2: ("input[1]",)}, "all that was compared above it agrees (not compared: input[1])"),
    ],
)
def test_of_a_wrong_operator_it_is_said_by_how_much(unseen: dict[int, tuple[str, ...]], said: str) -> None:
    found = cause({1: 0.1, 2: 5}, 2, {2: "wrong"}, unseen=unseen)
    wrong = "the operator is wrong on its own inputs: relative L2 error 0.3"
    assert (found.text, found.local, found.local_error) == (f"{said}, and {wrong}", "wrong", 0.3)
    second = cause({0: 5, 1: 2, 2: 50}, 2, {0: "wrong", 2: "wrong"})
    assert (second.text, second.amplification) == (f"its inputs differ already, but {wrong}", 25.0)


def test_an_operator_between_that_is_wrong_is_named_before_what_computes_again_right() -> None:
    known = {"2_layer/1_Rope": "wrong", 2: "right"}
    found = cause({1: 0.1, 2: 5}, 2, known, between={2: ("2_layer/0_Split", "2_layer/1_Rope")})
    assert found.text == (
        "Rope_2_1 lies between it and its inputs, is not compared, and is wrong on its own inputs"
    )
    assert (found.root_name, found.basis) == ("Rope_2_1", "local")
    passed = cause({0: 0.1, 2: 5}, 2, {1: "wrong"})
    assert (passed.root_name, passed.basis) == ("Op_1", "local")


@pytest.mark.parametrize(
    ("op_type", "between", "name"),
    [
        (
            "ElewiseOperation",
            ("1_SplitOperation", "2_LinearOperation", "3_NormOperation"),
            "LinearOperation_2",
        ),
        ("LinearOperation", ("2_LinearOperation",), "Op_2"),
        ("SplitOperation", ("1_AllReduceOperation",), "Op_2"),
        ("TransposeOperation", (), "Op_2"),
    ],
)
def test_what_only_moves_and_adds_is_not_blamed_where_something_with_weights_is_before_it(
    op_type: str, between: tuple[str, ...], name: str
) -> None:
    """A sum whose error jumps though it is right: the nearest before it that has weights is off."""
    plan = plan_of(CHAIN)
    pair = replace(plan.pairs[2], mine=replace(plan.pairs[2].mine, op_type=op_type))
    plan = replace(plan, pairs=(*plan.pairs[:2], pair, plan.pairs[3]), between={2: between})
    found = cause_in(plan, {1: 0.001, 2: 50}, 2, {2: "right"})
    assert found.root_name == name
    if name == "Op_2":
        assert found.text.endswith("other ones than golden's (weights, parameters, ids)")
    else:
        assert found.text == (
            f"the operator is right on its own inputs; {name}, between it and its inputs, is not compared: "
            "its weights or parameters are other ones than golden's"
        )


def test_an_error_in_pairs_that_pass_is_followed_to_the_failing_one_unless_it_jumps() -> None:
    """It could not be computed again. 4.5 times the error of what passes is a jump, 3 times is none."""
    levels = {0: 5.0, 1: 0.5, 2: 1.5}
    found = cause(levels, 2)
    assert (found.kind, found.root, found.parents) == ("inherited", 0, (0,))
    assert found.text == "inherited from Op_0 at step 0: what is between passes"
    assert cause({**levels, 2: 2.25}, 2).kind == "root"
    assert cause({**levels, 2: 2.0}, 2).kind == "inherited", "four times is none yet"
    assert cause({**levels, 1: 0.0}, 2).kind == "root", "how often nothing was multiplied is unknown"


def test_a_mask_hides_what_passes_beside_its_values() -> None:
    states = {0: state(0), 1: replace(state(1), failing=False, level=0.001, masked=True), 2: state(2)}
    for masked, kind in ((True, "inherited"), (False, "root")):
        states[1] = replace(states[1], masked=masked)
        assert Inheritance(plan_of(CHAIN), states.get, Locals()).cause(states[2]).kind == kind


# ---- the own code of a module -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        (
            Gap("model.mlp", ("up", "act"), "down"),
            "inside mlp, after up, act and before down: input[0] of down differs",
        ),
        (Gap("model.mlp", (), ""), "inside mlp: input[0] differs"),
        (Gap("", ("layers.1",)), "inside the model, after layers.1: input[0] differs"),
        (Gap("mlp", (), "down"), "inside mlp, before down: input[0] of down differs"),
        (Gap("mlp", ("a", "b", "c", "d")), "inside mlp, after a, b, c and 1 more: input[0] differs"),
    ],
)
def test_a_tensor_that_no_module_wrote_is_the_fault_of_the_code_around_it(gap: Gap, said: str) -> None:
    plan = plan_of(CHAIN)
    pair = replace(plan.pairs[2], mine=Operand("n", "n", "", "input[0]", ()))
    plan = replace(plan, pairs=(*plan.pairs[:2], pair, plan.pairs[3]), gaps={2: gap})
    found = cause_in(plan, {1: 0.1, 2: 5}, 2)
    assert found.text == f"the fault is {said}, and what these modules gave and what it was given agree"
    assert found.root_name == (gap.module or "Op_2")
    alone = cause_in(replace(plan, unseen={2: ("input[1]",)}, parents=()), {2: 5}, 2)
    assert alone.text == f"the fault is {said}, and nothing above it is compared; not compared: input[1]"


# ---- names ------------------------------------------------------------------------------------------


def test_the_way_to_a_root_names_the_pair_that_handed_it_on() -> None:
    assert cause({0: 5, 1: 5}, 1).text == "inherited from Op_0 at step 0"
    assert cause({0: 5, 1: 5, 2: 5}, 2).text == "inherited from Op_0 at step 0 by way of Op_1"


def test_a_long_name_is_cut() -> None:
    plan = plan_of(((),))
    mine = replace(plan.pairs[0].mine, name="n" * 500)
    states = {0: replace(state(0), name="n" * 500), 1: state(1)}
    both = replace(plan_of(CHAIN), parents=((), (0,)))
    text = (
        Inheritance(
            replace(both, pairs=(replace(plan.pairs[0], mine=mine), *both.pairs[1:])), states.get, Locals()
        )
        .cause(states[1])
        .text
    )
    assert len(text) < 200


@pytest.mark.parametrize(
    ("level", "above", "times"),
    [
        (6.0, (2.0, 3.0), 2.0),
        (6.0, (), None),
        (6.0, (0.0,), None),
        (math.inf, (2.0,), None),
        (6.0, (math.inf,), None),
    ],
)
def test_an_error_is_so_many_times_the_largest_above(
    level: float, above: tuple[float, ...], times: float | None
) -> None:
    parents = (*((),) * len(above), tuple(range(len(above))))
    levels = {**dict(enumerate(above)), len(above): level}
    found = cause_in(plan_of(parents), levels, len(above), {len(above): "wrong"})
    assert found.amplification == times


# ---- states and rows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "compared", "failing"),
    [
        ("pass", True, False),
        ("tie", True, False),
        ("fail", True, True),
        ("inherited", True, True),
        ("known", True, True),
        ("incomparable", False, False),
        ("unmapped", False, False),
    ],
)
def test_the_state_of_a_pair_is_what_its_verdict_says(verdict: str, compared: bool, failing: bool) -> None:
    row = Row("id", verdict, "said", shapes_differ=True, mine=RowSide(name="n"))
    found = PairState.of(row, 3)
    assert (found.number, found.compared, found.failing) == (3, compared, failing)
    assert (found.name, found.shapes_differ, found.input_sentence, found.error) == ("n", True, "", None)
    assert found.level == (math.inf if failing else 0.0), "no bound says how much"
    assert PairState.of(replace(row, fed="mask"), 3).input_sentence == "said"


def test_the_state_of_a_pair_knows_the_steps_of_its_type_and_whether_a_noise_run_measured_it() -> None:
    row = replace(row_of(0, 0.5), statistics={"golden_rms": 0.5, "golden_max_abs": 4.0})
    row = replace(row, golden=RowSide(dtype="float16"), mine=RowSide(dtype="int8"))
    assert PairState.of(row, 0).quantised == pytest.approx(4.0 / 127 / math.sqrt(12) / 0.5)
    for golden, mine in (("int8", "int8"), ("float16", "float16"), ("float16", "bool")):
        other = replace(row, golden=RowSide(dtype=golden), mine=RowSide(dtype=mine))
        assert PairState.of(other, 0).quantised == 0.0
    assert not PairState.of(row, 0).profiled
    assert PairState.of(replace(row, metrics={**row.metrics, "noise_error": 0.1}), 0).profiled


def test_error_and_outcome_of_replay_are_those_of_the_row() -> None:
    row = row_of(4, 0.5)
    assert (PairState.of(row, 4).error, PairState.of(row, 4).replayed) == (0.005, "")
    assert PairState.of(replace(row, metrics={"relative_euclidean_distance": "N/A"}), 4).error is None
    for outcome in ("right", "wrong", ""):
        assert PairState.of(with_replay(row, Recomputation(outcome, 9.0, "why")), 4).replayed == outcome
    wrong = with_replay(row, Recomputation("wrong", 9.0, "", 1.0, 1.0))
    assert level_of(wrong) == 0.5, "what replay measured is no error against golden"


@pytest.mark.parametrize(
    ("smallest", "masked"),
    [(None, False), (-1e4, True), (-65504.0, True), (-math.inf, True), (-999.0, False)],
)
def test_values_of_a_mask_are_known_by_their_size(smallest: float | None, masked: bool) -> None:
    row = Row("id", "pass", "", golden=RowSide(min=smallest))
    assert PairState.of(row, 0).masked is masked


def test_the_level_is_the_largest_share_of_an_allowed_error() -> None:
    checks = (
        Check("a", 0.02, 0.01, False, "", False),
        Check("b", 0.03, 0.01, False, "", False),
        Check("c", 9.0, math.inf, False, "", True),
    )
    assert level_of(Row("id", "fail", "", checks=checks)) == pytest.approx(3.0)
    assert level_of(Row("id", "fail", "", checks=checks[2:])) == math.inf
    assert level_of(Row("id", "pass", "", checks=checks[2:])) == 0.0


@pytest.mark.parametrize(
    ("verdict", "kind", "strict", "expected"),
    [
        ("fail", "inherited", False, ("inherited", False)),
        ("fail", "inherited", True, ("inherited", True)),
        ("incomparable", "inherited", True, ("inherited", True)),
        ("known", "inherited", True, ("known", False)),
        ("fail", "root", True, ("fail", False)),
    ],
)
def test_an_inherited_failure_is_no_failure_of_its_own(
    verdict: str, kind: str, strict: bool, expected: tuple[str, bool]
) -> None:
    made = Cause(kind, "dataflow")
    row = with_cause(replace(row_of(0, 5.0), verdict=verdict), made, strict)
    assert (row.verdict, row.strict, row.cause) == (*expected, made)
    assert not with_cause(row_of(0, 5.0), made).strict


# What replay found of a pair: kept in its row, shown as checks, and read back.


ROW = Row("test_x", "pass", "all is well")
RIGHT = Recomputation("right", 0.001, "", 0.002, 0.004, "twice its noise", 0.003, 0.01)
WRONG = Recomputation("wrong", 0.04, "", 0.002, 0.004, "twice its noise")
UNKNOWN = Recomputation(why="its inputs were not dumped")
ABOVE = Check("relative_l2", 0.3, 0.1, False, "T", False)
BELOW = Check("cosine", 0.9, 0.8, True, "T", True)


def shown(row: Row) -> list[tuple[str, float | None, float, bool, bool, str]]:
    return [(c.metric, c.measured, c.allowed, c.at_least, c.passed, c.reason) for c in row.checks]


@pytest.mark.parametrize("found", [RIGHT, WRONG, UNKNOWN, Recomputation("wrong", None, "2 rows are wrong")])
def test_a_row_gives_back_what_was_put_in(found: Recomputation) -> None:
    row = with_replay(ROW, found)
    assert replay_of(row) == stored_replay(row) == found
    assert with_replay(row, found) == row, "twice is once"


def test_right_operators_add_their_checks() -> None:
    row = with_replay(replace(ROW, checks=(BELOW,)), RIGHT)
    assert (row.verdict, row.sentence, row.notes) == ("pass", "all is well", ())
    assert shown(row)[1:] == [
        ("replay_error", 0.001, 0.004, False, True, "twice its noise"),
        ("replay_row_error", 0.003, 0.01, False, True, "the worst row; twice its noise"),
    ]


def test_a_wrong_operator_fails_its_row_whatever_golden_says() -> None:
    row = with_replay(replace(ROW, skipped=True, reasons=("another",)), WRONG)
    said = "the operator is wrong on its own inputs: relative L2 error 0.04 (20 times its rounding)"
    assert (row.verdict, row.skipped, row.sentence, row.reasons) == ("fail", False, said, (said, "another"))
    assert shown(row) == [("replay_error", 0.04, 0.004, False, False, "twice its noise")]


@pytest.mark.parametrize(
    "found",
    [
        Recomputation("wrong", None, "2 rows are wrong"),
        Recomputation("wrong", 0.1, "2 rows are wrong", 0.1, 0.2),
    ],
)
def test_what_is_wrong_beyond_no_bound_has_a_check_that_fails(found: Recomputation) -> None:
    row = with_replay(ROW, found)
    assert row.sentence == "the operator is wrong on its own inputs: 2 rows are wrong"
    assert shown(row)[-1] == ("replay_wrong", 1.0, 0.0, False, False, "2 rows are wrong")
    of_rows = with_replay(ROW, Recomputation("wrong", 0.1, "w", 0.1, 0.2, "r", 0.5, 0.4))
    assert [check[0] for check in shown(of_rows)] == ["replay_error", "replay_row_error"]


def test_a_wrong_operator_of_which_nothing_more_is_known() -> None:
    row = with_replay(ROW, Recomputation("wrong", reason="by its bound"))
    assert row.sentence == "the operator is wrong on its own inputs"
    assert shown(row) == [("replay_wrong", 1.0, 0.0, False, False, "by its bound")]


def test_an_operator_that_was_not_computed_is_a_note() -> None:
    row = with_replay(replace(ROW, notes=("seen",)), UNKNOWN)
    assert (row.verdict, row.checks) == ("pass", ())
    assert row.notes == ("seen", "not computed again: its inputs were not dumped")


def test_without_golden_replay_is_the_verdict() -> None:
    unknown = judged_by_replay(ROW, UNKNOWN)
    why = "not computed again: its inputs were not dumped"
    assert (unknown.verdict, unknown.sentence, unknown.reasons, unknown.skipped, unknown.notes) == (
        "incomparable", why, (why,), True, (),
    )  # fmt: skip
    right = judged_by_replay(ROW, RIGHT)
    said = "the operator is right on its own inputs"
    assert (right.verdict, right.sentence) == ("pass", f"{said}: relative L2 error 0.001")
    assert judged_by_replay(ROW, Recomputation("right")).sentence == said
    assert judged_by_replay(ROW, WRONG).verdict == "fail"


def test_rows_that_hold_something_else_have_no_replay() -> None:
    assert replay_of(ROW) is None
    assert as_replayed(ROW) is ROW
    for context in (
        {"replay_outcome": "perhaps"},
        {"replay_outcome": "right", "replay_error": "much"},
        {"replay_outcome": 1},
    ):
        assert replay_of(replace(ROW, context=context)) is None, context
    assert replay_of(replace(ROW, context={"replay_why": "it"})) == Recomputation(why="it")


def test_rows_without_replay_know_what_looking_for_their_cause_found() -> None:
    assert stored_replay(ROW) is None
    assert stored_replay(replace(ROW, cause=Cause("root", "local"))) is None
    looked = replace(ROW, cause=Cause("root", "local", local="wrong", local_error=0.5))
    assert stored_replay(looked) == Recomputation("wrong", 0.5)
    assert stored_replay(with_replay(looked, RIGHT)) == RIGHT


def lifted_row() -> Row:
    """A pair of bfloat16 beyond its bound of T = 0.02: relative L2 0.1."""
    golden = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
    mine = (golden + 0.1 * noise).bfloat16()
    judge = Judge((rule_from_marker({"relative_euclidean_distance": 0.02}, "x"),))
    row = compare_tensors(TensorSource(golden), TensorSource(mine), lambda: judge, "id", "x")
    assert row.verdict == "fail"
    return replace(row, checks=tuple(check._replace(reason="derived") for check in row.checks))


def test_accumulated_rounding_passes_up_to_its_own_bound_and_says_so() -> None:
    row = lifted_row()
    assert may_accumulate(row)
    need = needed_tolerance(row)
    assert need == pytest.approx(0.1, rel=0.05)
    passed = as_accumulated(row, 0.12)
    assert (passed.verdict, passed.reasons, passed.context[ACCUMULATED]) == ("pass", (), 0.12)
    assert passed.times_lifted == pytest.approx(0.1 / 0.02, rel=0.1)
    assert passed.sentence in passed.notes
    assert "times the bound without it: T = 0.12" in passed.sentence
    distance = next(check for check in passed.checks if check.metric == "relative_euclidean_distance")
    assert (distance.allowed, distance.passed) == (0.12, True)
    assert "else <= 0.02" in distance.reason
    assert not any(math.isinf(check.allowed) for check in passed.checks)


@pytest.mark.parametrize("sources", ["", "1"])
def test_what_rounding_explains_passes_with_what_was_computed_again(sources: str) -> None:
    row, found = lifted_row(), replace(RIGHT, sources=sources)
    explains: Any = SimpleNamespace(lift=lambda state: 0.12, recomputed=lambda state: found)
    passed, why = decide(row, PairState.of(row, 0), explains, Cause("root", "dataflow"))
    assert (passed.verdict, passed.context[ACCUMULATED], why) == ("pass", 0.12, None)
    assert (replay_of(passed) == found) is bool(sources)


def test_the_needed_tolerance_is_the_least_that_lifts() -> None:
    row = lifted_row()
    need = needed_tolerance(row)
    assert all(check.passed for check in as_accumulated(row, need * 1.0001).checks)
    assert not all(check.passed for check in as_accumulated(row, need * 0.999).checks)


@pytest.mark.parametrize("right", [False, True])
def test_where_large_values_cancel_the_error_of_a_right_operator_may_be_in_one_element(right: bool) -> None:
    golden = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    mine = golden.clone()
    mine[3, 5] += 4.0  # 6 % of the norm
    row = compare_tensors(TensorSource(golden), TensorSource(mine), lambda: Judge(()), "id", "x")
    outcome = Recomputation("right", 1e-6, "", 1e-6, 1e-5) if right else Recomputation("", why="no weights")
    failing = {"max_absolute_error"}
    checks = tuple(c if c.metric in failing else c._replace(passed=True) for c in row.checks)
    row = with_replay(replace(row, checks=checks), outcome)
    lifted = as_accumulated(row, 0.1)
    (element,) = (check for check in lifted.checks if check.metric == "max_absolute_error")
    assert element.passed == right
    assert element.allowed == pytest.approx(0.1 * 64 if right else 0.8, rel=0.05)


def test_no_rounding_lifts_a_nan_or_a_bound_that_somebody_set() -> None:
    row = lifted_row()
    checks = tuple(replace_metric(check, "new_nonfinite") for check in row.checks)
    assert needed_tolerance(replace(row, checks=checks)) == math.inf
    meant = tuple(check._replace(reason="set by marker") for check in row.checks)
    assert needed_tolerance(replace(row, checks=meant)) == math.inf


def replace_metric(check: Check, metric: str) -> Check:
    return check if check.passed else check._replace(metric=metric)


def test_tensors_of_other_tokens_are_not_judged() -> None:
    row = replace(ROW, verdict="incomparable", sentence="other shapes", reasons=("other shapes",))
    assert not may_accumulate(row)
    row = replace(row, shapes_differ=True)
    assert may_accumulate(row)
    tie = as_accumulated(row, 0.0)
    assert (tie.verdict, tie.reasons, tie.red) == ("tie", ("other shapes",), False)
    assert tie.sentence == "other shapes: a choice above differs by rounding that has accumulated"


def test_what_a_gate_found_is_no_rounding() -> None:
    assert not may_accumulate(ROW)
    gate = ABOVE._replace(metric="baseline.relative_l2")
    assert not may_accumulate(replace(ROW, verdict="fail", checks=(ABOVE, gate)))
    assert may_accumulate(replace(ROW, verdict="fail", checks=(ABOVE, gate._replace(passed=True))))


@pytest.mark.parametrize(
    ("found", "beyond"),
    [
        (Recomputation("wrong", 0.041, allowed=0.02), True),
        (Recomputation("wrong", 0.039, allowed=0.02), False),
        (Recomputation("wrong", 0.01, allowed=0.02, row_error=0.9, row_allowed=0.4), True),
        (Recomputation("wrong", 0.01, allowed=0.02, row_error=0.7, row_allowed=0.4), False),
        (Recomputation("right", 0.041, allowed=0.02), False),
        (Recomputation("wrong", None, "2 of 9 elements are not those it moves"), False),
    ],
)
def test_an_operator_is_wrong_beyond_doubt_at_twice_its_bound(found: Recomputation, beyond: bool) -> None:
    assert found.is_beyond(2.0) is beyond
