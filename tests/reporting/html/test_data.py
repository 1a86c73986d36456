"""The data of a page: what a reader finds in it is what the rows said."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.base.forms import Scalar
from acc_pytest.base.reason import Reason
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.reporting.html import view as module
from acc_pytest.reporting.html.data import (
    BUDGETS,
    STEPS_PER_DECADE,
    Budget,
    Numbers,
    PageData,
    Texts,
    differences,
    place_of,
    row_details,
)
from acc_pytest.reporting.html.view import details, fold_of, pictures_of
from acc_pytest.reporting.row import VERDICTS, Row
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.source import TensorSource

from .made import HOSTILE, column, inherited, made_row, many_rows, value


def packed(rows: Sequence[Row], budget: Budget = BUDGETS[0], always: Sequence[Row] = ()) -> dict[str, Any]:
    data = PageData()
    for row in rows:
        data.add(row)
    body = data.packed(budget, always, data.order(), {}).body
    return json.loads(json.dumps(body, allow_nan=False, default=list))


@pytest.fixture(scope="module")
def drawn_rows() -> list[Row]:
    return list(many_rows(400))


def test_columns_say_what_the_rows_say(drawn_rows: list[Row]) -> None:
    body = packed(drawn_rows)
    assert [VERDICTS[code] for code in body["verdicts"]] == [row.verdict for row in drawn_rows]
    assert column(body, "name") == [row.mine.name for row in drawn_rows]
    assert column(body, "type") == [row.mine.op_type for row in drawn_rows]
    assert column(body, "layer") == [row.layer for row in drawn_rows]
    assert column(body, "step") == [str(row.step) for row in drawn_rows]
    homes, leaves = column(body, "home"), column(body, "leaf")
    assert [f"{home}::{leaf}" for home, leaf in zip(homes, leaves)] == [row.test_id for row in drawn_rows]
    assert list(itertools.accumulate(body["numbers"])) == [row.number for row in drawn_rows]


def test_metrics_and_their_bounds_survive_to_about_a_percent(drawn_rows: list[Row]) -> None:
    body = packed(drawn_rows)
    metrics = {metric["name"]: metric for metric in body["metrics"]}
    steps = body["steps_per_decade"]
    measured, bounded = metrics["max_absolute_error"], metrics["relative_euclidean_distance"]
    for row, code, allowed in zip(drawn_rows, measured["values"], bounded["allowed"]):
        assert value(code, steps) == pytest.approx(row.metrics["max_absolute_error"], rel=0.006)
        assert value(allowed, steps) == pytest.approx(0.004, rel=0.006)
    assert set(measured["allowed"]) == {0}  # no bound was on it
    for row, code in zip(drawn_rows, body["closeness"]):
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


def test_rows_may_arrive_in_any_order(drawn_rows: list[Row]) -> None:
    shuffled = drawn_rows.copy()
    random.Random(3).shuffle(shuffled)
    assert packed(shuffled) == packed(drawn_rows)


def test_rows_without_number_come_last_by_their_ids() -> None:
    own = [replace(made_row(0), number=None, test_id=f"test_{name}") for name in "ba"]
    body = packed([*own, made_row(7)])
    assert list(itertools.accumulate(body["numbers"])) == [7, -1, -1]
    assert column(body, "leaf")[1:] == ["test_a", "test_b"]


def test_a_small_run_is_kept_whole(drawn_rows: list[Row]) -> None:
    body = packed(drawn_rows)
    assert body["left_out"] == {"rows": 0, "details": 0, "metrics": 0}
    assert len(body["details"]) == len(drawn_rows)
    detail = body["details"]["49"]
    assert detail["checks"][0]["reason"] == "T = 0.004"
    assert detail["worst"] == ["[3, 5]", 0.5, 0.25]
    assert detail["golden"]["files"] == ["/g/x.pth"]


def test_details_have_the_line_of_each_program() -> None:
    row = made_row(1)
    assert "code" not in row_details(row, 99)["golden"]
    detail = row_details(replace(row, golden=replace(row.golden, code="norms.py:8")), 99)
    assert detail["golden"]["code"] == "norms.py:8"


def test_of_a_large_run_failing_rows_and_the_worst_passing_ones_are_kept_whole(drawn_rows: list[Row]) -> None:
    body = packed(drawn_rows, Budget(details=20))
    failing = {str(row.number) for row in drawn_rows if row.verdict == "fail"}
    assert len(failing) == 8
    kept = set(body["details"])
    assert failing < kept
    assert len(kept) == 20
    assert body["left_out"]["details"] == 380
    passing = sorted(
        (row for row in drawn_rows if row.verdict == "pass"), key=lambda row: -row.checks[0].excess
    )
    assert kept - failing == {str(row.number) for row in passing[:12]}


def test_a_root_is_kept_whole_however_many_fail_worse() -> None:
    root = made_row(0, share=1.5)
    rows = [root, *(inherited(made_row(number, share=50), root) for number in range(1, 100))]
    body = packed(rows, Budget(details=5), [root])
    assert "0" in body["details"]
    assert list(itertools.accumulate(body["roots"])) == [-1, *[0] * 99]
    assert body["details"]["1"]["cause"]["text"].startswith("starts at")


def test_metrics_without_a_bound_and_passing_rows_go_first_when_room_is_short(drawn_rows: list[Row]) -> None:
    body = packed(drawn_rows, Budget(details=3, judged_only=True, rows=100))
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


def test_the_most_wanted_are_roots_then_the_worst(drawn_rows: list[Row]) -> None:
    data = PageData()
    for row in drawn_rows:
        data.add(row)
    wanted = data.notable_rows([drawn_rows[3]], 4)
    worst = sorted((row for row in drawn_rows if row.verdict == "fail"), key=lambda row: -row.excess)
    assert [place_of(row) for row in wanted] == [place_of(row) for row in (drawn_rows[3], *worst[:3])]


# Columns of a page: numbers to about a percent, texts exactly.


def quantised(number: Scalar) -> int:
    """The code of one number in a column of its own."""
    column = Numbers()
    column.add(number)
    (code,) = column.packed([0])
    return code


@given(st.floats(1e-59, 1e59), st.sampled_from((1, -1)))
def test_a_number_survives_to_half_a_step(size: float, sign: int) -> None:
    found = value(quantised(sign * size), STEPS_PER_DECADE)
    assert found is not None
    assert abs(math.log10(found / (sign * size))) <= 0.5 / STEPS_PER_DECADE * (1 + 1e-9)


@pytest.mark.parametrize("number", [None, 0, 0.0, -0.0, math.nan, math.inf, -math.inf])
def test_what_has_no_logarithm_has_a_code_of_its_own(number: float | None) -> None:
    found = value(quantised(number), STEPS_PER_DECADE)
    assert repr(found) == repr(
        None if number is None else abs(float(number)) if number == 0 else float(number)
    )


@pytest.mark.parametrize("number", [5e-324, sys.float_info.max, 10**400, -(10**400), 1e-300, 2**63])
def test_every_code_fits_sixteen_bits(number: float) -> None:
    assert -(2**15) <= quantised(number) < 2**15


@pytest.mark.parametrize("word", ["7", True, False])
def test_what_is_no_number_is_nothing(word: str | bool) -> None:
    assert quantised(word) == 0


@given(st.lists(st.sampled_from(["a", "b", "", "c"])), st.randoms(use_true_random=False))
def test_texts_come_back_in_the_order_asked_for(texts: list[str], chance: Random) -> None:
    column = Texts()
    for text in texts:
        column.add(text)
    order = list(range(len(texts)))
    chance.shuffle(order)
    packed = column.packed(order, 100)
    found = [packed["texts"][code] for code in itertools.accumulate(packed["codes"])]
    assert found == [texts[index] for index in order]
    assert len(packed["texts"]) == len(set(texts))


def test_codes_are_given_in_order_of_appearance_so_that_they_differ_by_little() -> None:
    column = Texts()
    for text in ("z", "y", "x", "z", "y", "x"):
        column.add(text)
    assert list(column.packed(range(5, -1, -1), 10)["codes"]) == [0, 1, 1, -2, 1, 1]


def test_numbers_that_begin_late_are_nothing_before() -> None:
    column = Numbers(2)
    column.add(1.0)
    assert list(column.packed([0, 1, 2])) == [0, 0, 10 + 60 * STEPS_PER_DECADE]


def test_a_column_longer_than_a_block_stays_in_order() -> None:
    numbers, texts = Numbers(), Texts()
    for number in range(10_000):
        numbers.add(float(number))
        texts.add(str(number % 7))
    order = [9_999, 0, 4_096, 5]
    found = [value(code, STEPS_PER_DECADE) for code in numbers.packed(order)]
    assert found == pytest.approx([9_999, 0, 4_096, 5], rel=0.01)
    packed = texts.packed(order, 9)
    assert [packed["texts"][code] for code in itertools.accumulate(packed["codes"])] == ["3", "0", "1", "5"]


@pytest.mark.parametrize(("number", "distance"), [(0.9, 0.1), (1.5, 0.0), (math.nan, math.nan), (None, None)])
def test_a_distance_from_one_is_kept_where_it_is_asked_for(number: Scalar, distance: Scalar) -> None:
    column = Numbers(is_similarity=True)
    column.add(number)
    found = value(column.packed([0])[0], STEPS_PER_DECADE)
    assert found == distance if distance is None else found == pytest.approx(distance, rel=0.01, nan_ok=True)


@given(st.lists(st.integers(-100, 10**6)))
def test_differences_add_up(values: list[int]) -> None:
    assert list(itertools.accumulate(differences(values))) == values


# Which pairs are looked into, and what is said where that cannot be.


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Two pairs; the files of the second are gone."""
    pairs = []
    for number, name in enumerate(("here", "gone")):
        refs = []
        for side, values in (("golden", [[1.0, 2.0]]), ("mine", [[1.0, 2.5]])):
            path = tmp_path / f"{name}_{side}.pth"
            if name == "here":
                torch.save(torch.tensor(values), path)
            refs.append(TensorRef(str(path)))
        golden, mine = (Operand(name, name, "Linear", "output", (ref,)) for ref in refs)
        pairs.append(Pair(name, 0, None, "layer", "model", 0, number, "manual", "", golden, mine))
    return Plan("g", "m", "torch", "torch", "dump", tuple(pairs), (), (), 2, 2, 2, 2)


def test_a_pair_is_opened_as_its_test_opened_it(plan: Plan) -> None:
    (found,) = details(plan, [made_row(0)])
    assert found["shape"] == [1, 2]
    assert found["worst"] == [["[0, 1]", 2.0, 2.5, 0.5]]


def test_files_that_are_gone_are_named_and_harm_no_other(plan: Plan) -> None:
    gone, here = details(plan, [made_row(1), made_row(0)])
    assert "gone_golden.pth" in gone["absent"]
    assert "worst" in here


def test_no_more_is_read_than_allowed(plan: Plan) -> None:
    found = details(plan, [made_row(0), made_row(0)], elements=3)
    assert "worst" in found[0]
    assert "2 elements" in found[1]["absent"]


def test_a_row_of_a_test_of_ones_own_says_why_there_is_nothing(plan: Plan) -> None:
    (found,) = details(plan, [replace(made_row(0), number=None)])
    assert "in no file" in found["absent"]


def test_a_row_read_back_from_a_file_says_the_same() -> None:
    (found,) = details(None, [made_row(0)])
    assert "in no file" in found["absent"]


def test_an_operator_check_has_no_golden_file() -> None:
    (found,) = details(None, [made_row(0, case={"op_id": "1"})])
    assert "computed" in found["absent"]


def test_of_replicas_the_one_that_was_judged_worst_is_shown() -> None:
    worst = Reason("{}, the worst of {} replicas", "rank 1", 2)
    assert made_row(0, notes=("bias added", worst)).replica == "rank 1"
    assert made_row(0, notes=("bias added",)).replica == ""


# Pictures of two tensors, against the same computed plainly on whole tensors.


SHAPES = [(7, 64), (1, 5), (5,), (3, 4, 50), (2, 3, 5, 7), (1, 8, 200), (10_000,), (300, 1), ()]


def pictures(golden: torch.Tensor, mine: torch.Tensor) -> dict[str, Any]:
    return pictures_of(TensorSource(golden), TensorSource(mine))


@pytest.fixture(params=[64, 1 << 16], ids=["small blocks", "one block"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", request.param)


def pair(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(len(shape) + sum(shape))
    golden = torch.randn(shape, generator=make).to(dtype)
    noise = torch.randn(shape, generator=make) * 10 ** torch.randn(shape, generator=make)
    return golden, (golden.float() + 0.01 * noise).to(dtype)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_errors_are_counted_by_powers_of_two(shape: tuple[int, ...]) -> None:
    golden, mine = pair(shape)
    found = pictures(golden, mine)["errors"]
    errors = (mine.double() - golden.double()).abs().reshape(-1).tolist()
    expected: dict[int, int] = {}
    for error in errors:
        if error:
            power = math.floor(math.log2(error))
            expected[power] = expected.get(power, 0) + 1
    assert {found["lowest"] + place: n for place, n in enumerate(found["bins"]) if n} == expected
    assert found["equal"] == errors.count(0.0)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_map_holds_the_largest_error_of_each_cell(shape: tuple[int, ...]) -> None:
    golden, mine = pair(shape)
    found = pictures(golden, mine)["map"]
    errors = (mine.double() - golden.double()).abs().reshape(-1).numpy()
    rows, columns = found["rows"], found["columns"]
    padded = np.full(rows * columns, -1.0)
    padded[: errors.size] = errors
    cells = found["cells"]
    height, width = len(cells), len(cells[0])
    assert height <= module.MAP_ROWS
    assert width <= module.MAP_COLUMNS
    expected = np.full((height, width), -1.0)
    for (y, x), error in np.ndenumerate(padded.reshape(rows, columns)):
        down = y * height // rows
        right = max(one for one in range(width) if one * columns // width <= x)
        expected[down, right] = max(expected[down, right], error)
    for line, wanted in zip(cells, expected.tolist()):
        shown = [-1.0 if cell is None else cell for cell in line]
        assert shown == pytest.approx(wanted, rel=1e-3)  # four digits are kept


@pytest.mark.usefixtures("block")
def test_the_scatter_counts_every_finite_pair() -> None:
    golden, mine = pair((40, 50))
    found = pictures(golden, mine)["scatter"]
    both = torch.stack([golden, mine]).double()
    assert (found["low"], found["high"]) == (both.min().item(), both.max().item())
    counted, _, _ = np.histogram2d(
        mine.double().reshape(-1).numpy(),
        golden.double().reshape(-1).numpy(),
        bins=found["size"],
        range=[[found["low"], found["high"]]] * 2,
    )
    grid = np.zeros_like(counted)
    for x, y, number in found["cells"]:
        grid[y, x] = number
    assert grid.sum() == 2000
    assert np.abs(grid - counted).sum() <= 4  # values on an edge may fall to either side


@pytest.mark.usefixtures("block")
def test_the_worst_elements_are_those_of_a_full_sort() -> None:
    golden, mine = pair((6, 7, 8))
    errors = (mine.double() - golden.double()).abs().reshape(-1)
    order = torch.argsort(errors, descending=True)[: module.WORST].tolist()
    found = pictures(golden, mine)["worst"]
    assert [one[0] for one in found] == [str([place // 56, place // 8 % 7, place % 8]) for place in order]
    assert [one[1] for one in found] == [golden.reshape(-1)[place].item() for place in order]
    assert [one[2] for one in found] == [mine.reshape(-1)[place].item() for place in order]


def test_nan_and_infinity_are_counted_and_never_plotted() -> None:
    nan, inf = math.nan, math.inf
    golden = torch.tensor([1.0, nan, nan, inf, inf, -inf, 2.0, 0.0])
    mine = torch.tensor([1.0, nan, 1.0, inf, -inf, 1.0, nan, 0.5])
    found = pictures(golden, mine)
    assert found["onesided"] == 4  # NaN for a number, two infinities for something else, a number for NaN
    assert found["common"] == 2
    assert found["errors"]["equal"] == 3
    assert sum(found["errors"]["bins"]) == 1
    assert sum(number for *_, number in found["scatter"]["cells"]) == 2
    assert [one[3] for one in found["worst"]] == ["Infinity"] * 4 + [0.5]
    assert found["worst"][0][:3] == ["[2]", "nan", 1.0]


def test_an_empty_tensor_has_no_pictures() -> None:
    assert pictures(torch.empty(2, 0), torch.empty(2, 0)) == {"shape": [2, 0], "empty": True}


def test_complex_tensors_have_no_scatter() -> None:
    golden = torch.tensor([1 + 1j, 2 - 1j])
    found = pictures(golden, golden + torch.tensor([0j, 3 + 4j]))
    assert found["scatter"] is None
    assert found["worst"][0][3] == 5.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool])
def test_every_type_is_drawn(dtype: torch.dtype) -> None:
    golden = torch.tensor([0, 1, 1, 0]).to(dtype)
    found = pictures(golden, torch.tensor([0, 1, 0, 0]).to(dtype))
    assert found["errors"] == {"lowest": 0, "bins": [1], "equal": 3}


@pytest.mark.parametrize(
    ("shape", "rows", "columns", "split"),
    [
        ((512, 4096), 512, 4096, 1),
        ((1, 512, 4096), 512, 4096, 2),
        ((512, 32, 128), 512, 4096, 1),  # columns are heads side by side
        ((1, 32, 512, 128), 16384, 128, 3),
        ((7,), 1, 7, 0),
        ((1_000_000,), 245, 4096, -1),
        ((1, 1, 500_000), 123, 4096, -1),
        ((), 1, 1, 0),
    ],
    ids=str,
)
def test_a_tensor_is_folded_to_tokens_by_width(
    shape: tuple[int, ...], rows: int, columns: int, split: int
) -> None:
    found = fold_of(shape)
    assert (found.rows, found.columns, found.split) == (rows, columns, split)
