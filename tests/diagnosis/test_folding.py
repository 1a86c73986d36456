"""One fault is one root: which roots are folded, and what the line of each says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.diagnosis.summary import RootAtStep, folded
from acc_pytest.reporting.row import Cause, RowSide
from acc_pytest.reporting.view import Root

from .plans import plan_of, row_of


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
        ({}, {"step": 1, "layer": "layers.2"}, 2),
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
    assert one(at(**{"name": "n", "text": "why", **fields})).sentence == f"n (Op) step 0 model: {said}; why"


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
