"""What a run says at its end: roots in execution order, what follows from each, in few lines and at once."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.diagnosis import summary
from acc_pytest.diagnosis.evidence import PairState
from acc_pytest.diagnosis.inheritance import Inheritance
from acc_pytest.diagnosis.outcome import result_of
from acc_pytest.diagnosis.run import with_cause
from acc_pytest.diagnosis.summary import MOST_LINES, Ledger, RootAtStep, folded, root_lines
from acc_pytest.judging.replay import ROWS_OFF
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.reporting.recorder import Recorder
from acc_pytest.reporting.row import LIKENESS, SUSPECT, Cause, Row, RowSide
from acc_pytest.reporting.view import Diagnosis, Result, Root, Run, View

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


def test_other_places_and_other_graphs_are_other_roots() -> None:
    first, later = layer(2, 0), layer(6, 1)
    below = replace(later.mine, node="6_layer/0_Attention/2_Rope")
    graph = replace(later, layer="graph_2", graph="graph_2")
    for other in (replace(later, mine=below), graph):
        assert len(roots_of(first, other)) == 2


def test_the_same_operator_in_other_layers_is_one_root() -> None:
    places = ((2, 0, 1), (6, 1, 2), (7, 1, 4))
    [root] = roots_of(*(replace(layer(first, step), layer=f"layers.{n}") for first, step, n in places))
    assert root.again == "the same in layers 1-2, 4; again at step 1"


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


# One fault is one root: which roots are folded, and what the line of each says.


def at(
    node: str = "2_layer/1_Rope",
    golden: str = "g",
    name: str = "",
    root_name: str = "",
    text: str = "",
    **fields: Any,
) -> RootAtStep:
    """A root at this node; `fields` are those of its pair or of itself, `name` is that of its row."""
    [pair] = plan_of(((),)).pairs
    of_pair = {key: fields.pop(key) for key in ("step", "rank", "graph", "layer", "fed") if key in fields}
    number = fields.pop("number", 0)
    pair = replace(
        pair,
        mine=replace(pair.mine, node=node, name=name or node),
        golden=replace(pair.golden, node=golden),
        **of_pair,
    )
    rank = "" if pair.rank is None else str(pair.rank)
    side = RowSide(node, name or node, pair.mine.op_type)
    row = replace(
        row_of(number, 5.0, int(pair.step)),
        mine=side,
        rank=rank,
        graph=pair.graph,
        layer=pair.layer,
        fed=pair.fed,
    )
    known: dict[str, Any] = {"level": 5.0, "inherited_level": 0.0, "inherited": 0, "share": None, "final": ""}
    cause = Cause("root", "dataflow", root=number, root_name=root_name or row.name, text=text)
    return RootAtStep(row, cause, pair, number, **{**known, **fields})


def roots(*at_steps: RootAtStep) -> list[Root]:
    return folded(at_steps)


def one(*at_steps: RootAtStep) -> Root:
    [root] = folded(at_steps)
    return root


# ---- which are one ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ({}, {"step": 1, "node": "9_layer/1_Rope"}, 1),  # ATB counts executions on
        ({}, {"step": 1, "node": "9_layer/2_Rope"}, 2),
        ({"layer": "layers.1"}, {"step": 1, "layer": "layers.2"}, 1),
        ({}, {}, 2),  # two of a step and rank are two operators
        ({"rank": 0}, {"rank": 1}, 1),
        ({"node": "1_Norm"}, {"node": "7_Norm", "step": 1}, 1),  # outside of layers golden's name counts
        ({"node": "1_Norm"}, {"node": "7_Norm", "step": 1, "golden": "other"}, 2),
        ({"node": "Norm"}, {"node": "Norm", "step": 1}, 1),
        ({"node": "Norm_1"}, {"node": "Norm_2", "step": 1}, 2),
        (
            {"node": "Mul", "graph": "a", "layer": "a"},
            {"node": "Mul", "graph": "b", "layer": "b", "golden": "x"},
            1,
        ),
        ({"node": "Mul", "graph": "a", "layer": "l"}, {"node": "Mul", "graph": "b", "layer": "b"}, 2),
        ({"root_name": "Rope_2_0"}, {"step": 1, "root_name": "Rope_7_0"}, 1),
        ({"root_name": "Rope_2_0"}, {"step": 1, "root_name": "Rope_7_1"}, 2),
        ({"root_name": "Rope_2_0"}, {"step": 1, "root_name": "Mul_2_0"}, 2),
        ({"root_name": "a.b_1"}, {"step": 1, "root_name": "a.b_2"}, 1),
        ({"root_name": "a.1_x"}, {"step": 1, "root_name": "a.2_x"}, 2),
        ({"node": "act.call1"}, {"node": "act"}, 1),  # calls of one module in one step
        ({"node": "act"}, {"node": "act.call1"}, 1),
        ({"node": "act"}, {"node": "act.callback"}, 2),
        ({"fed": "mask"}, {"fed": "mask", "step": 1, "node": "other"}, 1),
        ({"fed": "mask"}, {"fed": "input"}, 2),
    ],
)
def test_the_same_operator_at_another_step_rank_or_graph_is_one_root(
    first: dict[str, Any], second: dict[str, Any], count: int
) -> None:
    assert len(roots(at(**first), at(**second))) == count


def test_two_operators_of_one_name_are_two_at_every_step() -> None:
    found = roots(at(number=0), at(number=1), at(number=2, step=1), at(number=3, step=1))
    assert [(root.number, [row.number for row in root.also]) for root in found] == [(0, [2]), (1, [3])]


def test_what_the_run_was_fed_comes_first() -> None:
    found = roots(at(number=0), at(number=1, fed="mask"), at(number=2, node="1_a/2_b"))
    assert [root.number for root in found] == [1, 0, 2]


def test_a_folded_root_counts_all_that_inherits_and_grows_most() -> None:
    group = [
        at(inherited=2, level=2.0, inherited_level=10.0, share=0.25, number=4),
        at(step=1, inherited=1, level=4.0, inherited_level=20.0, share=0.5),
    ]
    root = one(*group)
    assert (root.number, root.inherited, root.amplification, root.share, root.basis) == (
        4,
        3,
        5.0,
        0.25,
        "dataflow",
    )
    assert root.test_id == group[0].row.test_id
    assert root.also == (group[1].row,)


@pytest.mark.parametrize(
    ("level", "below", "times"),
    [(2.0, 6.0, 3.0), (2.0, 0.0, None), (2.0, math.inf, None), (math.inf, 6.0, None), (0.0, 6.0, None)],
)
def test_what_grows_without_bound_has_no_number(level: float, below: float, times: float | None) -> None:
    assert one(at(level=level, inherited_level=below)).amplification == times


# ---- what is said -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "0 pairs inherit from it"),
        ({"inherited": 1}, "1 pair inherits from it"),
        (
            {"inherited": 2, "inherited_level": 12.0},
            "2 pairs inherit from it, at most 2.4 times its error there",
        ),
        ({"inherited_level": 12.0}, "0 pairs inherit from it"),
        ({"final": "out"}, "0 pairs inherit from it, the final output out is within its bounds"),
        (
            {"final": "root"},
            "0 pairs inherit from it, the final output of the model (root) is within its bounds",
        ),
        ({"final": "out", "share": 0.333}, "0 pairs inherit from it, explains 33% of the error of out"),
        (
            {"final": "root", "share": 1.0},
            "0 pairs inherit from it, explains 100% of the error of the model (root)",
        ),
        ({"final": "n", "name": "n", "share": 1.0}, "0 pairs inherit from it"),
    ],
)
def test_a_root_says_what_follows_from_it(fields: dict[str, Any], said: str) -> None:
    root = at(**{"name": "n", "text": "why", **fields})
    assert one(root).sentence == f"n (Op) step 0 model: {said}; why"
    row = replace(root.row, statistics={ROWS_OFF: "3-5 of 9"}, context={SUSPECT: "b", LIKENESS: "a"})
    assert one(replace(root, row=row)).sentence == f"n (Op) step 0 model: {said}, in rows 3-5 of 9; a; b; why"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "n (Op) step 0 model"),
        ({"rank": 3}, "n (Op) step 0 rank 3 model"),
        ({"graph": "g1", "layer": "g1"}, "n (Op) step 0 g1"),
        ({"graph": "g1", "layer": "l"}, "n (Op) step 0 g1 l"),
        ({"layer": ""}, "n (Op) step 0"),
        ({"root_name": "Rope_2"}, "Rope_2 step 0 model (first seen at n)"),
    ],
)
def test_a_root_says_where_it_is(fields: dict[str, Any], said: str) -> None:
    assert one(at(**{"name": "n", **fields})).sentence == f"{said}: 0 pairs inherit from it; error is 5"


def test_a_root_without_step_or_type_of_mine_says_what_it_has() -> None:
    root = at(name="n")
    row = replace(root.row, step="", mine=RowSide("n", "n"), golden=RowSide("g", "g", "Linear"))
    assert one(replace(root, row=row)).sentence.startswith("n (Linear) model: ")
    assert one(replace(root, row=replace(row, golden=RowSide()))).sentence.startswith("n model: ")


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([], ""),
        ([{"step": 2}], "again at step 2"),
        ([{"step": 1, "rank": 0}, {"step": 1, "rank": 1}], "again at step 1 and ranks 0, 1"),
        ([{"step": n} for n in (1, 2, 3, 4)], "again at steps 1, 2, 3, 4"),
        ([{"step": n} for n in (1, 2, 3, 4, 5)], "again at steps 1, 2, 3, 4 and 1 more"),
        ([{"rank": 7}], "again at rank 7"),
        (
            [{"graph": "b", "layer": "b", "step": 1}, {"graph": "b", "layer": "b", "step": 2}],
            "again at steps 1, 2 and b",
        ),
    ],
)
def test_a_root_says_where_it_is_again(others: list[dict[str, Any]], said: str) -> None:
    graphs = {"graph": "a", "layer": "a"} if others and "graph" in others[0] else {}
    root = one(at(node="Mul", **graphs), *(at(node="Mul", **each) for each in others))
    assert root.again == said
    assert (f" ({said}): " in root.sentence) is bool(said)


@pytest.mark.parametrize(
    ("kind", "names", "said"),
    [
        ("token ids", ["ids"], "token ids ids differ at step 0: error is 5"),
        ("positions", ["p"], "positions p differ at step 0: error is 5"),
        ("mask", ["m"], "mask m differs at step 0: error is 5"),
        ("input", ["x"], "input x differs at step 0: error is 5"),
        ("weight", ["mlp"], "weight of mlp differs at step 0: error is 5"),
        ("buffer", ["mlp"], "buffer of mlp differs at step 0: error is 5"),
        ("buffer", ["a", "b", "a"], "buffers of 2 modules differ: a, b"),
        ("weight", list("abc"), "weights of 3 modules differ: a, b, c"),
        ("weight", list("abcd"), "weights of 4 modules differ: a, b, c and 1 more"),
        ("mask", ["a", "b"], "masks differ: a, b"),
        ("input", ["a", "b"], "inputs differ: a, b"),
        ("cache", ["a", "b"], "caches differ: a, b"),
        ("token ids", ["a", "b"], "token ids differ: a, b"),
    ],
)
def test_what_the_run_was_fed_is_told_by_its_kind(kind: str, names: list[str], said: str) -> None:
    root = one(*(at(name=name, node=name, fed=kind) for name in names))
    assert root.fed == said
    assert root.sentence == f"{said}; 0 pairs inherit from it"


def test_a_mask_that_differs_at_two_steps_says_so_and_a_weight_does_not() -> None:
    masks = one(at(name="m", fed="mask"), at(name="m", fed="mask", step=1))
    assert masks.sentence == "mask m differs at step 0: error is 5 (again at step 1); 0 pairs inherit from it"
    weights = one(at(name="w", fed="weight"), at(name="w", fed="weight", step=1))
    assert weights.sentence == "weight of w differs at step 0: error is 5; 0 pairs inherit from it"


def test_a_cause_that_says_all_is_the_sentence_of_what_was_fed() -> None:
    assert one(at(name="m", fed="mask", text="golden has none")).fed == "golden has none"


# The result of a run from its rows: the lines of its end, its hash, its diagnosis.


class Said(View):
    """A view with a line and a problem of its own."""

    def lines(self) -> list[str]:
        return ["a \x1b line"]

    def problems(self) -> list[str]:
        return ["a problem"]


def result(plan: Plan | None, *rows: Row, ledger: Ledger | None = None, view: View | None = None) -> Result:
    recorder = Recorder([each for each in (ledger, view) if each is not None])
    recorder.begin(Run(plan=plan))
    for row in rows:
        recorder.add(row)
    recorder.end()
    return result_of(recorder, ledger, plan, 0.25, 3)


PLAN = replace(plan_of(((), (0,))), golden_total=4, golden_mapped=2)
ROOT = with_cause(row_of(0, 5.0), Cause("root", "dataflow", root=0, root_name="Op_0"))
FED = with_cause(
    replace(row_of(1, 5.0), fed="mask"),
    Cause("root", "dataflow", root=1, root_name="Op_1", text="the mask differs"),
)


def test_a_run_says_its_verdicts_coverage_roots_and_hash() -> None:
    found = result(PLAN, ROOT, row_of(1, 0.1), ledger=Ledger(), view=Said())
    assert found.lines[0] == "partial: 50 % of golden's tensors were compared"
    assert found.lines[1] == "verdicts: 1 pass, 1 fail"
    assert found.lines[2].startswith(
        "coverage: golden 2 of 4 nodes (50%), mine 0 of 0 (0%); floor 25% reached"
    )
    assert found.lines[3].startswith("root cause: Op_0 ")
    assert found.lines[-3:] == ("a \\x1b line", "a problem", f"verdict hash: {found.verdict_hash}")
    assert (found.exit_status, found.coverage, found.problems) == (3, 0.5, ("a problem",))
    assert found.diagnosis is not None
    assert len(found.diagnosis.roots) == 1


def test_what_the_run_was_fed_stands_before_the_verdicts() -> None:
    pairs = (PLAN.pairs[0], replace(PLAN.pairs[1], fed="mask"))
    found = result(replace(PLAN, pairs=pairs), ROOT, FED, ledger=Ledger())
    assert [line.partition(":")[0] for line in found.lines[1:5]] == [
        "root cause", "verdicts", "coverage", "root cause",
    ]  # fmt: skip
    assert "the mask differs" in found.lines[1]


def test_without_a_plan_or_a_ledger_there_is_no_diagnosis() -> None:
    assert result(PLAN, ROOT).diagnosis is None
    alone = result(None, ROOT, ledger=Ledger())
    assert (alone.diagnosis, alone.coverage) == (None, None)
    assert alone.lines[-1] == f"verdict hash: {alone.verdict_hash}"
    assert result(None).lines == ("verdicts: none",), "nothing was tried, so nothing has a hash"
    assert result(PLAN).lines[-1].startswith("verdict hash: ")
