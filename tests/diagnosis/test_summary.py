"""What a run says at its end: roots in execution order, what follows from each, in few lines and at once."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.diagnosis import summary
from acc_pytest.diagnosis.evidence import PairState
from acc_pytest.diagnosis.inheritance import Inheritance
from acc_pytest.diagnosis.run import with_cause
from acc_pytest.diagnosis.summary import MOST_LINES, Ledger, root_lines
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.reporting.row import Cause, Row, RowSide
from acc_pytest.reporting.view import Diagnosis, Root

from .plans import Locals, plan_of, row_of


def diagnosed(
    plan: Plan, levels: dict[int, float], known: Mapping[Any, str] | None = None, shuffled: bool = False
) -> Diagnosis:
    """The diagnosis of pairs with these levels, whose rows arrive in order or not."""
    rows = {n: row_of(n, level, int(plan.pairs[n].step)) for n, level in levels.items()}
    states = {n: PairState.of(row, n) for n, row in rows.items()}
    inheritance = Inheritance(plan, states.get, Locals(known))
    done: list[Row] = [
        with_cause(row, inheritance.cause(states[n])) if states[n].failing else row for n, row in rows.items()
    ]
    if shuffled:
        random.Random(1).shuffle(done)
    ledger = Ledger()
    for row in done:
        ledger.add(row)
    return ledger.diagnosis(plan)


CHAIN = plan_of(((), (0,), (1,), (2,)))


def test_a_root_says_how_many_inherit_how_much_it_grows_and_what_it_explains() -> None:
    found = diagnosed(CHAIN, {0: 0.1, 1: 4.0, 2: 8.0, 3: 6.0}, {1: "wrong"})
    [root] = found.roots
    assert (root.number, root.name, root.inherited, found.inherited) == (1, "Op_1", 2, 2)
    assert root.amplification == pytest.approx(2)
    assert root.share == pytest.approx(1 - (0.1 / 4) ** 2)
    assert root.sentence.startswith("Op_1 (Op) step 0: 2 pairs inherit from it, ")
    assert "explains 100% of the error of Op_3" in root.sentence


def test_the_row_of_a_pair_has_one_state_and_no_other_row_has_it() -> None:
    first, second = row_of(0, 0.5, 0), row_of(1, 2.0, 0)
    state = PairState.of(first, 0)
    assert PairState.of(first, 0) is state
    assert PairState.of(first, 7).number == 7
    assert PairState.of(second, 1).failing
    assert PairState.of(first, 0) == state
    assert PairState.of(replace(first, verdict="fail"), 0).failing


def test_a_root_that_nothing_inherits_from_does_not_grow() -> None:
    [root] = diagnosed(CHAIN, {0: 0.1, 3: 4.0}, {3: "wrong"}).roots
    assert (root.inherited, root.amplification, root.share) == (0, None, 1.0)


def test_the_output_of_a_whole_torch_model_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dump calls the model `root`, which is no word for it beside `root cause`."""
    monkeypatch.setattr(summary, "TOP", "Op_3")
    [root] = diagnosed(CHAIN, {0: 0.1, 1: 4.0, 2: 8.0, 3: 6.0}, {1: "wrong"}).roots
    assert "of the error of the model (Op_3)" in root.sentence
    [root] = diagnosed(CHAIN, {0: 0.1, 1: 4.0, 2: 0.5, 3: 0.5}).roots
    assert "the final output of the model (Op_3) is within its bounds" in root.sentence


def test_the_order_in_which_rows_arrive_says_nothing() -> None:
    levels = {0: 2.0, 1: 4.0, 2: 80.0, 3: 6.0}
    known = {0: "wrong", 2: "wrong"}
    assert diagnosed(CHAIN, levels, known, shuffled=True) == diagnosed(CHAIN, levels, known)


def test_a_final_output_within_its_bounds_is_told() -> None:
    [root] = diagnosed(CHAIN, {0: 0.1, 1: 4.0, 2: 0.5, 3: 0.5}).roots
    assert root.share is None
    assert "the final output Op_3 is within its bounds" in root.sentence


def test_tensors_of_one_operator_are_one_root() -> None:
    plan = plan_of(((), (0,), (0,), (1,), (2,)))
    operand = plan.pairs[1].mine
    pairs = list(plan.pairs)
    pairs[2] = replace(pairs[2], mine=replace(operand, slot="output[1]"))
    plan = replace(plan, pairs=tuple(pairs))
    rows = [row_of(n, level) for n, level in enumerate((0.1, 5, 5, 5, 5))]
    rows[2] = replace(rows[2], mine=rows[1].mine)
    states = [PairState.of(row, n) for n, row in enumerate(rows)]
    inheritance = Inheritance(plan, states.__getitem__, Locals())
    ledger = Ledger()
    for row, state in zip(rows, states):
        ledger.add(with_cause(row, inheritance.cause(state)) if state.failing else row)
    [root] = ledger.diagnosis(plan).roots
    assert (root.number, root.inherited) == (1, 2)


def at_steps(count: int) -> list[str]:
    """The lines of one operator that is a root at so many steps."""
    plan = plan_of(tuple(() for _ in range(count)), steps=range(count))
    first = plan.pairs[0]
    plan = replace(
        plan, pairs=tuple(replace(one, golden=first.golden, mine=first.mine) for one in plan.pairs)
    )
    numbers = range(count)
    return root_lines(diagnosed(plan, dict.fromkeys(numbers, 5.0), dict.fromkeys(numbers, "wrong")))


def test_each_operator_has_a_line() -> None:
    plan = plan_of(tuple(() for _ in range(MOST_LINES)))
    numbers = range(MOST_LINES)
    lines = root_lines(diagnosed(plan, dict.fromkeys(numbers, 5.0), dict.fromkeys(numbers, "wrong")))
    assert [line.partition(":")[0] for line in lines] == ["root cause"] * MOST_LINES
    assert "Op_7" in lines[7]


@pytest.mark.parametrize(
    ("count", "again"), [(2, "step 1"), (3, "steps 1, 2"), (9, "steps 1, 2, 3, 4 and 4 more")]
)
def test_an_operator_has_one_line_for_all_steps(count: int, again: str) -> None:
    [line] = at_steps(count)
    assert line.startswith(f"root cause: Op_0 (Op) step 0 (again at {again}): ")


def layer(first: int, step: int, golden: str = "layers.1.rope") -> Pair:
    """The pair of an operator two levels below the layer with this first number, at a step."""
    [pair] = plan_of(((),), steps=(step,)).pairs
    mine = Operand(f"{first}_layer/0_Attention/1_Rope", f"Rope_{first}_0_1", "Rope", "output[0]", ())
    return replace(pair, layer="layers.1", mine=mine, golden=replace(pair.golden, node=golden))


def roots_of(*pairs: Pair) -> tuple[Root, ...]:
    return diagnosis_of(*pairs).roots


def diagnosis_of(*pairs: Pair) -> Diagnosis:
    """The diagnosis of pairs that all fail by themselves."""
    plan = replace(plan_of(tuple(() for _ in pairs)), pairs=pairs)
    ledger = Ledger()
    for number, pair in enumerate(pairs):
        side = RowSide(pair.mine.node, pair.mine.name, "Rope")
        row = replace(row_of(number, 5.0, int(pair.step)), mine=side, fed=pair.fed)
        ledger.add(with_cause(row, Cause("root", "dataflow", root=number, root_name=row.name)))
    return ledger.diagnosis(plan)


def test_prefill_and_decode_of_a_layer_are_one_operator_though_their_numbers_differ() -> None:
    [root] = roots_of(layer(2, 0), layer(6, 1), layer(6, 2))
    assert (root.name, root.again) == ("Rope_2_0_1", "again at steps 1, 2")
    assert [row.number for row in root.also] == [1, 2]
    assert root.sentence.startswith("Rope_2_0_1 (Rope) step 0 (again at steps 1, 2): 0 pairs inherit")


def test_ranks_of_an_operator_are_one_root() -> None:
    [root] = roots_of(replace(layer(2, 0), rank=0), replace(layer(2, 0), rank=1))
    assert root.name == "Rope_2_0_1"
    assert len(root.also) == 1


def test_an_operator_of_two_graphs_that_run_in_one_step_is_a_root_in_each() -> None:
    [root] = roots_of(*(replace(layer(2, 0), graph=graph, layer=graph) for graph in ("a", "b")))
    assert (len(root.also), root.again) == (1, "again at b")


def test_other_layers_other_places_and_other_graphs_are_other_roots() -> None:
    first, later = layer(2, 0), layer(6, 1)
    below = replace(later.mine, node="6_layer/0_Attention/2_Rope")
    graph = replace(later, layer="graph_2", graph="graph_2")
    for other in (replace(later, layer="layers.2"), replace(later, mine=below), graph):
        assert len(roots_of(first, other)) == 2


def test_an_operator_of_two_compiled_graphs_is_one_root_whatever_golden_calls_it() -> None:
    def of(graph: str, step: int, golden: str) -> Pair:
        pair = layer(2, step, golden)
        return replace(pair, layer=graph, graph=graph, mine=replace(pair.mine, node="Transpose_3"))

    [root] = roots_of(of("graph_1", 0, "expand"), of("graph_2", 0, "expand_4"), of("graph_2", 1, "expand_4"))
    assert root.again == "again at step 1 and graph_2"


def test_outside_of_layers_golden_tells_operators_of_a_type_apart() -> None:
    def top(number: int, step: int, golden: str) -> Pair:
        pair = layer(2, step, golden)
        return replace(pair, layer="model", mine=replace(pair.mine, node=f"{number}_Norm"))

    roots = roots_of(top(0, 0, "embed"), top(7, 0, "norm"), top(9, 1, "norm"))
    assert [len(root.also) for root in roots] == [0, 1]


def fed(kind: str, name: str, step: int = 0) -> Pair:
    """A pair of what a run was fed."""
    [pair] = plan_of(((),), steps=(step,)).pairs
    return replace(pair, fed=kind, mine=replace(pair.mine, node=name, name=name))


def test_what_a_run_was_fed_comes_before_operators_and_is_told_in_words_of_its_own() -> None:
    roots = roots_of(layer(2, 0), fed("token ids", "input_ids", 1))
    assert [root.fed != "" for root in roots] == [True, False]
    assert roots[0].sentence.startswith("token ids input_ids differ at step 1: error is 5; 0 pairs inherit")


def test_of_what_a_run_was_fed_nobody_asks_whether_it_was_computed_right() -> None:
    assert not diagnosis_of(fed("mask", "mask")).notes
    assert diagnosis_of(fed("mask", "mask"), layer(2, 0)).notes[-1].startswith("1 of 1 could not be")


def test_a_weight_is_the_same_at_all_steps() -> None:
    [root] = roots_of(fed("weight", "mlp", 0), fed("weight", "mlp", 1))
    assert root.sentence == "weight of mlp differs at step 0: error is 5; 0 pairs inherit from it"


def test_weights_of_many_modules_are_one_root() -> None:
    [root] = roots_of(*(fed("weight", f"layers.{n}.mlp") for n in range(12)))
    assert root.fed == "weights of 12 modules differ: layers.0.mlp, layers.1.mlp, layers.2.mlp and 9 more"


def test_ids_of_several_steps_are_one_root() -> None:
    [root] = roots_of(fed("token ids", "input_ids", 1), fed("token ids", "input_ids", 2))
    assert "differ at step 1: error is 5 (again at step 2); 0 pairs inherit" in root.sentence


def test_many_roots_are_cut_and_counted() -> None:
    plan = plan_of(tuple(() for _ in range(20)))
    lines = root_lines(diagnosed(plan, dict.fromkeys(range(20), 5.0), dict.fromkeys(range(20), "wrong")))
    assert len([line for line in lines if line.startswith("root cause: Op_")]) == MOST_LINES
    assert lines[-1] == f"root cause: and {20 - MOST_LINES} more operators"


def test_lineage_by_order_is_told_in_one_line() -> None:
    plan = plan_of(((), (0,)), by_order=frozenset((0, 1)), lineage="execution order")
    lines = root_lines(diagnosed(plan, {0: 5.0, 1: 5.0}))
    assert lines[-1].startswith("root causes: what a pair computes from is known by execution order")
    assert "rate of change" in lines[-1]


def test_rows_that_are_no_pairs_say_nothing() -> None:
    ledger = Ledger()
    ledger.add(replace(row_of(0, 5.0), number=None))
    ledger.add(replace(row_of(0, 5.0), case={"op_id": "1"}))
    ledger.add(replace(row_of(7, 0.5), verdict="unmapped"))
    for verdict in ("fail", "inherited", "known"):
        ledger.add(replace(row_of(3, 5.0), verdict=verdict))  # nobody found its cause
    assert ledger.diagnosis(CHAIN).roots == ()


@pytest.mark.parametrize(("last", "passes"), [(0.5, True), (5.0, False)])
def test_the_final_output_is_within_its_bounds_only_where_that_of_every_step_is(
    last: float, passes: bool
) -> None:
    plan = plan_of(((), (0,), (), (2,)), steps=(0, 0, 1, 1))
    found = diagnosed(plan, {0: 5.0, 1: 0.5, 2: 0.5, 3: last}, {0: "wrong", 3: "wrong"})
    assert ("is within its bounds" in found.roots[0].sentence) is passes
