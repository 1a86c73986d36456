"""The data of a page: what a reader finds in it is what the rows said."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.html.data import BUDGETS, Budget, PageData, place_of
from acc_pytest.reporting.row import VERDICTS, Row

from .made import HOSTILE, column, inherited, made_row, many_rows, value


def packed(rows: Sequence[Row], budget: Budget = BUDGETS[0], always: Sequence[Row] = ()) -> dict[str, Any]:
    data = PageData()
    for row in rows:
        data.add(row)
    body = data.packed(budget, always, data.order(), {}).body
    return json.loads(json.dumps(body, allow_nan=False, default=list))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(many_rows(400))


def test_columns_say_what_the_rows_say(rows: list[Row]) -> None:
    body = packed(rows)
    assert [VERDICTS[code] for code in body["verdicts"]] == [row.verdict for row in rows]
    assert column(body, "name") == [row.mine.name for row in rows]
    assert column(body, "type") == [row.mine.op_type for row in rows]
    assert column(body, "layer") == [row.layer for row in rows]
    assert column(body, "step") == [str(row.step) for row in rows]
    homes, leaves = column(body, "home"), column(body, "leaf")
    assert [f"{home}::{leaf}" for home, leaf in zip(homes, leaves)] == [row.test_id for row in rows]
    assert list(itertools.accumulate(body["numbers"])) == [row.number for row in rows]


def test_metrics_and_their_bounds_survive_to_about_a_percent(rows: list[Row]) -> None:
    body = packed(rows)
    metrics = {metric["name"]: metric for metric in body["metrics"]}
    steps = body["steps_per_decade"]
    measured, bounded = metrics["max_absolute_error"], metrics["relative_euclidean_distance"]
    for row, code, allowed in zip(rows, measured["values"], bounded["allowed"]):
        assert value(code, steps) == pytest.approx(row.metrics["max_absolute_error"], rel=0.006)
        assert value(allowed, steps) == pytest.approx(0.004, rel=0.006)
    assert set(measured["allowed"]) == {0}  # no bound was on it
    for row, code in zip(rows, body["closeness"]):
        assert value(code, steps) == pytest.approx(row.checks[0].excess, rel=0.006)


def test_cosine_is_kept_as_its_distance_from_one() -> None:
    check = Check("cosine_similarity", 1 - 1e-9, 1 - 1e-6, True, "", True)
    body = packed([made_row(0, metrics={"cosine_similarity": 1 - 1e-9}, checks=(check,))])
    (metric,) = body["metrics"]
    steps = body["steps_per_decade"]
    assert metric["from_one"]
    assert value(metric["values"][0], steps) == pytest.approx(1e-9, rel=0.01)
    assert value(metric["allowed"][0], steps) == pytest.approx(1e-6, rel=0.01)


def test_nan_and_incomparable_are_marked_as_without_number() -> None:
    check = Check("max_absolute_error", math.nan, 1.0, False, "", False)
    rows = [
        made_row(0, verdict="fail", metrics={"max_absolute_error": math.nan}, checks=(check,)),
        made_row(1, verdict="incomparable", checks=(), metrics={}),
        made_row(2, verdict="unmapped", checks=(), metrics={}),
    ]
    body = packed(rows)
    (metric,) = body["metrics"]
    assert metric["values"] == [2, 0, 0]
    assert body["closeness"] == [3, 3, 0]


def test_rows_may_arrive_in_any_order(rows: list[Row]) -> None:
    shuffled = rows.copy()
    random.Random(3).shuffle(shuffled)
    assert packed(shuffled) == packed(rows)


def test_rows_without_number_come_last_by_their_ids() -> None:
    own = [replace(made_row(0), number=None, test_id=f"test_{name}") for name in "ba"]
    body = packed([*own, made_row(7)])
    assert list(itertools.accumulate(body["numbers"])) == [7, -1, -1]
    assert column(body, "leaf")[1:] == ["test_a", "test_b"]


def test_a_small_run_is_kept_whole(rows: list[Row]) -> None:
    body = packed(rows)
    assert body["left_out"] == {"rows": 0, "details": 0, "metrics": 0}
    assert len(body["details"]) == len(rows)
    detail = body["details"]["49"]
    assert detail["checks"][0]["reason"] == "T = 0.004"
    assert detail["worst"] == ["[3, 5]", 0.5, 0.25]
    assert detail["golden"]["files"] == ["/g/x.pth"]


def test_of_a_large_run_failing_rows_and_the_worst_passing_ones_are_kept_whole(rows: list[Row]) -> None:
    body = packed(rows, Budget(details=20))
    failing = {str(row.number) for row in rows if row.verdict == "fail"}
    assert len(failing) == 8
    kept = set(body["details"])
    assert failing < kept
    assert len(kept) == 20
    assert body["left_out"]["details"] == 380
    passing = sorted((row for row in rows if row.verdict == "pass"), key=lambda row: -row.checks[0].excess)
    assert kept - failing == {str(row.number) for row in passing[:12]}


def test_a_root_is_kept_whole_however_many_fail_worse() -> None:
    root = made_row(0, share=1.5)
    rows = [root, *(inherited(made_row(number, share=50), root) for number in range(1, 100))]
    body = packed(rows, Budget(details=5), [root])
    assert "0" in body["details"]
    assert list(itertools.accumulate(body["roots"])) == [-1, *[0] * 99]
    assert body["details"]["1"]["cause"]["text"].startswith("starts at")


def test_metrics_without_a_bound_and_passing_rows_go_first_when_room_is_short(rows: list[Row]) -> None:
    body = packed(rows, Budget(details=3, judged_only=True, rows=100))
    assert [metric["name"] for metric in body["metrics"]] == ["relative_euclidean_distance"]
    verdicts = [VERDICTS[code] for code in body["verdicts"]]
    assert len(verdicts) == 100
    assert verdicts.count("fail") == 8
    assert body["left_out"] == {"rows": 300, "details": 97, "metrics": 7}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_cut_and_shows_no_control_character(name: str) -> None:
    row = made_row(0, test_id=name, layer=0, mapping_reason=name, policy=name, sentence=name, notes=(name,))
    mine = type(row.mine)(name, name, name, name, name, name, name)
    row = replace(row, mine=mine, golden=mine, metrics={name: 1.0}, custom={name: 2.0})
    text = json.dumps(packed([row]), ensure_ascii=False)
    assert len(text) < 50_000
    text.encode("utf-8")
    assert not any(ord(one) < 32 or one in "\u202e\u2066\ud800" for one in text)


def test_an_id_too_long_to_type_is_left_out_rather_than_cut() -> None:
    body = packed([made_row(0, test_id="dump::" + "x" * 1000)])
    assert column(body, "leaf") == [""]


def test_the_most_wanted_are_roots_then_the_worst(rows: list[Row]) -> None:
    data = PageData()
    for row in rows:
        data.add(row)
    wanted = data.notable_rows([rows[3]], 4)
    worst = sorted((row for row in rows if row.verdict == "fail"), key=lambda row: -row.excess)
    assert [place_of(row) for row in wanted] == [place_of(row) for row in (rows[3], *worst[:3])]
