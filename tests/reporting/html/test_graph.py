"""The model graph of a page: which rows are one operator, and what each was computed from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from acc_pytest.dumps.base import StepLabel
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.reporting.html.data import BUDGETS, Budget, PageData
from acc_pytest.reporting.html.graph import ModelGraph
from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.row import Row, RowSide
from acc_pytest.reporting.view import Run

from .made import made_row, read_page, result_of

Parents = Sequence[tuple[int, ...]]


def plan_of(rows: Sequence[Row], parents: Parents, by_order: frozenset[int] = frozenset()) -> Plan:
    """A plan with a pair for each row."""
    pairs = tuple(
        Pair(
            f"p{number}", step_of(row), None, row.level, row.layer, 0, number, "role", "",
            Operand(row.golden.node, row.golden.name, "", row.golden.slot, ()),
            Operand(row.mine.node, row.mine.name, "", row.mine.slot, ()),
        )
        for number, row in enumerate(rows)
    )  # fmt: skip
    counts = (len(rows),) * 4
    return Plan("/g", "/m", "torch", "atb", "dump", pairs, (), (), *counts, tuple(parents), "names", by_order)


def step_of(row: Row) -> StepLabel:
    assert isinstance(row.step, (int, str))
    return row.step


def row_of(number: int, node: str, layer: str = "layers.0", **fields: Any) -> Row:
    """A row of the node `node` of mine, and of `golden.{number}` unless given."""
    golden = fields.pop("golden", f"golden.{number}")
    sides: dict[str, Any] = {
        "golden": RowSide(golden, golden),
        "mine": RowSide(node, node.rpartition("/")[2], "Linear", "output[0]"),
    }
    return replace(made_row(number), layer=layer, **sides, **fields)


def packed(rows: Sequence[Row], plan: Plan, budget: Budget = BUDGETS[0]) -> dict[str, Any]:
    data, graph = PageData(), ModelGraph(plan)
    for row in rows:
        data.add(row)
        graph.add(row)
    made = graph.packed(data.packed(budget, (), data.order(), {}), 200)
    assert made is not None
    return json.loads(json.dumps(made, allow_nan=False, default=list))


def operators(graph: dict[str, Any]) -> list[int]:
    return list(itertools.accumulate(graph["operators"]))


def edges(graph: dict[str, Any]) -> set[tuple[int, int]]:
    """(operator above, operator), as the page reads them."""
    found, taken, codes = set(), 0, operators(graph)
    for place, count in enumerate(graph["counts"]):
        for back in graph["back"][taken : taken + abs(count)]:
            found.add((codes[place - back], codes[place]))
        taken += abs(count)
    assert taken == len(graph["back"])
    return found


def test_edges_are_those_of_the_plan_whatever_the_order_of_arrival() -> None:
    rows = [row_of(number, f"0_Layer/{number}_Op") for number in range(6)]
    plan = plan_of(rows, [(), (0,), (0, 1), (2,), (1, 3), (4,)])
    graph = packed(rows, plan)
    assert edges(graph) == {(0, 1), (0, 2), (1, 2), (2, 3), (1, 4), (3, 4), (4, 5)}
    assert packed(rows[::-1], plan) == graph
    assert graph["basis"] == "names"


def test_several_tensors_of_an_operator_are_one_node() -> None:
    rows = [row_of(0, "0_Layer/0_Split"), row_of(1, "0_Layer/0_Split"), row_of(2, "0_Layer/1_Op")]
    graph = packed(rows, plan_of(rows, [(), (), (0, 1)]))
    assert operators(graph) == [0, 0, 1]


def test_steps_share_an_operator_although_atb_counts_its_executions_on() -> None:
    rows = [
        row_of(0, "2_Prefill_layer/1_Rope", step=0),
        row_of(1, "8_Norm", "model", step=0, golden="root.norm"),
        row_of(2, "12_Decoder_layer/1_Rope", step=1),
        row_of(3, "18_Norm", "model", step=1, golden="root.norm"),
    ]
    assert operators(packed(rows, plan_of(rows, [(), (0,), (), (2,)]))) == [0, 1, 0, 1]


def test_equal_names_in_other_layers_and_modules_are_other_operators() -> None:
    rows = [
        row_of(0, "0_WordEmbedding/0_Gather", "model"),
        row_of(1, "1_PositionalEmbedding/0_Gather", "model"),
        row_of(2, "2_Layer/0_Gather", "layers.0"),
        row_of(3, "3_Layer/0_Gather", "layers.1"),
    ]
    assert operators(packed(rows, plan_of(rows, [(), (0,), (1,), (2,)]))) == [0, 1, 2, 3]


def test_what_a_module_returns_is_of_the_operator_inside_that_wrote_it() -> None:
    rows = [
        row_of(0, "0_Layer/0_Attention/0_Linear"),
        row_of(1, "0_Layer/0_Attention"),
        row_of(2, "0_Layer/1_Add"),
        row_of(3, "0_Layer"),
    ]
    graph = packed(rows, plan_of(rows, [(), (0,), (1,), (2,)]))
    assert operators(graph) == [0, 0, 1, 1]
    assert edges(graph) == {(0, 1)}


def test_a_module_that_fails_by_itself_is_a_node() -> None:
    rows = [row_of(0, "root.block.linear"), row_of(1, "root.block"), row_of(2, "root.norm")]
    rows[1] = replace(rows[1], verdict="fail")
    graph = packed(rows, plan_of(rows, [(), (0,), (1,)]))
    assert edges(graph) == {(0, 1), (1, 2)}


def test_weights_are_of_the_operator_that_reads_them_and_inputs_are_not() -> None:
    rows = [
        row_of(0, "root.layers.0.norm", "weights", fed="weight"),
        row_of(1, "root.layers.0", "inputs", fed="input"),
        row_of(2, "root.layers.0.norm"),
        row_of(3, "root.layers.0"),
    ]
    graph = packed(rows, plan_of(rows, [(), (), (1, 0), (2,)]))
    assert operators(graph) == [0, 1, 0, 0]
    assert graph["fed"] == {"weight": [0], "input": [1]}
    assert graph["paths"]["texts"][0] == ""  # the layer says where it is


def test_edges_stay_within_a_step() -> None:
    rows = [row_of(0, "0_A", step=0), row_of(1, "0_B", step=0), row_of(2, "5_A", step=1)]
    graph = packed(rows, plan_of(rows, [(), (0,), (0, 1)]))
    assert graph["counts"] == [0, 1, 0]


def test_edges_by_the_order_of_execution_say_so() -> None:
    rows = [row_of(number, f"0_Layer/{number}_Op") for number in range(3)]
    assert packed(rows, plan_of(rows, [(), (0,), (1,)], frozenset({2})))["counts"] == [0, 1, -1]


def test_edges_pass_over_what_was_left_out_or_did_not_run() -> None:
    rows = [row_of(number, f"0_Layer/{number}_Op") for number in range(6)]
    plan = plan_of(rows, [(), (0,), (1,), (2,), (3,), (4,)])
    assert edges(packed([rows[0], rows[2], rows[5]], plan)) == {(0, 1), (1, 2)}
    few = Budget(rows=3)
    assert len(operators(packed(rows, plan, few))) == 3
    assert edges(packed(rows, plan, few)) == {(0, 1), (1, 2)}


def test_unmapped_nodes_are_no_operators() -> None:
    rows = [row_of(0, "0_A"), row_of(1, "1_B"), replace(row_of(1, "1_C"), verdict="unmapped", test_id="u")]
    graph = packed(rows, plan_of(rows[:2], [(), (0,)]))
    assert operators(graph) == [0, 1, -1]
    assert graph["counts"] == [0, 1, 0]


def test_module_paths_are_given_outside_of_layers_only() -> None:
    rows = [
        row_of(0, "0_WordEmbedding/0_Gather", "model"),
        row_of(1, "1_Layer/0_Op", "layers.0"),
        row_of(2, "root.stage.conv", "model"),
        row_of(3, "MatMul_7", "graph_1", graph="graph_1"),
    ]
    paths = packed(rows, plan_of(rows, [(), (0,), (1,), (2,)]))["paths"]
    found = [paths["texts"][code] for code in itertools.accumulate(paths["codes"])]
    assert found == ["WordEmbedding.Gather", "", "root.stage.conv", ""]


def page_of(path: Path, rows: Sequence[Row], plan: Plan | None) -> dict[str, Any]:
    report = HtmlReport(str(path))
    report.begin(Run("comparison" if plan else "opcheck", plan))
    for row in rows:
        report.add(row)
    report.finish(result_of(rows))
    report.land()
    return read_page(path.read_text("utf-8"))[1]


def test_a_page_has_the_graph_where_the_plan_has_edges(tmp_path: Path) -> None:
    rows = [row_of(0, "0_A"), row_of(1, "1_B")]
    assert edges(page_of(tmp_path / "p.html", rows, plan_of(rows, [(), (0,)]))["graph"]) == {(0, 1)}
    assert page_of(tmp_path / "p.html", rows, plan_of(rows, [(), ()])).get("graph") is None
    assert page_of(tmp_path / "p.html", rows, None).get("graph") is None
